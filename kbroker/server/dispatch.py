"""From the bytes of a request to the parts of its reply.

Theory of operation: the header names an API and a version. The dispatcher looks up the handler, decodes the body, runs
the handler and encodes its response. Only this module maps errors to replies:

    error                                     the client gets
    header or body that does not decode       a closed connection
    more elements than the limit              the same
    a reply larger than the limit             the same
    an API or version that is not served      a closed connection; for ApiVersions version 0 with UNSUPPORTED_VERSION
    KafkaError(code)                          the response of this API with the code
    OSError (a log directory)                 the same with KAFKA_STORAGE_ERROR
    any other exception (a bug)               the same with UNKNOWN_SERVER_ERROR; for Produce a closed connection
    CloseConnection, an on_error of None      a closed connection

Produce must never return UNKNOWN_SERVER_ERROR: Java clients then discard the batch's sequence number, and a retry
duplicates the records. After a closed connection they send the same batch again, and the broker recognizes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

from kbroker.broker.client_quotas import ClientQuotas
from kbroker.config.limits import LimitSettings
from kbroker.config.quotas import QuotaSettings
from kbroker.controller.port import VersionNotForwarded
from kbroker.handlers import CloseConnection, Context, Handler, Later
from kbroker.handlers.api_versions import api_versions, unsupported_version
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.metrics import Counter, Histogram, Metrics
from kbroker.runtime.net_ports import Env, Part, Pieces
from kbroker.runtime.turns import Turns
from kbroker.security.authorizing import Authorizer
from kbroker.security.sasl.session import State
from kbroker.server.responses import finder, weigher
from wire.codec import decode, decode_prefix
from wire.errors import ErrorCode, KafkaError, Malformed, TooManyElements, code_of
from wire.framing import RequestHeader, decode_request_header, encode_response_frame
from wire.schema import response_class, schema_of

_PRODUCE, _FETCH = 0, 1
_LARGE_BYTES: Final = 4 * 1024
ELEMENTS_ON_THE_LOOP: Final = 1_000
"""A request or response with more array elements is decoded or encoded in a thread, because it takes milliseconds."""

logger = get_logger(__name__)


class _Route:
    """One API in one version."""

    __slots__ = ("counter", "find_errors", "handler", "has_throttle_time", "looks_for_errors", "times_us", "weigh")

    def __init__(self, handler: Handler[Any], *, counter: Counter, times_us: Histogram) -> None:
        self.handler = handler
        self.counter = counter
        self.times_us = times_us
        self.looks_for_errors = handler.api_key not in (_PRODUCE, _FETCH)  # their handlers set has_errors
        self.find_errors = finder(handler.api_key)
        response = response_class(handler.api_key)
        fields = () if response is None else schema_of(response).fields
        self.has_throttle_time = any(field.name == "throttle_time_ms" for field in fields)
        self.weigh = weigher(handler.api_key) if self.looks_for_errors else None


class Unfinished:
    """A request whose reply comes later: see `Dispatcher.finish`."""

    __slots__ = ("has_errors", "header", "is_large", "later", "route", "started_ns", "throttle_ms")

    def __init__(
        self,
        later: Later,
        header: RequestHeader,
        route: _Route,
        *,
        started_ns: int,
        has_errors: bool,
        is_large: bool,
        throttle_ms: int,
    ) -> None:
        self.later = later
        self.header = header
        self.route = route
        self.started_ns = started_ns
        self.has_errors = has_errors
        self.is_large = is_large
        self.throttle_ms = throttle_ms


class Dispatcher:
    """Answers requests to one broker."""

    def __init__(
        self,
        handlers: Mapping[int, Handler[Any]],
        broker: object,
        *,
        metrics: Metrics,
        env: Env,
        turns: Turns,
        limits: LimitSettings,
        quotas: ClientQuotas | None = None,
    ) -> None:
        self.handlers = handlers
        self._broker = broker
        self._turns = turns
        self._limits = limits
        self.quotas = quotas or ClientQuotas(QuotaSettings())
        self._now_ns = env.now_ns
        # One thread, because each busy thread keeps the interpreter lock from the event loop for 5 ms at a time.
        self._large = env.threads(1)
        self._errors_by_code = metrics.tally("requests.errors_by_code")
        self._faults = metrics.counter("requests.faults")
        self._metrics = metrics
        self._routes: dict[int, _Route] = {}
        for handler in handlers.values():
            self._metrics_of(handler)  # so that the metrics page lists all APIs

    @property
    def authorizer(self) -> Authorizer | None:
        """The authorizer of clients; None allows everything."""
        return getattr(self._broker, "authorizer", None)

    async def answer(self, frame: memoryview, context: Context) -> list[Part] | None:
        """Handle the request in `frame` (without its length). Return the parts of the reply (with its length), or None
        for no reply.

        Errors  CloseConnection
        """
        begun = await self.begin(frame, context)
        return await self.finish(begun, context) if type(begun) is Unfinished else cast("list[Part] | None", begun)

    async def begin(self, frame: memoryview, context: Context) -> list[Part] | Unfinished | None:
        """As `answer`, but return Unfinished instead of waiting for a reply that comes later."""
        try:
            header, body = decode_request_header(frame)
        except Malformed as error:
            raise CloseConnection(f"malformed request header: {error}") from error
        route = self._routes.get(header.api_key << 16 | header.api_version) or self._new_route(header)
        if route is None:
            return self._answer_unknown(header)
        handler, started_ns = route.handler, self._now_ns()
        context.is_large = False
        # A client that has not logged in may send the client id of another client, so it is charged no quota.
        is_known = context.sasl is None or context.sasl.state is State.COMPLETE
        measures = context.measures = is_known and self.quotas.is_active
        if measures:
            context.started_ns, context.waited_ns, context.is_charged = started_ns, 0, False
        if route.looks_for_errors:
            self._turns.begin(started_ns)
            if len(body) >= _LARGE_BYTES and self._turns.due():
                await self._turns.next()
        try:
            try:
                request, _ = decode_prefix(
                    handler.request_class, header.api_version, body, 0, max_elements=ELEMENTS_ON_THE_LOOP
                )
            except TooManyElements:
                context.is_large = True
                request = await self._large.run_blocking(self._decode_large, handler, header, body)
        except Malformed as error:
            api = handler.request_class.__name__
            raise CloseConnection(f"malformed {api} v{header.api_version}: {error}") from error
        route.counter.value += 1
        context.client_id = header.client_id
        context.api_key = header.api_key
        context.api_version = header.api_version
        is_finished = True
        try:
            response = await handler.function(request, self._broker, context)
            if measures or context.throttle_ms:
                self._charge(route, response, context, len(frame))
            if response is None:
                return None
            if type(response) is Later:
                is_finished, has_errors, context.has_errors = False, context.has_errors, False
                return Unfinished(
                    response,
                    header,
                    route,
                    started_ns=started_ns,
                    has_errors=has_errors,
                    is_large=context.is_large,
                    throttle_ms=context.throttle_ms,
                )
            weigh = route.weigh
            if context.is_large or (weigh is not None and weigh(response, ELEMENTS_ON_THE_LOOP)):
                return await self._large.run_blocking(self._reply, header, route, response, context)
            return self._reply(header, route, response, context)
        except CloseConnection:
            raise
        except Exception as error:
            context.has_errors = False
            code = self._code_of(error, handler, header)
            if measures:
                self._charge(route, None, context, len(frame))
            if isinstance(error, VersionNotForwarded):
                raise CloseConnection(str(error)) from error
            refuse = partial(_refuse, header, route, request, code, context.throttle_ms)
            parts = await self._large.run_blocking(refuse) if context.is_large else refuse()
            if parts is None:
                raise CloseConnection(f"{handler.name} failed and has no reply: {error}") from error
            return parts
        finally:
            if is_finished:
                route.times_us.record((self._now_ns() - started_ns) // 1000)

    async def finish(self, begun: Unfinished, context: Context) -> list[Part]:
        """Wait until a response is complete, and return the parts of the reply. Errors: CloseConnection."""
        header, route = begun.header, begun.route
        try:
            context.has_errors = begun.has_errors
            response = await begun.later.complete()
            if begun.throttle_ms:
                response.throttle_time_ms = begun.throttle_ms
            if begun.is_large:
                return await self._large.run_blocking(self._reply, header, route, response, context)
            return self._reply(header, route, response, context)
        except CloseConnection:
            raise
        except Exception as error:
            self._code_of(error, route.handler, header)
            raise CloseConnection(f"{route.handler.name} failed after its records were appended: {error}") from error
        finally:
            context.has_errors = False
            route.times_us.record((self._now_ns() - begun.started_ns) // 1000)

    def refuse(self, frame: memoryview, code: ErrorCode) -> list[Part] | None:
        """The reply to a request that is not handled, None if it has none. Errors: CloseConnection."""
        try:
            header, body = decode_request_header(frame)
            handler = self.handlers.get(header.api_key)
            if handler is None or header.api_version not in handler.versions:
                raise CloseConnection(f"api key {header.api_key} version {header.api_version} is not served")
            request = decode(handler.request_class, header.api_version, body, max_elements=ELEMENTS_ON_THE_LOOP)
        except (Malformed, TooManyElements) as error:
            raise CloseConnection(f"malformed request: {error}") from error
        response = handler.on_error(request, code)
        return None if response is None else _encode(header.correlation_id, response, header.api_version)

    def _charge(self, route: _Route, response: Any, context: Context, size: int) -> None:
        """Charge a request to the quotas of its client, and tell the client how long its connection is muted."""
        handler = route.handler
        if context.measures and not context.is_charged:
            quotas, now_ns = self.quotas, self._now_ns()
            now_ms = now_ns // 1_000_000
            is_produce = handler.api_key == _PRODUCE
            throttle_ms = quotas.charge_produce(context, size, now_ms) if is_produce else 0
            if not (handler.is_exempt or (is_produce and response is None)):
                loop_ns = now_ns - context.started_ns - context.waited_ns
                throttle_ms = max(throttle_ms, quotas.charge_request(context, loop_ns, now_ms))
            context.throttle_ms = max(context.throttle_ms, throttle_ms)
        if response is not None and type(response) is not Later and route.has_throttle_time:
            response.throttle_time_ms = context.throttle_ms

    def _metrics_of(self, handler: Handler[Any]) -> tuple[Counter, Histogram]:
        name = f"requests.{handler.name}"
        return self._metrics.counter(name), self._metrics.histogram(f"{name}.us")

    def _new_route(self, header: RequestHeader) -> _Route | None:
        """The route of a request that is the first of its version; None if the version is not served."""
        handler = self.handlers.get(header.api_key)
        if handler is None or header.api_version not in handler.versions:
            return None
        counter, times_us = self._metrics_of(handler)
        route = self._routes[header.api_key << 16 | header.api_version] = _Route(
            handler, counter=counter, times_us=times_us
        )
        return route

    def _answer_unknown(self, header: RequestHeader) -> list[Part]:
        if header.api_key == api_versions.api_key:
            return _encode(header.correlation_id, unsupported_version(self.handlers), 0)
        raise CloseConnection(f"api key {header.api_key} version {header.api_version} is not served")

    def _decode_large(self, handler: Handler[Any], header: RequestHeader, body: memoryview) -> Any:
        limit = self._limits.kbroker_max_request_elements
        try:
            return decode(handler.request_class, header.api_version, body, max_elements=limit)
        except TooManyElements as error:
            message = f"its arrays have more than {limit} elements (kbroker.max.request.elements)"
            raise TooManyElements(message) from error

    def _reply(self, header: RequestHeader, route: _Route, response: object, context: Context) -> list[Part]:
        """Count the errors of a response and encode it."""
        if route.looks_for_errors or context.has_errors:
            context.has_errors = False
            for code in route.find_errors(response):
                self._errors_by_code.add(route.handler.name, code_of(code).name)
        parts = _encode(header.correlation_id, response, header.api_version)
        limit = self._limits.kbroker_max_reply_bytes
        if route.looks_for_errors and (size := sum([len(part) for part in parts if type(part) is bytes])) > limit:
            message = f"a reply to {route.handler.name} of {size} bytes exceeds {limit} (kbroker.max.reply.bytes)"
            raise CloseConnection(message)
        return parts

    def _code_of(self, error: Exception, handler: Handler[Any], header: RequestHeader) -> ErrorCode:
        """The error code for an exception; logs and counts the exception."""
        api = handler.name
        if isinstance(error, KafkaError):
            code = error.code
            logger.debug("request failed", api=api, code=code.name, message=error)
        elif isinstance(error, OSError):
            code = ErrorCode.KAFKA_STORAGE_ERROR
            logger.exception("a request failed with a storage error", api=api)
        else:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            self._faults.value += 1
            logger.exception("fault in a request", api=api, version=header.api_version, client_id=header.client_id)
        self._errors_by_code.add(api, code.name)
        if code == ErrorCode.UNKNOWN_SERVER_ERROR and handler.api_key == _PRODUCE:
            raise CloseConnection("fault in Produce") from error
        return code


def _refuse(
    header: RequestHeader, route: _Route, request: object, code: ErrorCode, throttle_ms: int
) -> list[Part] | None:
    response = route.handler.refusal(request, code, header.api_version)
    if response is not None and throttle_ms and route.has_throttle_time:
        response.throttle_time_ms = throttle_ms
    return None if response is None else _encode(header.correlation_id, response, header.api_version)


def _encode(correlation_id: int, response: object, version: int) -> list[Part]:
    # This broker's records are bytes, in one or several pieces, or a file range.
    parts = cast("list[Part | Pieces]", encode_response_frame(correlation_id, response, version))
    if len(parts) == 1:
        return cast("list[Part]", parts)
    return [each for part in parts for each in (part.buffers if type(part) is Pieces else (cast("Part", part),))]
