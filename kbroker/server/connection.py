"""One connection: requests in, replies out, in one task and in order.

Theory of operation: the task receives until it has a complete frame, handles the request, sends the reply, and repeats.
While more complete frames are in the buffer, the task collects their replies and sends them together. Collected replies
never wait: the task sends them before it receives again, and as soon as a handler suspends. So many pipelined small
requests cost one system call, and a Fetch that waits does not delay earlier replies. A connection has a second task
only while a thread handles a large request: that task receives the next request.

A Produce with acks=all waits for other brokers. The complete Produce requests behind it in the buffer are appended
before that wait, so that followers fetch their records together; the replies follow in order.

The memory of a connection counts against the server's budgets (`Memory`). Until it has logged in, all of its requests
count against a budget of their own, so that strangers take no memory from clients that have logged in. After that a
partly received frame takes bytes from the budget as they arrive; when the budget is exhausted, the task stops
receiving, and TCP flow control stops the client. A frame that arrives complete in one receive is not counted. A reply
is counted only if its client does not accept it at once.

A task that always finds a next frame would block the event loop forever, so it yields after _REQUESTS_BETWEEN_YIELDS
requests, and whenever the millisecond clock has advanced.

The sweeper of `server.tcp` decides whether a connection is idle, a login late, or a frame or reply stuck. For this it
reads plain attributes: the state, the number of requests, and the stream's byte counts.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import Any, Final, TypeVar, cast

import trio

from kbroker.broker.client_quotas import AT_ONCE, Admission
from kbroker.handlers import CloseConnection, Context
from kbroker.runtime.budget import Claim, EvictableClaim
from kbroker.runtime.net_ports import Env, Part, Stream
from kbroker.security.listener import OPEN, HandshakeFailed, ListenerSecurity
from kbroker.security.sasl.session import SaslSession
from kbroker.server.dispatch import Dispatcher, Unfinished
from kbroker.server.login import Begun, Login
from kbroker.server.memory import Memory
from wire.errors import FrameSize, Malformed
from wire.framing import RECEIVE_BYTES, BufferPool, FrameBuffer

Result = TypeVar("Result")

_COLLECT_BYTES: Final = 64 * 1024
_LARGE_BYTES: Final = 128 * 1024
_REQUESTS_BETWEEN_YIELDS: Final = 64
_MAX_UNFINISHED: Final = 64
_SHOWN_CLIENT_ID: Final = 256
_ANSWER_MS: Final = 1_000
"""A client has this time to take the answer to a failed login, so that it cannot keep its connection by not reading."""


class State(IntEnum):
    """The current activity of a connection's task."""

    RECEIVING = 0
    ANSWERING = 1
    SENDING = 2
    WAITING_FOR_MEMORY = 3
    MUTED = 4
    AUTHENTICATING = 5


_INTERRUPTIBLE: Final = (State.RECEIVING, State.WAITING_FOR_MEMORY, State.AUTHENTICATING)


class Connection:
    """One accepted connection.

    Bound  receive buffer: one frame of at most socket.request.max.bytes, which grows as bytes arrive, and the bytes
           received with it; one more frame while a large request is handled. Replies: that of one request,
           _COLLECT_BYTES, and _MAX_UNFINISHED responses to Produce
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
        admission: Admission = AT_ONCE,
        security: ListenerSecurity = OPEN,
        authentication_timeout_ms: int = 0,
        on_authenticated: Callable[[Connection], object] | None = None,
    ) -> None:
        self.stream = stream
        self.frames = FrameBuffer(max_frame_bytes, buffers, max_request_bytes=max_request_bytes)
        self.is_authenticated = security is OPEN
        self.state = State.RECEIVING if security is OPEN else State.AUTHENTICATING
        self.requests = 0
        self.ahead: memoryview | None = None
        self._memory = memory
        self._scope = trio.CancelScope()
        self._claim: Claim | EvictableClaim | None = None  # for the frame being received
        self._answers = EvictableClaim(memory.answers, self._scope.cancel)
        self._context = Context(
            stream,
            listener=listener,
            served=dispatcher.handlers,
            room=self._answers,
            authorizer=dispatcher.authorizer,
        )
        self._dispatcher = dispatcher
        self._admission = admission
        self._security = security
        self._on_authenticated = on_authenticated
        self._authenticates_by_ms = env.now_ms() + admission.delay_ms + authentication_timeout_ms
        self._suspended_ns = 0
        self._yielded_ms = 0
        self._begin: Callable[[memoryview, Context], Awaitable[Begun]] = dispatcher.begin
        self._unfinished: list[Unfinished] = []
        self._env = env
        self._collected: list[Part] = []
        self._collected_size = 0

    async def serve(self) -> None:
        """Handle requests until the client disconnects, a handler closes the connection, or `hang_up` is called.

        Errors  CloseConnection; trio.BrokenResourceError if the client has gone; OSError from a file that is sent
        """
        with self._scope:
            try:
                if not await self._is_admitted():
                    return
                if self._security is not OPEN:
                    await self._authenticate()
                    if self._context.stopping:
                        return
                await _calling_when_suspended(self._serve(), self._on_suspended, self._on_resumed)
            except CloseConnection:
                await _calling_when_suspended(self._send_earlier_replies(), self._on_suspended)
                raise
            finally:
                self._answers.release()
                if self._claim is not None:
                    self._claim.release()
        if not self.is_authenticated and self.is_late(self._env.now_ms()):
            raise CloseConnection("not authenticated within kbroker.authentication.timeout.ms")

    @property
    def listener(self) -> str:
        """The name of the listener that accepted the connection."""
        return self._context.listener

    @property
    def client_id(self) -> str:
        """The client id of the last request, "" if it had none."""
        return self._context.client_id

    @property
    def keeps_others_waiting(self) -> bool:
        """Whether other connections wait for a budget of which the current frame holds bytes."""
        claim = self._claim
        return type(claim) is Claim and claim.held_bytes > 0 and len(claim.budget) > 0

    def is_late(self, now_ms: int) -> bool:
        """Whether the client should have authenticated by now."""
        if self.is_authenticated or now_ms < self._authenticates_by_ms:
            return False
        # A client whose login has failed has been in time.
        login = self._context.sasl
        return login is None or not login.delay_ms or now_ms >= self._authenticates_by_ms + login.delay_ms + _ANSWER_MS

    def note_progress(self) -> None:
        """The sweeper calls this if bytes have moved since its last sweep."""
        self._answers.note_progress()
        if type(self._claim) is EvictableClaim:
            self._claim.note_progress()

    def forget_long_client_id(self) -> None:
        """Between two requests, truncate the client id to the length that pages show."""
        if self.state in (State.RECEIVING, State.MUTED) and len(self._context.client_id) > _SHOWN_CLIENT_ID:
            self._context.client_id = self._context.client_id[:_SHOWN_CLIENT_ID]

    def hang_up(self) -> None:
        """Close the connection now. Do not call it while a request is handled, except to evict the reply's claim."""
        self._scope.cancel()

    def finish(self) -> None:
        """Close the connection after the current request; a request that waits stops waiting."""
        self._context.stop()
        if self.state in _INTERRUPTIBLE and not self._collected:
            self._scope.cancel()

    async def _is_admitted(self) -> bool:
        """Wait if there are too many connections from the address; False if the connection must end then.

        It comes before the handshake and the login, whose cost the quota is to limit.
        """
        delay_ms, is_refused = self._admission
        if not delay_ms:
            return True
        if self._security is OPEN:
            return await self._stay_muted(self._env.now_ms() + delay_ms) and not is_refused
        with trio.CancelScope() as scope, self._context.waiting(scope):
            await self._env.sleep_ms(delay_ms)
        return not scope.cancelled_caught and not is_refused

    async def _authenticate(self) -> None:
        """Do the TLS handshake and the login that the listener requires. Errors: CloseConnection."""
        tls, context = self._security.tls, self._context
        if tls is not None:
            try:
                self.stream = await tls.accept(self.stream)
                if self._security.sasl is None:  # else the login tells who the client is
                    context.principal = tls.principal(self.stream)
            except HandshakeFailed as error:
                raise CloseConnection(f"TLS handshake failed: {error}") from error
            context.stream = self.stream
        if self._security.sasl is not None:
            login = Login(self._dispatcher, SaslSession(self._security.sasl, self.stream.peer_host), context)
            self._begin = login.begin
            await self._log_in(login)
        self.is_authenticated = True
        if self._on_authenticated is not None:
            self._on_authenticated(self)
        self.state = State.RECEIVING

    async def _log_in(self, login: Login) -> None:
        """Answer the requests of a login until it is complete or has failed."""
        frames, session = self.frames, login.session
        max_frame_bytes, frames.max_frame_bytes = frames.max_frame_bytes, session.server.max_receive_bytes
        claim = self._claim = EvictableClaim(self._memory.logins, self._scope.cancel)
        claim.is_evictable = True
        is_over = False
        while not is_over:
            try:
                frame = frames.next_frame()
            except Malformed as error:
                raise _malformed(error, "sasl.server.max.receive.size limits it") from error
            if frame is None:
                if not await self._receive():
                    raise trio.BrokenResourceError  # the client has gone
                continue
            self.requests += 1
            # The frame, and the token that is copied from it. The answer to a failure holds both until it is sent.
            claim.take(2 * len(frame) - claim.held_bytes)
            parts = await login.step(frame, self._context)
            del frame
            data = b"".join(cast("list[bytes]", parts))
            if (sent := self.stream.send_nowait(data)) < len(data):
                await self.stream.send([memoryview(data)[sent:]])
            claim.release()
            is_over = session.is_over
        self._claim = None
        frames.max_frame_bytes = max_frame_bytes

    async def _serve(self) -> None:
        frames, now_ns, since_yield = self.frames, self._env.now_ns, 0
        self._yielded_ms = now_ns() // 1_000_000
        while True:
            try:
                frame, self.ahead = self.ahead or frames.next_frame(), None
            except Malformed as error:
                limits = "socket.request.max.bytes and kbroker.max.request.bytes limit its size"
                raise _malformed(error, limits) from error
            if self._unfinished and not self._may_wait_for_reply(frame):
                await self._finish()
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
                claim.release()  # a complete request is always handled, so its claim cannot be evicted
            try:
                if len(frame) < _LARGE_BYTES:
                    await self._answer_one(frame)
                else:
                    await self._answer_large(frame)
            finally:
                if claim is not None:
                    claim.release()
            if self._context.throttle_ms:
                del frame  # a muted connection must not hold its last request, which may be large
                if not await self._mute():
                    return
            since_yield += 1
            if since_yield == _REQUESTS_BETWEEN_YIELDS or now_ns() // 1_000_000 != self._yielded_ms:
                await self._send_collected()
                await trio.lowlevel.checkpoint()
                self._yielded_ms, since_yield = now_ns() // 1_000_000, 0

    async def _receive(self) -> bool:
        """Receive some bytes of frames; False if the client sends no more."""
        frames = self.frames
        is_cut = frames.pending_bytes > 0
        if is_cut and not self._has_memory():
            await self._wait_for_memory()
        room = frames.room()
        if room is None:
            data = await self.stream.receive(RECEIVE_BYTES)
            received = len(data)
            if data:
                frames.feed(data)
        else:
            received = await self.stream.receive_into(room)
            del room
            if received:
                frames.filled(received)
        if received:
            # While a client sends the pieces of a frame as fast as they are received, other clients get their turns.
            if is_cut and (now_ms := self._env.now_ns() // 1_000_000) != self._yielded_ms:
                self._yielded_ms = now_ms
                await trio.lowlevel.checkpoint()
            return True
        if is_cut:
            raise CloseConnection("the client closed the connection inside a frame")
        return False

    def _has_memory(self) -> bool:
        """Take the memory that the next receive needs for the current frame; False if the budget lacks it."""
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
            claim.is_evictable = self.state in (State.RECEIVING, State.AUTHENTICATING)
        lacking = frames.wanted_bytes - claim.held_bytes
        return lacking <= 0 or claim.try_take(lacking)

    async def _wait_for_memory(self) -> None:
        """Wait until there is memory for the whole current frame."""
        frames, claim = self.frames, self._claim
        assert type(claim) is Claim
        self.state = State.WAITING_FOR_MEMORY
        await claim.take(max(frames.frame_bytes, frames.wanted_bytes) - claim.held_bytes)
        self.state = State.RECEIVING

    async def _answer_large(self, frame: memoryview) -> None:
        """Handle a request whose work runs in a thread, and receive the next frame at the same time.

        A large frame has its own buffer, so the next frame does not overwrite it. At most one frame is received ahead.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            # A muted connection must not hold memory of its next frame. Without quotas, no Produce mutes it.
            if frame[0] == frame[1] == 0 and not self._dispatcher.quotas.is_active:
                nursery.start_soon(self._receive_ahead)
            try:
                await self._answer_one(frame)
                await self._finish()
            except Exception as error:  # noqa: BLE001 - raised again below, not as part of a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self.frames.release(frame)

    async def _receive_ahead(self) -> None:
        """Receive until the next frame is complete. Ignore errors: the next regular receive hits them again."""
        with suppress(CloseConnection, trio.BrokenResourceError, trio.ClosedResourceError, Malformed):
            while self.ahead is None and not self._context.stopping:
                if self.frames.pending_bytes and not self._has_memory():
                    return  # a task must not wait for memory while it holds other memory
                if not await self._receive():
                    return
                self.ahead = self.frames.next_frame()

    async def _answer_one(self, frame: memoryview) -> None:
        self.state = State.ANSWERING
        begun = await self._begin(frame, self._context)
        if type(begun) is Unfinished:
            self._unfinished.append(begun)
            return
        if self._unfinished:
            await self._finish()
        self.state = State.RECEIVING
        if begun is not None:
            await self._collect(cast("list[Part]", begun))

    def _may_wait_for_reply(self, frame: memoryview | None) -> bool:
        """Whether a request may be handled while earlier ones wait for their replies."""
        if frame is None or not 1 < len(frame) < _LARGE_BYTES or len(self._unfinished) >= _MAX_UNFINISHED:
            return False
        return frame[0] == frame[1] == 0  # the api key of Produce

    async def _finish(self) -> None:
        """Wait for the replies that are not complete yet, and collect them in order. Errors: CloseConnection."""
        unfinished, self._unfinished = self._unfinished, []  # if one has no reply, no later one may have one
        for one in unfinished:
            self.state = State.ANSWERING
            await self._collect(await self._dispatcher.finish(one, self._context))
        self.state = State.RECEIVING

    async def _send_earlier_replies(self) -> None:
        """Before the connection is closed, send the replies to the requests before the one that closes it."""
        try:
            await self._finish()
        finally:
            await self._send_collected()

    async def _mute(self) -> bool:
        """Send all replies, and read nothing for the throttle time; False if the client has closed its connection."""
        throttle_ms, self._context.throttle_ms = self._context.throttle_ms, 0
        await self._finish()
        until_ms = self._env.now_ms() + throttle_ms
        await self._send_collected()
        return await self._stay_muted(until_ms)

    async def _stay_muted(self, until_ms: int) -> bool:
        """Read nothing until then, or until the server stops. False if the client has closed its connection.

        If the client sends further requests and then closes the connection, these still wait. When the end of the
        stream wakes this task, it receives once, keeps the bytes, and handles them after the time.
        """
        frames, context = self.frames, self._context
        while not context.stopping and (left_ms := until_ms - self._env.now_ms()) > 0:
            self.state = State.MUTED
            has_more = frames.pending_bytes > 0 or self.ahead is not None
            with trio.CancelScope() as scope, context.waiting(scope, for_client=not has_more):
                await self._env.sleep_ms(left_ms)
            if scope.cancelled_caught and not context.stopping and not await self._receive():
                return False
        self.state = State.RECEIVING
        return True

    async def _collect(self, parts: list[Part]) -> None:
        self._collected += parts
        for part in parts:
            # A file range or a large part justifies its own system call.
            self._collected_size += len(part) if type(part) is bytes else _COLLECT_BYTES
        if self._collected_size >= _COLLECT_BYTES:
            await self._send_collected()

    async def _send_collected(self) -> None:
        if self._collected:
            parts, size, self._collected, self._collected_size = self._collected, self._collected_size, [], 0
            if size < _COLLECT_BYTES:  # then all parts are bytes
                data = b"".join(cast("list[bytes]", parts))
                size = len(data)
                sent = self.stream.send_nowait(data)
                if sent == size:
                    return
                parts = [memoryview(data)[sent:]]
            else:
                # Other parts are file ranges, or bytes from the tier that were counted when they were read.
                size = sum([len(part) for part in parts if type(part) is bytes])
            self.state = State.SENDING
            self._answers.is_evictable = True
            await _calling_when_suspended(self.stream.send(parts), partial(self._answers.take, size), once=True)
            self._answers.is_evictable = False
            self._answers.release()
            self.state = State.ANSWERING if self._unfinished else State.RECEIVING

    def _on_suspended(self) -> None:
        """The handler of a request waits: send the replies to earlier requests."""
        if self.state is State.ANSWERING:
            self._send_collected_nowait()
            if self._context.measures:
                self._suspended_ns = self._env.now_ns()

    def _on_resumed(self) -> None:
        if self._suspended_ns:
            self._context.waited_ns += self._env.now_ns() - self._suspended_ns
            self._suspended_ns = 0

    def _send_collected_nowait(self) -> None:
        """Send what the network accepts at once. Stop at a file, because reading it may block on the disk."""
        collected = self._collected
        while collected and isinstance(part := collected[0], bytes | bytearray | memoryview):
            try:
                sent = self.stream.send_nowait(part)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the task gets the same error at its next send; do not disturb the current request
            if sent < len(part):
                collected[0] = memoryview(part)[sent:]
                return
            del collected[0]


def _malformed(error: Malformed, limits: str) -> CloseConnection:
    """The reason to close a connection; it names the limits only if they matter."""
    return CloseConnection(f"malformed frame: {error}" + (f"; {limits}" if isinstance(error, FrameSize) else ""))


@types.coroutine
def _calling_when_suspended(
    coroutine: Coroutine[Any, Any, Result],
    call: Callable[[], None],
    resumed: Callable[[], None] | None = None,
    *,
    once: bool = False,
) -> Generator[Any, Any, Result]:
    """Run `coroutine`; call `call()` each time it suspends, or the first time only, and `resumed()` after that."""
    resume = partial(coroutine.send, None)
    is_due = True
    while True:
        try:
            trapped = resume()
        except StopIteration as finished:
            result: Result = finished.value
            return result
        if is_due:
            call()
            is_due = not once
        try:
            answer = yield trapped
        except BaseException as error:  # noqa: BLE001 - handed on to the coroutine, as `yield from` would
            resume = partial(coroutine.throw, error)
        else:
            resume = partial(coroutine.send, answer)
        if resumed is not None:
            resumed()
