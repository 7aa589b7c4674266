"""One connection: requests in, replies out, in one task and in order.

Theory of operation: the task receives until a frame is whole, answers it, and sends the reply, and so on. While further
whole frames are in the buffer, their replies are collected and leave together, but never wait for anything: before the
task receives, and at the first moment that a handler suspends, what was collected is sent. So a client that pipelines
small requests costs one system call for many of them, and a Fetch that waits holds back none of the replies before it.
There is no queue for a connection, and a second task only while a large request is answered, whose work is done in a
thread: it receives the next request meanwhile.

A task that always finds its next frame would hold the event loop for ever; it yields when the clock has moved or after
so many requests.

What the sweeper of `server.tcp` needs to know (is the connection idle, is a frame or a reply stuck?) is kept as plain
attributes that cost nothing to keep: the state, the number of requests, and the streams' counts of bytes.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from enum import IntEnum
from typing import Any, TypeVar

import trio

from kbroker.handlers import CloseConnection, Context
from kbroker.runtime.net_ports import Env, Part, Stream
from kbroker.server.dispatch import Dispatcher
from wire.errors import Malformed
from wire.framing import RECEIVE_BYTES, BufferPool, FrameBuffer

Result = TypeVar("Result")

_COLLECT_BYTES = 64 * 1024
_LARGE_BYTES = 128 * 1024
_REQUESTS_BETWEEN_YIELDS = 64


class State(IntEnum):
    """What the task of a connection does."""

    RECEIVING = 0
    ANSWERING = 1
    SENDING = 2


class Connection:
    """One accepted connection.

    Bound  the receive buffer: one frame of at most socket.request.max.bytes, grown as bytes arrive, and what came with
           it; while a large request is answered, one frame more; replies: those of one request, and _COLLECT_BYTES
    """

    def __init__(
        self,
        stream: Stream,
        *,
        listener: str,
        dispatcher: Dispatcher,
        env: Env,
        max_frame_bytes: int,
        max_request_bytes: int,
        buffers: BufferPool | None = None,
    ) -> None:
        self.stream = stream
        self.frames = FrameBuffer(max_frame_bytes, buffers, max_request_bytes=max_request_bytes)
        self.state = State.RECEIVING
        self.requests = 0
        self.ahead: memoryview | None = None
        self._context = Context(stream, listener=listener, served=dispatcher.handlers)
        self._answer = dispatcher.answer
        self._env = env
        self._scope = trio.CancelScope()
        self._collected: list[Part] = []
        self._collected_size = 0

    async def serve(self) -> None:
        """Answer requests until the client leaves, the connection is to be closed, or `hang_up`.

        Errors  CloseConnection; trio.BrokenResourceError when the client has gone; OSError from a file that is sent
        """
        with self._scope:
            try:
                await self._serve()
            except CloseConnection:
                await self._send_collected()  # what was answered before stays answered
                raise

    @property
    def listener(self) -> str:
        """The name of the listener that it came by."""
        return self._context.listener

    @property
    def client_id(self) -> str:
        """As the client called itself in its last request; "" if it did not."""
        return self._context.client_id

    def hang_up(self) -> None:
        """End the connection now. Not while it is answering, but for a client that lost its claim on the answer."""
        self._scope.cancel()

    def finish(self) -> None:
        """End the connection after the request that is answered now; one that waits stops waiting."""
        self._context.stop()
        if self.state is State.RECEIVING and not self._collected:
            self._scope.cancel()

    async def _serve(self) -> None:
        frames, now_ms = self.frames, self._env.now_ms
        yielded_ms, since_yield = now_ms(), 0
        while True:
            try:
                frame, self.ahead = self.ahead or frames.next_frame(), None
            except Malformed as error:
                raise CloseConnection(f"malformed frame: {error}") from error
            if frame is None:
                await self._send_collected()
                if self._context.stopping:
                    return
                if not await self._receive():
                    return
                continue
            self.requests += 1
            if len(frame) < _LARGE_BYTES:
                await self._answer_one(frame)
            else:
                await self._answer_large(frame)
            since_yield += 1
            if since_yield == _REQUESTS_BETWEEN_YIELDS or now_ms() != yielded_ms:
                await trio.lowlevel.checkpoint()
                yielded_ms, since_yield = now_ms(), 0

    async def _receive(self) -> bool:
        """Receive some bytes of frames; False if the client sends no more."""
        frames = self.frames
        room = frames.room()
        if room is None:
            data = await self.stream.receive(RECEIVE_BYTES)
            if data:
                frames.feed(data)
                return True
        else:
            received = await self.stream.receive_into(room)
            del room
            if received:
                frames.filled(received)
                return True
        if frames.pending_bytes:
            raise CloseConnection("the connection ended inside a frame")
        return False

    async def _answer_large(self, frame: memoryview) -> None:
        """Answer a request whose work leaves the event loop, and receive what follows it meanwhile.

        A large frame has a buffer of its own, so the next one does not touch it. At most one frame is received ahead.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive_ahead)
            try:
                await self._answer_one(frame)
            except Exception as error:  # noqa: BLE001 - raised again below, not as part of a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self.frames.release(frame)

    async def _receive_ahead(self) -> None:
        """Receive until the next frame is whole. What goes wrong is found again by the receive that comes next."""
        with suppress(CloseConnection, trio.BrokenResourceError, trio.ClosedResourceError, Malformed):
            while self.ahead is None and not self._context.stopping and await self._receive():
                self.ahead = self.frames.next_frame()

    async def _answer_one(self, frame: memoryview) -> None:
        self.state = State.ANSWERING
        if self._collected:
            parts = await _calling_at_first_suspension(self._answer(frame, self._context), self._send_collected_nowait)
        else:
            parts = await self._answer(frame, self._context)
        self.state = State.RECEIVING
        if parts is None:
            return
        self._collected += parts
        for part in parts:
            # A range of a file, or a large part, is worth its own system call.
            self._collected_size += len(part) if type(part) is bytes else _COLLECT_BYTES
        if self._collected_size >= _COLLECT_BYTES:
            await self._send_collected()

    async def _send_collected(self) -> None:
        if self._collected:
            self.state = State.SENDING
            parts, self._collected, self._collected_size = self._collected, [], 0
            await self.stream.send(parts)
            self.state = State.RECEIVING

    def _send_collected_nowait(self) -> None:
        """Send what the network takes at once. A file stops it, for it might have to be read from the disk."""
        collected = self._collected
        while collected and isinstance(part := collected[0], bytes | bytearray | memoryview):
            try:
                sent = self.stream.send_nowait(part)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the task finds the same when it sends; the request that it is at is not disturbed
            if sent < len(part):
                collected[0] = memoryview(part)[sent:]
                return
            del collected[0]


@types.coroutine
def _calling_at_first_suspension(
    coroutine: Coroutine[Any, Any, Result], call: Callable[[], None]
) -> Generator[Any, Any, Result]:
    """Run `coroutine`, and `call()` when it suspends for the first time, if it does."""
    try:
        trapped = coroutine.send(None)
    except StopIteration as finished:
        result: Result = finished.value
        return result
    call()
    while True:
        try:
            try:
                answer = yield trapped
            except BaseException as error:  # noqa: BLE001 - handed on to the coroutine, as `yield from` would
                trapped = coroutine.throw(error)
            else:
                trapped = coroutine.send(answer)
        except StopIteration as finished:
            result = finished.value
            return result
