"""The active controller in another process, kbroker's or Apache Kafka's.

What a broker asks for itself goes to the controller as it is, and needs the broker's own rights. What its clients ask
goes in an Envelope, with the client's principal and address, so that the controller can authorize the client (KIP-590).

A request is repeated until it is answered or the time for it is over: at another controller if this one does not lead,
and on a new connection if the old one breaks. So the controller may carry out a request twice, as in Kafka. A request
that waits for a controller which no longer leads is repeated at once.

An error of an Envelope itself, such as a lack of the broker's own rights, is not the client's fault. It is logged, and
the client gets UNKNOWN_SERVER_ERROR.

Source: NodeToControllerChannelManager, ForwardingManager and EnvelopeUtils of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final, TypeVar, cast

import trio

from kbroker.client.streaming import Connection
from kbroker.controller.observer import MAX_BACKOFF_MS, NO_ANSWER, MetadataObserver, connect, describe
from kbroker.controller.port import NEWEST_VERSION, Sender, VersionNotForwarded
from kbroker.controller.quorum_view import Address
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.net_ports import Env
from kbroker.runtime.retrying import BackOff
from wire.errors import ErrorCode, KafkaError, Malformed, code_of
from wire.framing import decode_response, encode_request_frame
from wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from wire.schema import schema_of
from wire.stored.frame import encode_value
from wire.stored.principal import DefaultPrincipalData

R = TypeVar("R")

MAX_FORWARDED: Final = 10
"""Requests of clients that are at the controller at a time; others wait. Kafka's brokers forward one at a time."""

_LENGTH_BYTES: Final = 4
_MAX_IDLE: Final = 4
_FIRST_BACKOFF_MS: Final = 50
_LOG_INTERVAL_MS: Final = 30_000
_HINTS: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the principal of this broker needs CLUSTER_ACTION on the cluster",
    ErrorCode.UNSUPPORTED_VERSION: "the controller is older than this broker",
}

logger = get_logger(__name__)


class RemoteController:
    """Satisfies ControllerPort; `run` it while it is used."""

    def __init__(
        self, env: Env, observer: MetadataObserver, *, node_id: int, request_timeout_ms: int, attempt_timeout_ms: int
    ) -> None:
        self._env = env
        self._observer = observer
        self._client_id = str(node_id)
        self._request_timeout_ms = request_timeout_ms
        self._attempt_timeout_ms = attempt_timeout_ms
        self._idle: list[tuple[Address, Connection]] = []
        self._waiting: dict[trio.CancelScope, Address] = {}
        self._forwarding = trio.CapacityLimiter(MAX_FORWARDED)
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)

    async def run(self) -> None:
        """Give up requests to a controller that no longer leads, forever."""
        observer = self._observer
        while True:
            leader = observer.quorum.leader
            await observer.wait_until(lambda: observer.quorum.leader != leader)  # noqa: B023  (awaited here)
            now = observer.quorum.leader
            if now is None:
                continue
            for scope, address in self._waiting.items():
                if address != now:
                    scope.cancel()
            self._close_idle(lambda address: address != now)  # noqa: B023  (called here)

    def close(self) -> None:
        """Close the connections."""
        self._close_idle(lambda _: True)

    @property
    def active_id(self) -> int:
        """See ControllerPort."""
        return self._observer.quorum.leader_id

    async def ask(
        self,
        request: Any,
        response: type[R],
        *,
        version: int = NEWEST_VERSION,
        is_needed: bool = False,  # noqa: ARG002  (the controller has its own disk)
        sender: Sender | None = None,
    ) -> R:
        """See ControllerPort. Errors: also REQUEST_TIMED_OUT after request.timeout.ms."""
        if sender is None:
            answer = await self._repeat(lambda connection: connection.ask(request))
            if code := getattr(answer, "error_code", 0):
                raise KafkaError(code_of(code))
        else:

            async def forward(connection: Connection) -> R | ErrorCode:
                return await _forward(connection, request, response, version, sender)

            async with self._forwarding:
                answer = await self._repeat(forward)
            if isinstance(answer, ErrorCode):
                raise self._not_forwarded(answer, request)
        assert isinstance(answer, response)
        return answer

    def _not_forwarded(self, code: ErrorCode, request: Any) -> KafkaError:
        """Log an error of an Envelope, and return the error for the client."""
        api = type(request).__name__.removesuffix("Request")
        left_out = self._log_limit.admit(code, now_ms=self._env.now_ms())
        if left_out is not None:
            logger.warning(
                "the controller refuses requests that this broker forwards for clients",
                code=code.name,
                api=api,
                hint=_HINTS.get(code, ""),
                left_out=left_out,
            )
        text = f"the controller does not accept the forwarded {api}: {code.name}"
        if code is ErrorCode.UNSUPPORTED_VERSION:
            return VersionNotForwarded(code, text)
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    async def _repeat(self, ask: Callable[[Connection], Any]) -> Any:
        """Ask until there is an answer other than NOT_CONTROLLER; it may be the error of an Envelope."""
        env, backoff = self._env, BackOff(_FIRST_BACKOFF_MS)
        deadline_ms = env.now_ms() + self._request_timeout_ms
        while True:
            address = self._observer.quorum.leader
            reason = "no controller leads"
            if address is not None:
                try:
                    answer = await self._ask_once(address, ask)
                except NO_ANSWER as error:
                    reason = f"{address}: {describe(error)}"
                else:
                    code = answer if isinstance(answer, ErrorCode) else getattr(answer, "error_code", 0)
                    if code != ErrorCode.NOT_CONTROLLER:
                        return answer
                    reason = f"{address} is not the active controller"
            left_ms = deadline_ms - env.now_ms()
            if left_ms <= 0:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"no answer from a controller in {self._request_timeout_ms} ms (request.timeout.ms): {reason}",
                )
            with trio.move_on_after(min(backoff.next_ms(MAX_BACKOFF_MS), left_ms) / 1000):
                await self._observer.wait_until(lambda: self._observer.quorum.leader not in (None, address))  # noqa: B023

    async def _ask_once(self, address: Address, ask: Callable[[Connection], Any]) -> Any:
        """Errors: NO_ANSWER, also if the controller stops leading while it works on the request."""
        connection: Connection | None = None
        with trio.CancelScope() as scope:
            self._waiting[scope] = address
            try:
                with trio.fail_after(self._attempt_timeout_ms / 1000):
                    connection = self._take(address) or await connect(
                        self._env,
                        address,
                        client_id=self._client_id,
                        timeout_ms=self._attempt_timeout_ms,
                        security=self._observer.quorum.security,
                    )
                    answer = await ask(connection)
                if len(self._idle) < _MAX_IDLE and self._observer.quorum.leader == address:
                    self._idle.append((address, connection))
                    connection = None
                return answer
            finally:
                del self._waiting[scope]
                if connection is not None:
                    connection.close()
        raise trio.TooSlowError

    def _take(self, address: Address) -> Connection | None:
        for at, (known, connection) in enumerate(self._idle):
            if known == address:
                del self._idle[at]
                return connection
        return None

    def _close_idle(self, is_closed: Callable[[Address], bool]) -> None:
        for address, connection in self._idle:
            if is_closed(address):
                connection.close()
        self._idle = [each for each in self._idle if not is_closed(each[0])]


async def _forward(
    connection: Connection, request: Any, response: type[R], version: int, sender: Sender
) -> R | ErrorCode:
    """Send a request in an Envelope; returns its response, or the error of the Envelope."""
    if version == NEWEST_VERSION:
        version = connection.protocol.newest_version(type(request)) or schema_of(type(request)).versions.highest
    parts = encode_request_frame(request, version, correlation_id=0, client_id=sender.client_id)
    envelope = EnvelopeRequest(
        request_data=b"".join(cast("list[bytes]", parts))[_LENGTH_BYTES:],  # no part is a file: it has no records
        request_principal=encode_value(
            DefaultPrincipalData(type=sender.principal.kind, name=sender.principal.name, token_authenticated=False), 0
        ),
        client_host_address=_packed(sender.host),
    )
    answer: EnvelopeResponse = await connection.ask(envelope)
    if answer.error_code:
        return code_of(answer.error_code)
    if answer.response_data is None:
        raise Malformed("an Envelope without a response")
    return decode_response(response, version, answer.response_data)[1]


def _packed(host: str) -> bytes:
    try:
        return ip_address(host.partition("%")[0]).packed
    except ValueError:  # a name in a simulated network
        return b"\x7f\0\0\1"
