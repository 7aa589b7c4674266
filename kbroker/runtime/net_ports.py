"""What a server needs of the network and of the world around it, as Protocols.

Real sockets (`kbroker.runtime.net`) and the in-memory network of `kbroker.testing` both serve these, so code above them
says nothing of sockets. Two decisions show in the shapes:

* What is sent is a list of parts: bytes, and ranges of files that a stream may send without reading them
  (`os.sendfile`). A stream that cannot do so reads the range and sends the bytes; its caller does not see the
  difference.
* A request that waits must notice that its client has gone. `Stream.watch` calls back when the peer has closed its
  side, without reading anything: pipelined requests stay in the kernel's buffer, which bounds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random  # noqa: TID251 - the type of what an environment gives
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, TypeVarTuple, runtime_checkable
from uuid import UUID

from kbroker.runtime.ports import Buffer, Clock, Disk, File

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


@runtime_checkable
class FileBytes(Protocol):
    """A range of an open file that stands for its bytes.

    Units  position and size are bytes; the range lies within the file
    """

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...


Part: TypeAlias = Buffer | FileBytes


class Pieces:
    """Bytes in memory that lie in several places, and stand in a message as if they were one.

    Units  size is that of all of them, in bytes
    """

    __slots__ = ("buffers", "size")

    def __init__(self, buffers: Sequence[Buffer], size: int) -> None:
        self.buffers = buffers
        self.size = size

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)


class Buffers(NamedTuple):
    """How much the network holds for each connection, in bytes; -1 leaves it to the system, which adapts it."""

    send_bytes: int
    receive_bytes: int


DEFAULT_BUFFERS = Buffers(send_bytes=256 * 1024, receive_bytes=-1)
DEFAULT_BUSY_POLL_US = 150
"""What was measured to be best for 1 MiB fetches and 900 KiB produces over loopback.

A send buffer that the system adapts grows beyond the processor's cache (3.3 GB/s of fetches at 0.29 CPU s/GB, with 256
KiB 5.5 GB/s at 0.18); a receive buffer of Kafka's 100 KiB wakes the server for every 64 KiB (0.75 CPU s/GB of produces,
adapted 0.2).
"""


class Stream(Protocol):
    """A connection: bytes both ways, in order. One task receives and one sends at a time; they may be two.

    Errors  trio.BrokenResourceError when the connection is gone; OSError when a file that is sent cannot be read (the
            connection is then of no use, for half a reply may have left)
    """

    peer_host: str
    peer_port: int
    received_bytes: int
    """Bytes received since the connection was made; it moves whenever the peer makes progress."""
    sent_bytes: int
    """Bytes that the network has taken since the connection was made."""

    async def receive(self, max_bytes: int) -> bytes:
        """At least one byte and at most `max_bytes`; b"" when the peer sends no more. May return without yielding."""
        ...

    async def receive_into(self, buffer: memoryview | bytearray) -> int:
        """`receive` into `buffer`, which is not empty; how many bytes came."""
        ...

    async def send(self, parts: Sequence[Part]) -> None:
        """Send all of `parts`, in order. May return without yielding."""
        ...

    def send_nowait(self, data: Buffer) -> int:
        """Send what the network takes of `data` at once, perhaps nothing, and return how many bytes that was."""
        ...

    def watch(self, on_peer_closed: Callable[[], object]) -> None:
        """Call `on_peer_closed` once when the peer has closed its side, now or later, until `unwatch`.

        For accepted streams, one watch at a time; it may call back before it returns.
        """
        ...

    def unwatch(self) -> None:
        """End a `watch`, whether or not it has called back."""
        ...

    def close(self) -> None:
        """Close at once; harmless when repeated. Who waits on the stream gets trio.ClosedResourceError."""
        ...


class Listener(Protocol):
    """A bound address. It refuses connections until it listens."""

    host: str
    port: int

    def listen(self) -> None:
        """Begin to take connections. OSError if that is impossible."""
        ...

    async def accept(self) -> Stream:
        """The next connection.

        Errors  OSError when the system cannot make one now (EMFILE, ENFILE, ENOBUFS, ENOMEM): the caller lets time pass
        """
        ...

    async def notice_closed_peers(self) -> None:
        """Serve `Stream.watch` for the streams accepted here, for ever.

        `Stream.watch` notices nothing while this does not run.
        """
        ...

    def close(self) -> None:
        """Stop listening; accepted streams live on."""
        ...


class Threads(Protocol):
    """Threads for one kind of blocking calls, so that these cannot take the place of others."""

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call a blocking function off the event loop, when one of the threads is free. A cancelled caller waits until
        the function has returned.
        """
        ...

    def resize(self, max_threads: int) -> None:
        """Let so many calls run at once from now on; those that run are not disturbed."""
        ...


class Env(Clock, Protocol):
    """The world of one broker: clocks, chance, network, disk, threads. A simulation has one for each of its nodes."""

    @property
    def random(self) -> Random: ...

    @property
    def disk(self) -> Disk: ...

    def now_ns(self) -> int:
        """Nanoseconds on the clock of `now_ms`: to measure what takes microseconds."""
        ...

    def new_uuid(self) -> UUID:
        """A random UUID (version 4) whose base64 text does not begin with a dash, as Kafka's."""
        ...

    async def listen(
        self,
        host: str,
        port: int,
        *,
        backlog: int,
        buffers: Buffers = DEFAULT_BUFFERS,
        busy_poll_us: int = DEFAULT_BUSY_POLL_US,
        accepts: bool = True,
    ) -> Listener:
        """Bind and listen; port 0 takes a free one, "" as host every address. OSError if that is impossible.

        Without `accepts` the address is only bound: no other process can take it, and connections are refused until
        `Listener.listen`.
        busy_poll_us is how long a connection may look for its next request before it sleeps; 0 is not at all.
        """
        ...

    async def connect(self, host: str, port: int) -> Stream:
        """Connect; OSError if nobody answers."""
        ...

    async def sleep_ms(self, delay_ms: int) -> None: ...

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call a blocking function off the event loop. A cancelled caller waits until the function has returned."""
        ...

    def threads(self, max_threads: int) -> Threads:
        """Threads beside those of `run_blocking`: what waits for a network must not keep appends waiting."""
        ...

    def abandon_threads(self) -> None:
        """The process is ending: from now on who calls by such threads, and is cancelled, does not wait any more, while
        the call goes on unheeded. Never before: its effect would come when nobody expects it.
        """
        ...
