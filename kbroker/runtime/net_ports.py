"""Protocols for the network and the environment of a server.

Real sockets (`kbroker.runtime.net`) and the in-memory network of `kbroker.testing` both implement them, so higher
layers do not depend on sockets. Two design decisions:

* A message is a list of parts: bytes, and file ranges that a stream can send without reading them (`os.sendfile`). A
  stream that does not support this reads the range and sends the bytes; the caller does not see the difference.
* A waiting request must notice that its client has gone. `Stream.watch` calls back when the peer has closed its side.
  It reads nothing, so pipelined requests stay in the kernel's buffer, which bounds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random  # noqa: TID251 - the type of what an environment gives
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, TypeVarTuple
from uuid import UUID

from kbroker.runtime.ports import Buffer, Clock, Disk, File

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class FileBytes(Protocol):
    """A range of an open file, sent as its bytes.

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
    """Several buffers that form one field of a message.

    Units  size is their total in bytes
    """

    __slots__ = ("buffers", "size")

    def __init__(self, buffers: Sequence[Buffer], size: int) -> None:
        self.buffers = buffers
        self.size = size

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)


class SocketOptions(NamedTuple):
    """Options of a listener and of its connections.

    Units  buffers in bytes, -1 lets the system adapt the size; busy_poll_us is how long a connection may poll for its
           next request before it sleeps, 0 disables polling
    """

    backlog: int = 128
    send_buffer_bytes: int = 256 * 1024
    receive_buffer_bytes: int = -1
    busy_poll_us: int = 150


DEFAULT_OPTIONS = SocketOptions()
"""Measured best for 1 MiB fetches and 900 KiB produces over loopback.

A send buffer that the system adapts grows beyond the processor's cache (fetches: 3.3 GB/s at 0.29 CPU s/GB; with 256
KiB: 5.5 GB/s at 0.18). A receive buffer of 100 KiB, Kafka's default, wakes the server for every 64 KiB (produces: 0.75
CPU s/GB; adapted: 0.2).
"""


class Stream(Protocol):
    """A connection: bytes both ways, in order. One task receives and one sends at a time; they may be two.

    Shape   peer_host is an IP address, if it is link-local with the number of the interface: fe80::1%4

    Errors  trio.BrokenResourceError if the connection is gone; OSError if a file that is sent cannot be read (the
            connection is then unusable, because part of a reply may have been sent)
    """

    peer_host: str
    peer_port: int

    @property
    def received_bytes(self) -> int:
        """Bytes received since the connection was opened; grows whenever the peer makes progress."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Bytes that the network has accepted since the connection was opened."""
        ...

    async def receive(self, max_bytes: int) -> bytes:
        """At least one byte and at most `max_bytes`; b"" at the end of the stream. May return without yielding."""
        ...

    async def receive_into(self, buffer: memoryview | bytearray) -> int:
        """`receive` into `buffer`, whose size is not 0; return the number of bytes."""
        ...

    async def send(self, parts: Sequence[Part]) -> None:
        """Send all of `parts`, in order. May return without yielding."""
        ...

    def send_nowait(self, data: Buffer) -> int:
        """Send the part of `data` that the network accepts at once, perhaps nothing; return the number of bytes."""
        ...

    async def read_range(self, part: FileBytes) -> Buffer:
        """The bytes of a file range, for a stream over this one that has to change them; does not stop the loop.

        Errors  OSError
        """
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
        """Close at once. Idempotent. Tasks that wait on the stream get trio.ClosedResourceError."""
        ...


class Listener(Protocol):
    """A bound address. It refuses connections until it listens."""

    host: str
    port: int

    def listen(self) -> None:
        """Begin to accept connections. Errors: OSError."""
        ...

    async def accept(self) -> Stream:
        """The next connection.

        Errors  OSError if the system lacks resources (EMFILE, ENFILE, ENOBUFS, ENOMEM): the caller backs off
        """
        ...

    async def notice_closed_peers(self) -> None:
        """Serve `Stream.watch` for the streams of this listener, forever.

        `Stream.watch` calls back only while this runs.
        """
        ...

    def close(self) -> None:
        """Stop listening; accepted streams stay open."""
        ...


class Threads(Protocol):
    """Threads reserved for one kind of blocking calls, so that these cannot delay other kinds."""

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call a blocking function in one of the threads, as soon as one is free. A cancelled caller waits until the
        function has returned.
        """
        ...

    def resize(self, max_threads: int) -> None:
        """Change the number of calls that may run at once; running calls continue."""
        ...


class Env(Clock, Protocol):
    """The environment of one broker: clocks, randomness, network, disk, threads. A simulation has one for each node."""

    @property
    def random(self) -> Random: ...

    @property
    def disk(self) -> Disk: ...

    def now_ns(self) -> int:
        """Nanoseconds of monotonic time, on the clock of `now_ms`: to measure short durations."""
        ...

    def new_uuid(self) -> UUID:
        """A random UUID (version 4) whose base64 text does not begin with a dash, as in Kafka."""
        ...

    async def listen(
        self, host: str, port: int, options: SocketOptions = DEFAULT_OPTIONS, *, accepts: bool = True
    ) -> Listener:
        """Bind and listen. Port 0 means any free port, host "" every address. Errors: OSError.

        Without `accepts` the address is only bound: no other process can use it, and connections are refused until
        `Listener.listen`.
        """
        ...

    async def connect(self, host: str, port: int) -> Stream:
        """Connect to an address. Errors: OSError."""
        ...

    async def sleep_ms(self, delay_ms: int) -> None: ...

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call a blocking function in a thread. A cancelled caller waits until the function has returned."""
        ...

    def threads(self, max_threads: int) -> Threads:
        """Threads separate from those of `run_blocking`: calls that wait for a network must not delay appends."""
        ...

    def abandon_threads(self) -> None:
        """From now on, a cancelled caller of `threads` does not wait for its call, which continues in the background.

        Call this only when the process is ending: at any other time, effects of abandoned calls would come late.
        """
        ...
