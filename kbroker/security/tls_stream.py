"""A stream over TLS: it sends and receives encrypted bytes over another stream.

Theory of operation: OpenSSL works on two buffers in memory (`ssl.MemoryBIO`), so the same code runs over sockets and
over the simulated network, and every wait is one of the inner stream. Encryption runs on the event loop in pieces of at
most _PIECE_BYTES, about 0.1 ms, with a checkpoint between the pieces of a long message.

A peer chooses how much work its bytes are: 64 KiB can hold 2,400 key updates, which OpenSSL does not limit and which
take 30 to 60 ms. So OpenSSL gets at most _RECORDS records at once, about 1 ms of work, with a checkpoint in between.

Two tasks may use the stream, one to receive and one to send. Ciphertext must leave in the order in which OpenSSL made
it. OpenSSL also makes some while it reads (alerts, answers to key updates): the receiving task sends it if no other
task is sending, else it leaves with the next piece that is sent. A peer that asks for such answers and does not read
them loses its connection.

Source  RFC 5246, RFC 8446; the ssl module of Python
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from kbroker.runtime.net_ports import FileBytes, Part, Stream
from kbroker.runtime.ports import Buffer, File
from kbroker.security.listener import HandshakeFailed

_PIECE_BYTES: Final = 128 * 1024
_RECEIVE_BYTES: Final = 64 * 1024
_HANDSHAKE_RECEIVE_BYTES: Final = 16 * 1024
_HANDSHAKE_BYTES: Final = 256 * 1024
"""More than any chain of certificates that OpenSSL accepts (100 KiB), in both directions."""
_UNREAD_BYTES: Final = 64 * 1024
_RECORDS: Final = 64
_RECORD_HEAD: Final = 5
_RECORD_TYPES: Final = (21, 22)
"""The first byte of an alert and of a handshake message."""

_ABOUT_CERTIFICATES: Final = ("unknown ca", "bad certificate", "certificate unknown", "certificate expired")
"""Ends of OpenSSL's names of the alerts for foreign authorities, other host names and expired certificates."""

Compute = Callable[[Callable[[], None]], Awaitable[None]]


class Range(NamedTuple):
    """A piece of a file that is sent; see `FileBytes`."""

    file: File
    position: int
    size: int


class TlsStream:
    """One side of a TLS connection; see `kbroker.runtime.net_ports.Stream`. `handshake` comes first.

    Bound  one piece of ciphertext in each direction, and _UNREAD_BYTES of answers that the peer does not read
    """

    def __init__(
        self,
        inner: Stream,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        self.peer_host = inner.peer_host
        self.peer_port = inner.peer_port
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._unsent: Buffer = b""  # ciphertext that the inner stream has not taken yet
        self._encrypted_ahead = 0  # bytes of the caller that `_unsent` holds, and that it will send again
        self._received = b""  # ciphertext for OpenSSL
        self._record_left = 0  # missing bytes of a record whose beginning OpenSSL has
        self._is_sending = False
        self._is_closed = False

    @property
    def received_bytes(self) -> int:
        """See `Stream`; counts ciphertext."""
        return self._inner.received_bytes

    @property
    def sent_bytes(self) -> int:
        """See `Stream`; counts ciphertext."""
        return self._inner.sent_bytes

    async def handshake(self, compute: Compute | None = None) -> None:
        """Do the handshake; a server computes each step by `compute`, which may use a thread.

        Errors  HandshakeFailed; trio.BrokenResourceError
        """
        is_first = True
        while True:
            try:
                if compute is None:
                    self.tls.do_handshake()
                elif not is_first:
                    await compute(self.tls.do_handshake)
                else:
                    raise ssl.SSLWantReadError
            except ssl.SSLWantReadError:
                await self._send_outgoing()
            except ssl.SSLError as error:
                self._send_outgoing_nowait()  # the alert
                raise HandshakeFailed(_reason(error)) from error
            else:
                await self._send_outgoing()
                return
            if is_first:
                is_first = False
                self._received = await self._inner.receive(_HANDSHAKE_RECEIVE_BYTES)
                if self._received and self._received[0] not in _RECORD_TYPES:
                    raise HandshakeFailed("the peer does not speak TLS; its security.protocol is probably PLAINTEXT")
            if not await self._more(_HANDSHAKE_RECEIVE_BYTES):
                raise HandshakeFailed("the peer closed the connection")
            if self._inner.received_bytes > _HANDSHAKE_BYTES:
                raise HandshakeFailed(f"the peer sent more than {_HANDSHAKE_BYTES} bytes")

    async def receive(self, max_bytes: int) -> bytes:
        buffer = bytearray(min(max_bytes, _RECEIVE_BYTES))
        return bytes(memoryview(buffer)[: await self.receive_into(buffer)])

    async def receive_into(self, buffer: memoryview | bytearray) -> int:
        view = memoryview(buffer)
        filled, size, is_first = 0, len(view), True
        while True:
            try:
                while filled < size:
                    if not (read := self.tls.read(size - filled, view[filled:])):
                        return filled  # the peer has sent its last byte
                    filled += int(read)
                return filled
            except ssl.SSLWantReadError:
                if self._outgoing.pending or self._unsent:
                    self._send_answers()
                if filled:
                    return filled
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return filled
            except ssl.SSLError as error:
                if self._is_closed:
                    raise trio.ClosedResourceError("we closed the connection") from error
                self._send_answers()
                raise trio.BrokenResourceError(f"TLS: {_reason(error)}") from error
            if not is_first:  # a peer that sends records without data must not keep this task running
                await trio.lowlevel.checkpoint()
            is_first = False
            if not await self._more(_RECEIVE_BYTES):
                self._incoming.write_eof()

    async def _more(self, max_bytes: int) -> bool:
        """Give OpenSSL the next records, or the first part of one; False if the peer sends no more."""
        data = self._received
        if len(data) >= _RECORD_HEAD:
            await trio.lowlevel.checkpoint()
        else:
            if not (received := await self._inner.receive(max_bytes)):
                return False
            data += received
        end, left, size = 0, self._record_left, len(data)
        for _ in range(_RECORDS):
            if not left:
                if size - end < _RECORD_HEAD:
                    break
                left = _RECORD_HEAD + (data[end + 3] << 8 | data[end + 4])
            taken = min(left, size - end)
            end, left = end + taken, left - taken
        self._incoming.write(data if end == size else data[:end])
        self._received, self._record_left = data[end:], left
        return True

    def send_nowait(self, data: Buffer) -> int:
        if self._is_sending or not self._flush_nowait():
            return 0
        sent, self._encrypted_ahead = self._encrypted_ahead, 0
        rest = memoryview(data)[sent : sent + _PIECE_BYTES]
        if rest:
            self._encrypt(rest)
            if self._flush_nowait():
                sent += len(rest)
            else:
                # The caller sends these bytes again, and this skips them: `sent` counts what the network has taken.
                self._encrypted_ahead = len(rest)
        return sent

    async def send(self, parts: Sequence[Part]) -> None:
        self._is_sending = True
        try:
            await self._flush()
            pending = bytearray()
            for part in parts:
                if isinstance(part, bytes | bytearray | memoryview):
                    rest = memoryview(part)
                    if skipped := min(self._encrypted_ahead, len(rest)):
                        self._encrypted_ahead -= skipped
                        rest = rest[skipped:]
                    while len(pending) + len(rest) > _PIECE_BYTES:
                        room = _PIECE_BYTES - len(pending)
                        if pending:
                            pending += rest[:room]
                            await self._send_piece(pending)
                            pending = bytearray()
                        else:
                            await self._send_piece(rest[:room])
                        rest = rest[room:]
                    pending += rest
                    continue
                position, end = part.position, part.position + part.size
                while position < end:
                    size = min(_PIECE_BYTES - len(pending), end - position)
                    data = await self._inner.read_range(Range(part.file, position, size))
                    position += size
                    if size < _PIECE_BYTES:
                        pending += data
                        if len(pending) < _PIECE_BYTES:
                            continue
                        data, pending = pending, bytearray()
                    await self._send_piece(data)
            if pending:
                self._encrypt(pending)
                await self._flush()
        finally:
            self._is_sending = False

    async def _send_piece(self, piece: Buffer) -> None:
        self._encrypt(piece)
        await self._flush()
        await trio.lowlevel.checkpoint()

    async def read_range(self, part: FileBytes) -> Buffer:
        return await self._inner.read_range(part)

    def watch(self, on_peer_closed: Callable[[], object]) -> None:
        self._inner.watch(on_peer_closed)

    def unwatch(self) -> None:
        self._inner.unwatch()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError):
            with suppress(ssl.SSLWantReadError):  # this side does not wait for the other one's end
                self.tls.unwrap()
            if not self._is_sending:
                self._flush_nowait()
        self._inner.close()

    def _encrypt(self, data: Buffer) -> None:
        try:
            self.tls.write(data)
        except ssl.SSLError as error:
            raise trio.BrokenResourceError(f"TLS: {_reason(error)}") from error

    async def _flush(self) -> None:
        """Send all ciphertext. The caller has set `_is_sending`."""
        while self._unsent or self._outgoing.pending:
            if self._unsent:
                data: Buffer = self._unsent
                self._unsent = b""
            else:
                data = self._outgoing.read()
            await self._inner.send([data])

    def _flush_nowait(self) -> bool:
        """Send the ciphertext that the network takes at once; whether that was all."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = self._outgoing.read()
            sent = self._inner.send_nowait(self._unsent)
            if sent < len(self._unsent):
                self._unsent = memoryview(self._unsent)[sent:]
                return False
            self._unsent = b""
        return True

    async def _send_outgoing(self) -> None:
        self._is_sending = True
        await self._flush()
        self._is_sending = False

    def _send_outgoing_nowait(self) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self._flush_nowait()

    def _send_answers(self) -> None:
        """Send what OpenSSL made while it read, unless the sending task will."""
        if not self._is_sending:
            self._send_outgoing_nowait()
        if self._outgoing.pending + (0 if self._is_sending else len(self._unsent)) > _UNREAD_BYTES + _PIECE_BYTES:
            raise trio.BrokenResourceError("TLS: the peer does not read the answers that it asks for")


def _reason(error: ssl.SSLError) -> str:
    """The text of an error for the log, without OpenSSL's file and line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason and reason.endswith(_ABOUT_CERTIFICATES):
        return f"the peer does not accept this certificate: {reason}"
    return reason
