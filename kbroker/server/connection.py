"""One connection: requests in, replies out, in one task and in order.

Theory of operation: the task receives until a frame is whole, answers it, and sends the reply, and so on. While further
whole frames are in the buffer, their replies are collected and leave together, but never wait for anything: before the
task receives, and at the first moment that a handler suspends, what was collected is sent. So a client that pipelines
small requests costs one system call for many of them, and a Fetch that waits holds back none of the replies before it.
There is no queue for a connection, and a second task only while a large request is answered, whose work is done in a
thread: it receives the next request meanwhile.

What a connection has in memory counts against budgets of the server (`Memory`). A frame of which only a part has come
takes its bytes as they arrive; where there are none left, the task stops receiving until there are, and the network
stops the client. A frame that comes whole in one receive costs nothing. An answer counts when its client does not take
it at once.

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
from functools import partial
from typing import Any, TypeVar

import trio

from kbroker.handlers import CloseConnection, Context
from kbroker.runtime.budget import Claim, EvictableClaim, EvictingBudget, SplitBudget
from kbroker.runtime.net_ports import Env, Part, Stream
from kbroker.server.dispatch import Dispatcher
from wire.errors import Malformed
from wire.framing import RECEIVE_BYTES, BufferPool, FrameBuffer

Result = TypeVar("Result")

_COLLECT_BYTES = 64 * 1024
_LARGE_BYTES = 128 * 1024
_SMALL_BYTES = 2 * 1024 * 1024
"""Twice what producers send by default: such a request never waits for larger ones to find memory."""
_REQUESTS_BETWEEN_YIELDS = 64
_SHOWN_CLIENT_ID = 256


class Memory:
    """The budgets that all connections of a server share.

    Bound  max_request_bytes: a quarter for requests of which one receive has brought a part (`cut`); the rest for
           larger ones, of which those of up to _SMALL_BYTES have a half for themselves (`requests`). A negative number
           is no bound. max_answer_bytes: answers that clients have not taken
    """

    def __init__(self, *, max_request_bytes: int, max_answer_bytes: int) -> None:
        quarter = max_request_bytes // 4 if max_request_bytes >= 0 else -1
        self.cut = EvictingBudget(quarter)
        self.requests = SplitBudget(3 * quarter, small_bytes=_SMALL_BYTES)
        self.answers = EvictingBudget(max_answer_bytes)

    @property
    def request_bytes(self) -> int:
        """Those of all requests that arrive or are answered."""
        return self.cut.used_bytes + self.requests.used_bytes

    @property
    def evicted(self) -> int:
        """How many connections were ended to make room."""
        return self.cut.evicted + self.answers.evicted


class State(IntEnum):
    """What the task of a connection does."""

    RECEIVING = 0
    ANSWERING = 1
    SENDING = 2
    WAITING_FOR_MEMORY = 3


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
        memory: Memory,
        buffers: BufferPool | None = None,
    ) -> None:
        self.stream = stream
        self.frames = FrameBuffer(max_frame_bytes, buffers, max_request_bytes=max_request_bytes)
        self.state = State.RECEIVING
        self.requests = 0
        self.ahead: memoryview | None = None
        self._memory = memory
        self._scope = trio.CancelScope()
        self._claim: Claim | EvictableClaim | None = None  # for the frame under way
        self._answers = EvictableClaim(memory.answers, self._scope.cancel)
        self._context = Context(stream, listener=listener, served=dispatcher.handlers, room=self._answers)
        self._answer = dispatcher.answer
        self._env = env
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
            finally:
                self._answers.release()
                if self._claim is not None:
                    self._claim.release()

    @property
    def listener(self) -> str:
        """The name of the listener that it came by."""
        return self._context.listener

    @property
    def client_id(self) -> str:
        """As the client called itself in its last request; "" if it did not."""
        return self._context.client_id

    @property
    def keeps_others_waiting(self) -> bool:
        """Whether others wait for memory of which the frame under way has some."""
        claim = self._claim
        return type(claim) is Claim and claim.held_bytes > 0 and len(claim.budget) > 0

    def note_progress(self) -> None:
        """Bytes have moved since the sweeper looked last."""
        self._answers.note_progress()
        if type(self._claim) is EvictableClaim:
            self._claim.note_progress()

    def forget_long_client_id(self) -> None:
        """Between two requests, keep no more of the client's name than there is room to show."""
        if self.state is State.RECEIVING and len(self._context.client_id) > _SHOWN_CLIENT_ID:
            self._context.client_id = self._context.client_id[:_SHOWN_CLIENT_ID]

    def hang_up(self) -> None:
        """End the connection now. Not while it is answering, but for a client that lost its claim on the answer."""
        self._scope.cancel()

    def finish(self) -> None:
        """End the connection after the request that is answered now; one that waits stops waiting."""
        self._context.stop()
        if self.state in (State.RECEIVING, State.WAITING_FOR_MEMORY) and not self._collected:
            self._scope.cancel()

    async def _serve(self) -> None:
        frames, now_ms = self.frames, self._env.now_ms
        yielded_ms, since_yield = now_ms(), 0
        while True:
            try:
                frame, self.ahead = self.ahead or frames.next_frame(), None
            except Malformed as error:
                bounds = "socket.request.max.bytes and kbroker.max.request.bytes bound it"
                raise CloseConnection(f"malformed frame: {error}; {bounds}") from error
            if frame is None:
                await self._send_collected()
                if self._context.stopping:
                    return
                if not await self._receive():
                    return
                continue
            self.requests += 1
            claim, self._claim = self._claim, None
            if type(claim) is EvictableClaim:
                claim.release()  # what was received is answered, whatever else happens
            try:
                if len(frame) < _LARGE_BYTES:
                    await self._answer_one(frame)
                else:
                    await self._answer_large(frame)
            finally:
                if claim is not None:
                    claim.release()
            since_yield += 1
            if since_yield == _REQUESTS_BETWEEN_YIELDS or now_ms() != yielded_ms:
                await trio.lowlevel.checkpoint()
                yielded_ms, since_yield = now_ms(), 0

    async def _receive(self) -> bool:
        """Receive some bytes of frames; False if the client sends no more."""
        frames = self.frames
        if frames.pending_bytes and not self._has_memory():
            await self._wait_for_memory()
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

    def _has_memory(self) -> bool:
        """Take what the next receive needs for the frame under way; False if that is not to be had now."""
        frames, claim = self.frames, self._claim
        if claim is None:
            if not (size := frames.frame_bytes):
                return True
            if size > RECEIVE_BYTES:
                claim = self._memory.requests.claim(size)
            else:
                claim = EvictableClaim(self._memory.cut, self._scope.cancel)
            self._claim = claim
        if type(claim) is EvictableClaim:
            claim.is_evictable = self.state is State.RECEIVING
        lacking = frames.wanted_bytes - claim.held_bytes
        return lacking <= 0 or claim.try_take(lacking)

    async def _wait_for_memory(self) -> None:
        """Wait until there is memory for all of the frame under way."""
        frames, claim = self.frames, self._claim
        assert type(claim) is Claim
        self.state = State.WAITING_FOR_MEMORY
        await claim.take(max(frames.frame_bytes, frames.wanted_bytes) - claim.held_bytes)
        self.state = State.RECEIVING

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
            while self.ahead is None and not self._context.stopping:
                if self.frames.pending_bytes and not self._has_memory():
                    return  # what waits holds nothing else
                if not await self._receive():
                    return
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
            parts, self._collected, self._collected_size = self._collected, [], 0
            # Parts that are not bytes are files, or from the tier, and these were counted when they were read.
            size = sum([len(part) for part in parts if type(part) is bytes])
            if len(parts) == 1 and isinstance(only := parts[0], bytes):
                sent = self.stream.send_nowait(only)
                if sent == size:
                    return
                parts = [memoryview(only)[sent:]]
            self.state = State.SENDING
            self._answers.is_evictable = True
            await _calling_at_first_suspension(self.stream.send(parts), partial(self._answers.take, size))
            self._answers.is_evictable = False
            self._answers.release()
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
