"""A network between simulated hosts, with delays and faults, in virtual time.

    network = SimulatedNetwork(seed=7)
    env.network = network.host("node-1")          # what this host listens on and connects from
    nursery.start_soon(network.run)               # delivers; nothing arrives without it
    network.cut("node-1", "node-2")               # one way: what node-1 sends does not arrive at node-2

Theory of operation: a connection is two pipes. What a pipe carries is delivered after the delay of its link, in the
order of sending, as TCP does it; so a fault is a delay, a pause or a reset, never a lost byte within a connection. Each
link (the pair of sender and receiver) has its own faults:

    cut        nothing is delivered until `mend`; the senders do not notice it, and new connections wait
    reset      connections end at once on both sides, and data in transit is lost
    frames     a `FrameFault` applies to one frame of Kafka's protocol: it is delayed, delivered once more on another
               connection, or its reply is dropped together with the connection
    splitting  a chunk arrives in two parts, at different times

A host that is killed closes its connections; after a loss of power its peers see nothing until it is back, and then
resets.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

import trio

from kbroker.runtime.ports import Buffer
from kbroker.testing.draws import Draws
from kbroker.testing.frames import FrameFault, Frames
from kbroker.testing.hosts import Host, Place, host_of
from kbroker.testing.net import PIPE_BYTES, MemoryNetwork, MemoryStream, Pipe
from kbroker.testing.virtual_time import Nap
from wire.schema import schema_of

NEVER: Final = float("inf")
_GRID: Final = 10_000  # deliveries happen at multiples of 0.1 ms, so that one wake-up serves several
_REQUEST_HEAD: Final = 12  # size, api key, version, correlation id
_RESPONSE_HEAD: Final = 8  # size, correlation id


@dataclass(slots=True)
class Pace:
    """How fast a link is.

    Units  delay_ms for each delivery, and up to jitter_ms more; split is the probability that a chunk arrives in two
           parts
    """

    delay_ms: float = 0.2
    jitter_ms: float = 0.3
    split: float = 0.0


@dataclass(eq=False, slots=True)
class _Link:
    """One direction between two hosts."""

    sender: str
    receiver: str
    pace: Pace
    draws: Draws
    is_cut: bool = False
    held: list[tuple[int, _WirePipe, bytes | None]] = field(default_factory=list)


class _WirePipe(Pipe):
    """One direction of a simulated connection."""

    def __init__(self, network: SimulatedNetwork, link: _Link, connection: _Connection, *, asks: bool) -> None:
        super().__init__()
        self.link = link
        self.connection = connection
        self.in_flight = 0
        self.due = 0.0
        self.is_broken = False
        self._network = network
        self._asks = asks
        self._frames = Frames(_REQUEST_HEAD if asks else _RESPONSE_HEAD)
        self._copies: list[tuple[Any, bytes]] | None = None

    def put(self, data: Buffer) -> int:
        if self.is_broken:
            raise trio.BrokenResourceError("the peer has closed the connection")
        if self.ended:
            return len(data)  # its reader has left, and this side does not know it yet
        taken = min(len(data), PIPE_BYTES - len(self.data) - self.in_flight)
        if taken:
            chunk = bytes(memoryview(data)[:taken])
            self.in_flight += taken
            whole = self._frames.feed(chunk, self._on_head)
            self._network.send(self, chunk)  # without effect if a fault of this frame has ended the connection
            if whole is not None and self._copies is not None:
                self._copies.append((self.connection, bytes(whole)))
            elif whole is not None:
                self._network.serve_again(self.connection, bytes(whole))
        return taken

    def end(self) -> None:
        """Its writer has closed it."""
        self._network.send(self, None)

    def arrive(self, chunk: bytes | None) -> None:
        """Called by the network when something is delivered; None is the end."""
        if self.ended:
            return
        if chunk is None:
            self.leave()
            other = self.connection.other(self)
            other.is_broken = True
            other.moved.unpark_all()
            return
        self.in_flight -= len(chunk)
        self.data += chunk
        self.moved.unpark_all()

    def leave(self) -> None:
        super().end()  # nothing more arrives here

    def _on_head(self, head: bytes) -> None:
        connection = self.connection
        if not self._asks:
            if int.from_bytes(head[4:8], "big") in connection.dropped:
                self._network.trace("drop-reply", self.link.sender, self.link.receiver)
                connection.reset()
            return
        fault = self._network.fault_of(int.from_bytes(head[4:6], "big"), self.link)
        if fault is None:
            return
        self._copies = fault.copies
        if fault.copies is not None:
            self._frames.collect(head)
        if fault.kind == "delay":
            if fault.delay_ms:
                self.due = trio.current_time() + fault.delay_ms / 1000
        elif fault.kind == "repeat":
            connection.repeat_after_ms = fault.delay_ms
            self._frames.collect(head)
        else:
            connection.dropped.add(int.from_bytes(head[8:12], "big"))


class _Connection:
    """A pair of pipes: from the client to the server, and back."""

    def __init__(self, network: SimulatedNetwork, client: str, server: str, port: int) -> None:
        self.client, self.server, self.port = client, server, port
        self.up = _WirePipe(network, network.link(client, server), self, asks=True)
        self.down = _WirePipe(network, network.link(server, client), self, asks=False)
        self.dropped: set[int] = set()
        self.repeat_after_ms = 0.0
        self.is_repetition = False
        """It carries one request that arrives again, whatever has become of its sender."""

    def other(self, pipe: _WirePipe) -> _WirePipe:
        return self.down if pipe is self.up else self.up

    def outlives(self, host: str) -> bool:
        """Whether the end of a host's process does not end it."""
        return self.is_repetition and host == self.client

    def reset(self) -> None:
        """End it at once on both sides; data in transit is lost."""
        for pipe in (self.up, self.down):
            pipe.is_broken = True
            pipe.data.clear()
            pipe.leave()

    @property
    def is_over(self) -> bool:
        return self.up.ended and self.down.ended


class SimulatedNetwork(MemoryNetwork):
    """See the module docstring. `trace` is called with each fault that strikes and each delivery."""

    def __init__(self, *, seed: int = 0, pace: Pace | None = None) -> None:
        super().__init__()
        self.seed = seed
        self.pace = pace or Pace()
        self.frame_faults: list[FrameFault] = []
        self.repeated: Counter[str] = Counter()
        """How many requests of each host arrived again."""
        self.trace: Callable[..., object] = lambda *_: None
        self._links: dict[tuple[str, str], _Link] = {}
        self._connections: list[_Connection] = []
        self._dark: set[str] = set()
        self._queue: list[tuple[float, int, _WirePipe, bytes | None]] = []
        self._sequence = 0
        self._next = NEVER
        self._nap = Nap()

    def host(self, name: str) -> Host:
        """The network as the host of this name sees it."""
        return Host(self, name)

    # Faults

    def cut(self, sender: Place, receiver: Place, *, both_ways: bool = False) -> None:
        """Deliver nothing from one host to another until `mend`. Connections stay open; new ones wait."""
        self.link(host_of(sender), host_of(receiver)).is_cut = True
        if both_ways:
            self.cut(receiver, sender)

    def isolate(self, host: Place, *others: Place) -> None:
        """Cut a host off from these others, both ways. The host may be among the others."""
        for other in others:
            if host_of(other) != host_of(host):
                self.cut(host, other, both_ways=True)

    def mend(self, sender: Place | None = None, receiver: Place | None = None, *, both_ways: bool = False) -> None:
        """End the cuts of one link, of all links of one sender, or of all; what was held is delivered.

        With both_ways also those of the opposite direction: `mend(host, both_ways=True)` ends `isolate(host, ...)`.
        """
        one = None if sender is None else host_of(sender)
        other = None if receiver is None else host_of(receiver)
        for link in self._links.values():
            if one in (None, link.sender) and other in (None, link.receiver):
                link.is_cut = False
                held, link.held = link.held, []
                for sequence, pipe, chunk in held:
                    heappush(self._queue, (trio.current_time(), sequence, pipe, chunk))
        self._nap.end()
        if both_ways:
            self.mend(receiver, sender)

    def slow(self, sender: Place, receiver: Place, pace: Pace | None = None) -> None:
        """Give a link, in one direction, another pace; None gives it the network's."""
        self.link(host_of(sender), host_of(receiver)).pace = pace or self.pace

    def reset(self, host: Place, other: Place | None = None) -> None:
        """Reset the connections of a host, or those between two hosts."""
        for connection in self._living():
            ends = (connection.client, connection.server)
            is_meant = host_of(host) in ends and (other is None or host_of(other) in ends)
            if is_meant and not connection.outlives(host_of(host)):
                connection.reset()

    def drop_reply(self, sender: Place, request: type | None = None, *, times: int = 1, skip: int = 0) -> None:
        """The next requests of a host are served, and their connection ends instead of the reply.

        Shape  request is a class of `wire.messages`, None for any; `skip` of them are left alone, then `times` struck
        """
        fault = FrameFault("drop-reply", _api_key(request), host_of(sender), skip=skip, times=times)
        self.frame_faults.append(fault)

    def delay(self, sender: Place, request: type | None = None, *, ms: float, times: int = 1, skip: int = 0) -> None:
        """The next requests of a host arrive later, with everything that it sends behind them; see `drop_reply`."""
        fault = FrameFault("delay", _api_key(request), host_of(sender), delay_ms=ms, skip=skip, times=times)
        self.frame_faults.append(fault)

    def repeat(
        self, sender: Place, request: type | None = None, *, after_ms: float = 0, times: int = 1, skip: int = 0
    ) -> None:
        """The next requests of a host arrive again, on a connection that ignores replies; see `drop_reply`."""
        fault = FrameFault("repeat", _api_key(request), host_of(sender), delay_ms=after_ms, skip=skip, times=times)
        self.frame_faults.append(fault)

    def heal(self) -> None:
        """End all faults; connections that were reset stay so."""
        self.frame_faults.clear()
        for link in self._links.values():
            link.pace = self.pace
        self.mend()

    def kill(self, host: str, *, power: bool = False) -> None:
        """A process of a host died: its addresses are free and its connections close. With `power` the host has lost
        its power: its peers see nothing until `revive`.
        """
        for address in [address for address in self.listeners if address[0] == host]:
            del self.listeners[address]
        if power:
            self._dark.add(host)
        for connection in self._living():
            if host in (connection.client, connection.server) and not connection.outlives(host):
                mine, theirs = connection.up, connection.down
                if connection.server == host:
                    mine, theirs = theirs, mine
                theirs.leave()
                if not power:
                    mine.end()
                mine.is_broken = True

    def revive(self, host: str) -> None:
        """A host has power again: the connections of its earlier life are reset."""
        self._dark.discard(host)
        self.reset(host)

    # Connections

    async def connect_from(self, client: str, host: str, port: int) -> MemoryStream:
        """Connect from a host to an address, one round trip later."""
        while self.link(client, host).is_cut or self.link(host, client).is_cut or host in self._dark:  # noqa: ASYNC110
            await trio.sleep(0.2)  # the first packet is sent again
        await trio.sleep(2 * self._delay(self.link(client, host)))
        listener = self.listeners.get((host, port))
        if listener is None or not listener.is_listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no listener at {host}:{port}")
        connection, stream, server = self._pair(client, host, port)
        self._connections.append(connection)
        listener.arrivals.send_nowait(server)
        return stream

    def _pair(self, client: str, host: str, port: int) -> tuple[_Connection, MemoryStream, MemoryStream]:
        connection = _Connection(self, client, host, port)
        up, down = connection.up, connection.down
        near = MemoryStream(down, up, peer_host=host, peer_port=port)
        far = MemoryStream(up, down, peer_host=client, peer_port=1)
        return connection, near, far

    def _living(self) -> list[_Connection]:
        self._connections = [connection for connection in self._connections if not connection.is_over]
        return self._connections

    def link(self, sender: str, receiver: str) -> _Link:
        """The link from one host to another."""
        link = self._links.get((sender, receiver))
        if link is None:
            draws = Draws("link", self.seed, sender, receiver)
            link = self._links[sender, receiver] = _Link(sender, receiver, self.pace, draws)
        return link

    def fault_of(self, api_key: int, link: _Link) -> FrameFault | None:
        """The fault that strikes this request, if any."""
        for fault in self.frame_faults:
            if fault.matches(api_key, link.sender, link.receiver):
                if fault.skip:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                if not fault.times:
                    self.frame_faults.remove(fault)
                self.trace(fault.kind, link.sender, link.receiver, api_key)
                return fault
        return None

    def serve_again(self, connection: _Connection, frame: bytes) -> None:
        """Deliver a request once more on another connection, whose answers are ignored."""
        listener = self.listeners.get((connection.server, connection.port))
        if listener is None:
            return
        self.repeated[connection.client] += 1
        again, _, server = self._pair(connection.client, connection.server, connection.port)
        self._connections.append(again)
        again.is_repetition = True
        again.up.due = trio.current_time() + connection.repeat_after_ms / 1000
        again.up.in_flight += len(frame)
        self.send(again.up, frame)
        self.send(again.up, None)
        listener.arrivals.send_nowait(server)

    # Delivery

    def send(self, pipe: _WirePipe, chunk: bytes | None) -> None:
        """Carry what was put into a pipe; None is its end."""
        link = pipe.link
        delay = self._delay(link)
        if chunk is not None and link.pace.split and len(chunk) > 1 and link.draws.chance(link.pace.split):
            at = link.draws.between(1, len(chunk) - 1)
            self._schedule(pipe, chunk[:at], trio.current_time() + delay)
            chunk, delay = chunk[at:], delay + self._delay(link)
        self._schedule(pipe, chunk, trio.current_time() + delay)

    @staticmethod
    def _delay(link: _Link) -> float:
        pace = link.pace
        jitter = link.draws.below(round(pace.jitter_ms * 10) + 1) / 10 if pace.jitter_ms else 0
        return (pace.delay_ms + jitter) / 1000

    def _schedule(self, pipe: _WirePipe, chunk: bytes | None, due: float) -> None:
        due = pipe.due = max(pipe.due, round(due * _GRID + 0.5) / _GRID)
        self._sequence += 1
        heappush(self._queue, (due, self._sequence, pipe, chunk))
        if due < self._next:
            self._nap.end()

    async def run(self) -> None:
        """Deliver, forever."""
        queue = self._queue
        while True:
            self._next = queue[0][0] if queue else NEVER
            if self._next > trio.current_time():
                self._nap = Nap()
                await self._nap.until(self._next)
            now = trio.current_time()
            while queue and queue[0][0] <= now:
                _, sequence, pipe, chunk = heappop(queue)
                link = pipe.link
                if link.is_cut or link.sender in self._dark:
                    link.held.append((sequence, pipe, chunk))
                elif link.receiver not in self._dark:
                    self.trace("deliver", link.sender, link.receiver, -1 if chunk is None else len(chunk))
                    pipe.arrive(chunk)


def _api_key(request: type | None) -> int:
    api_key = -1 if request is None else schema_of(request).api_key
    assert api_key is not None, f"{request} is not a request"
    return api_key
