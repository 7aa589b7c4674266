"""Connections to an S3 store: a bounded pool, request bodies that are read while they are sent, and answers that are
received directly into their final memory.

The `http.client` of the standard library writes and parses HTTP/1.1. A connection serves one request at a time, and
returns to the pool once its answer is read or discarded.
"""

from __future__ import annotations

import hashlib
import io
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from queue import Empty, LifoQueue
from select import POLLIN, poll
from typing import Any, Final
from xml.etree import ElementTree

from kbroker.runtime.ports import File
from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError, StoreMisconfigured
from kbroker.tiered.minio_credentials import Keys
from kbroker.tiered.minio_settings import MinioSettings
from wire.crc32c import crc32c

TRANSPORT_ERRORS: Final = (HTTPException, OSError)
_BLOCK_BYTES: Final = 1 << 20
_LARGEST_ANSWER: Final = 64 << 20
_ERROR: Final = re.compile(rb"\s*(<\?xml[^>]*>\s*)?<Error[\s>]")
_AT_A_TIME: Final = 512 << 10
"""The system wakes a waiting thread only when this much has arrived. For 1 GB over loopback this takes 0.17 s of
processor time, against 0.28 s with the default of 64 KiB per wake-up; larger values save nothing more.
"""


class Deadline:
    """The end of one call. Source of time: a monotonic clock in nanoseconds."""

    __slots__ = ("_clock", "_end_ns", "what")

    def __init__(self, clock: Callable[[], int], milliseconds: float, what: str) -> None:
        self._clock, self._end_ns, self.what = clock, clock() + int(milliseconds * 1e6), what

    def seconds_left(self) -> float:
        """Always positive. Errors: RetriableRemoteStorageError after the deadline."""
        left = (self._end_ns - self._clock()) / 1e9
        if left <= 0:
            raise RetriableRemoteStorageError(f"{self.what}: took longer than allowed")
        return left


class Body:
    """A request body that can be sent repeatedly: it is read block by block each time and never held as a whole.

    Errors  RemoteStorageError for a file that cannot be read, or has become shorter
    """

    def __init__(self, source: File | bytes, position: int = 0, size: int | None = None, *, sign: bool = False) -> None:
        self._source, self._position = source, position
        self._size = len(source) if isinstance(source, bytes) else source.size() if size is None else size
        checksum = 0
        digest = hashlib.sha256() if sign else None
        for block in self:
            checksum = crc32c(block, checksum)
            if digest is not None:
                digest.update(block)
        self.crc32c: int = checksum
        self.sha256: str | None = None if digest is None else digest.hexdigest()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        if isinstance(self._source, bytes):
            yield self._source
            return
        done = 0
        while done < self._size:
            wanted = min(_BLOCK_BYTES, self._size - done)
            try:
                block = self._source.pread(wanted, self._position + done)
            except OSError as error:
                raise RemoteStorageError(f"{self._source.path} cannot be read: {error}") from error
            if len(block) < wanted:
                raise RemoteStorageError(f"{self._source.path} is shorter than {self._position + self._size} bytes")
            yield block
            done += wanted


def parse_xml(data: bytes) -> ElementTree.Element:
    """Errors: ElementTree.ParseError, also for unknown encodings and for DTDs, whose entities could expand too far."""
    if b"<!DOCTYPE" in data:
        raise ElementTree.ParseError("it has a DTD")
    try:
        return ElementTree.fromstring(data.strip())  # noqa: S314  (no DTDs, and expat bounds entities)
    except (LookupError, ValueError) as error:
        raise ElementTree.ParseError(str(error)) from None


class Refused(Exception):
    """The store answers with an error.

    Shape  code is S3's name of the error, or empty; keys signed the request, if the sender sets them
    """

    def __init__(self, status: int, reason: str, body: bytes) -> None:
        super().__init__(reason)
        self.keys: Keys | None = None
        self.status, self.code, self.reason = status, "", reason
        try:
            error = parse_xml(body)
        except ElementTree.ParseError:
            return
        if code := error.findtext("{*}Code"):
            self.code, self.reason = code, f"{code}: {error.findtext('{*}Message')}"


class _Timed(io.RawIOBase):
    """The bytes that arrive on a connection. Each wait respects the deadline, also within the head of an answer and
    between its chunks, where http.client waits any number of times.
    """

    def __init__(self, stream: io.RawIOBase, connected: socket.socket, deadline: Deadline) -> None:
        self._stream, self._connected, self._deadline = stream, connected, deadline
        self._pause_s: float = connected.gettimeout() or deadline.seconds_left()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._connected.settimeout(min(self._pause_s, self._deadline.seconds_left()))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, connected: socket.socket, *, method: str | None = None, deadline: Deadline) -> None:
        super().__init__(connected, method=method)
        self.fp: Any = io.BufferedReader(_Timed(self.fp.detach(), connected, deadline))


class Answer:
    """A success whose body is still to be read, or discarded.

    Shape   left_bytes is the number of unread bytes, None if the store does not announce it
    Errors  RetriableRemoteStorageError after the deadline, Refused, and TRANSPORT_ERRORS
    """

    def __init__(self, response: HTTPResponse, connected: socket.socket, free: Callable[[bool], None]) -> None:
        self.status, self.headers = response.status, response.headers
        self._response, self._connected, self._free = response, connected, free
        self._is_free = False
        if response.length == 0:
            self._end()

    @property
    def left_bytes(self) -> int | None:
        return self._response.length

    def read(self, deadline: Deadline) -> bytes:
        """The unread rest. The deadline is checked after each piece, so a slow sender cannot stall."""
        data = bytearray()
        try:
            while piece := self._response.read1(_BLOCK_BYTES):
                deadline.seconds_left()
                data += piece
                if len(data) > _LARGEST_ANSWER:
                    raise RemoteStorageError(f"{deadline.what}: an answer of more than {_LARGEST_ANSWER} bytes")
            if self._response.length:
                raise IncompleteRead(bytes(data), self._response.length)
        except BaseException:
            self.discard()
            raise
        self._end()
        # S3 starts some answers with a success status and reports the error in the body.
        if self.status >= 300 or _ERROR.match(data):
            raise Refused(self.status if self.status >= 300 else 500, self._response.reason, bytes(data))
        return bytes(data)

    def receive_into(self, view: memoryview, deadline: Deadline) -> int:
        """Read a part of a body of known length into a non-empty view: as much as fits, unless the connection is slow;
        0 at the end.

        On a plain socket one call fills the whole view: returning to Python for each piece would wait for the
        interpreter lock each time.
        """
        left_s, left_bytes, stream = deadline.seconds_left(), self._response.length, self._response.fp
        if not left_bytes:
            return 0
        place = view[:left_bytes]
        if type(self._connected) is socket.socket:
            held = len(stream.peek())
            received = 0
            if 0 < held < len(place):
                received = _receive_all(self._connected, place[held:], left_bytes - held, left_s)
            # Buffered bytes last: fresh memory is mapped at the first write, better in recv_into, outside of the lock.
            received += stream.readinto1(place[:held]) if held else 0
        else:
            received = stream.readinto1(place)
        self._response.length = left_bytes - received
        if received == left_bytes:
            self._end()
        return received

    def discard(self) -> None:
        """Do not read the rest: this closes the connection, unless the body has been read completely."""
        self._end(reusable=False)

    def _end(self, *, reusable: bool = True) -> None:
        if not self._is_free:
            self._is_free = True
            self._response.close()
            self._free(reusable)


class Connections:
    """At most `connections_max` connections to the host of the store.

    Errors  RetriableRemoteStorageError after the deadline, Refused, and TRANSPORT_ERRORS
    """

    def __init__(self, host: str, settings: MinioSettings) -> None:
        self._connect_s, self._read_s = settings.connect_timeout_ms / 1000, settings.read_timeout_ms / 1000
        self._closed = False
        # The connection that was used last is the first to be used again; the unused ones are not open.
        self._free: LifoQueue[HTTPConnection] = LifoQueue()
        context = _trusting(settings.ca_file) if settings.secure else None
        for _ in range(settings.connections_max):
            self._free.put(HTTPConnection(host) if context is None else HTTPSConnection(host, context=context))

    def request(self, method: str, target: str, headers: Mapping[str, str], body: Body, deadline: Deadline) -> Answer:
        """Send a request and receive the head of its answer, which is a success."""
        try:
            connection = self._free.get(timeout=deadline.seconds_left())
        except Empty:
            raise TimeoutError("all connections are in use") from None
        try:
            connected = self._connect(connection, deadline)
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            # A store may answer before it has read the body, and close the connection.
            with suppress(BrokenPipeError, ConnectionResetError):
                for block in body:
                    deadline.seconds_left()
                    connection.send(block)
            connection.response_class = partial(_Response, deadline=deadline)  # type: ignore[assignment]
            response = connection.getresponse()
        except BaseException:
            self._release(connection, reusable=False)
            raise
        answer = Answer(response, connected, lambda reusable: self._release(connection, reusable=reusable))
        if answer.status >= 300:
            answer.read(deadline)
        return answer

    def _connect(self, connection: HTTPConnection, deadline: Deadline) -> socket.socket:
        """Open the connection, also if the store has closed it while it was idle."""
        if connection.sock is not None:
            idle = poll()
            idle.register(connection.sock, POLLIN)
            if idle.poll(0):
                connection.close()
        if connection.sock is None:
            connection.timeout = min(self._connect_s, deadline.seconds_left())
            connection.connect()
        connected: socket.socket = connection.sock
        connected.settimeout(min(self._read_s, deadline.seconds_left()))
        return connected

    def _release(self, connection: HTTPConnection, *, reusable: bool) -> None:
        if self._closed or not reusable:
            connection.close()
        self._free.put(connection)

    def close(self) -> None:
        """Close the idle connections; the others are closed when their answers end."""
        self._closed = True
        idle: list[HTTPConnection] = []
        with suppress(Empty):
            while True:
                idle.append(self._free.get_nowait())
        for connection in idle:
            self._release(connection, reusable=False)


def _trusting(ca_file: str) -> ssl.SSLContext:
    """Errors: StoreMisconfigured, if the file cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise StoreMisconfigured(f"rsm.config.ca.file={ca_file}: {error}") from None


def _receive_all(connected: socket.socket, place: memoryview, left_bytes: int, left_s: float) -> int:
    """Receive until the view is full, the body ends, or the connection pauses too long; left_bytes are to come."""
    pause_s = connected.gettimeout()
    wait_us = max(1, int((left_s if pause_s is None else min(pause_s, left_s)) * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", *divmod(wait_us, 1_000_000)))
    connected.settimeout(None)
    try:
        # Wait for large pieces only while that many bytes are still to come.
        eagerly = min(len(place), left_bytes - _AT_A_TIME)
        received = 0
        if eagerly >= _AT_A_TIME:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _AT_A_TIME)
            try:
                received = _wait_for(connected, place[:eagerly])
            finally:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if received < eagerly:  # fewer bytes than the wake-up limit may have arrived
                return received + _wait_for(connected, place[received:], socket.MSG_DONTWAIT)
        return received + (_wait_for(connected, place[received:]) if received < len(place) else 0)
    finally:
        connected.settimeout(pause_s)


def _wait_for(connected: socket.socket, place: memoryview, flags: int = socket.MSG_WAITALL) -> int:
    """Receive until the view is full, the body ends, or the connection pauses too long."""
    try:
        return connected.recv_into(place, len(place), flags)
    except BlockingIOError:
        return 0
