"""The APIs that this broker serves.

    @handles(HeartbeatRequest, versions="0-4")
    async def heartbeat(request: HeartbeatRequest, broker: Broker, context: Context) -> HeartbeatResponse: ...

An API with logic of its own has a file, named like its file in `wire.messages`. APIs whose handlers only ask share a
file: controller.py, groups.py, metadata.py and acls.py. docs/apis.md lists the file of each API.

A handler translates between the protocol and the broker's domain, and has no domain logic. It runs in the task of its
connection, one at a time for each connection. It raises errors as `KafkaError`; `kbroker.server.dispatch` makes the
reply.

A handler returns the response; None means no reply (Produce with acks=0). It returns `Later` if the response depends on
other brokers: the connection then handles the next requests of the same API before it waits for the response.

`records` of a request are a view of the connection's receive buffer, which is reused after the handler returns or
raises: nothing may refer to them after that.

A handler asks `Context.may`, `demand` or `denied` before it touches a resource, for each resource apart.
docs/security.md lists what each API asks, and tests/handlers/test_authorization.py checks that list.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from kbroker.broker.change_log import ChangeLog
from kbroker.broker.remote_fetching import Room
from kbroker.controller.port import Sender
from kbroker.coordinator.caller import Caller
from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.runtime.net_ports import Stream
from kbroker.runtime.purgatory import Purgatory
from kbroker.runtime.turns import Turns
from kbroker.security.acls import java_address
from kbroker.security.authorizing import (
    ALL_OPERATIONS,
    CLUSTER_NAME,
    OPERATIONS,
    Authorizer,
    Operation,
    ResourceType,
    bit_field,
)
from kbroker.security.sasl.session import SaslSession
from wire.errors import ErrorCode, KafkaError
from wire.refusals import fitted, refused
from wire.schema import Versions, response_class, schema_of

Request = TypeVar("Request")
Broker = TypeVar("Broker")
Response = TypeVar("Response")


DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error code of a denied operation on a resource of a type."""


class CloseConnection(Exception):
    """Closes a connection without a reply, where none is possible (a bad frame, acks=0). The message is logged."""


class Unbounded:
    """Room without a limit."""

    def share(self, wanted: int) -> int:
        return wanted

    def take(self, size: int) -> None:
        pass


class Later:
    """A response that will be complete after a wait. Its request needs no more work, and can no longer be refused."""

    __slots__ = ("complete",)

    def __init__(self, complete: Callable[[], Awaitable[Any]]) -> None:
        self.complete = complete


@dataclass(slots=True, eq=False)
class Context:
    """A handler's view of the connection of a request. The requests of a connection share one object.

    listener        name of the listener (PLAINTEXT, ...); selects the advertised addresses
    principal       who the client is: ANONYMOUS on a listener without authentication
    authorizer      decides what the client may do; None allows everything
    forwarded_from  the address of the client whose request another broker has forwarded, "" if it is this connection's
    client_id       client id of this request, "" if it has none. Untrusted text: escape it
    api_key         api key of this request
    api_version     version of this request
    room            memory for large replies
    served          the handlers of this server by api key
    has_errors      a handler sets it when its response has error codes, for APIs whose responses are too expensive to
                    search (Produce, Fetch); the dispatcher resets it after counting the errors
    is_large        request or response has many array elements: the response is encoded in a thread
    started_ns      when this request began
    waited_ns       how long it has been suspended since, if `measures`
    measures        clients have quotas, so the time of this request is measured
    is_charged      the handler has charged this request to the quotas of its client, or the request is exempt
    throttle_ms     the connection is muted for this time after its reply
    sasl            the login of the client; None on a listener without SASL
    commits         when the client last committed offsets for a group without a member: monotonic ms by the hash of
                    the group's id
    """

    stream: Stream
    listener: str
    served: Mapping[int, Handler[Any]]
    room: Room = field(default_factory=Unbounded)
    principal: Principal = ANONYMOUS
    authorizer: Authorizer | None = None
    forwarded_from: str = ""
    client_id: str = ""
    api_key: int = -1
    api_version: int = 0
    has_errors: bool = False
    is_large: bool = False
    started_ns: int = 0
    waited_ns: int = 0
    measures: bool = False
    is_charged: bool = False
    throttle_ms: int = 0
    stopping: bool = False
    wait_scope: trio.CancelScope | None = None
    sasl: SaslSession | None = None
    commits: dict[int, int] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The IP address of the client that sent the current request."""
        return self.forwarded_from or self.stream.peer_host

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME, *, is_logged: bool = True
    ) -> bool:
        """Whether the client may perform an operation on a resource. Without is_logged, a denial is not an event: the
        handler asks for another right next, or only leaves the resource out of a list.
        """
        authorizer = self.authorizer
        if authorizer is None or authorizer.allows(self.principal, self.host, operation, resource_type, name):
            return True
        if is_logged:
            self._note_denial(operation, resource_type, name)
        return False

    def _note_denial(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        assert self.authorizer is not None
        api = self.served[self.api_key].name
        self.authorizer.denied(self.principal, self.host, operation, resource_type, name, api=api)

    async def denied(
        self,
        operation: Operation,
        resource_type: ResourceType,
        names: Iterable[str],
        turns: Turns,
        *,
        is_logged: bool = True,
    ) -> Set[str]:
        """Those of the names on which the client may not perform an operation. Asks once for each name."""
        if self.authorizer is None:
            return frozenset()
        found = set()
        for name in set(names):
            if turns.due():
                await turns.next()
            if not self.may(operation, resource_type, name, is_logged=is_logged):
                found.add(name)
        return found

    def operations_on(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The operations that the client may perform on a resource, as a bit field (`bit_field`)."""
        authorizer = self.authorizer
        if authorizer is None:
            return ALL_OPERATIONS[resource_type]
        return bit_field(
            operation
            for operation in OPERATIONS[resource_type]
            if authorizer.allows(self.principal, self.host, operation, resource_type, name)
        )

    def cluster_operations(self) -> int:
        """The operations on the cluster, as a bit field; none if the client may not describe the cluster."""
        may_describe = self.may(Operation.DESCRIBE, ResourceType.CLUSTER)
        return self.operations_on(ResourceType.CLUSTER) if may_describe else 0

    def may_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the client may perform an operation on at least one resource of a type."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows_any(self.principal, self.host, operation, resource_type)

    def demand(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Refuse the whole request unless `may` allows it. Errors: KafkaError with the code of the resource's type."""
        if not self.may(operation, resource_type, name):
            raise KafkaError(DENIED[resource_type])

    @property
    def caller(self) -> Caller:
        """The sender of the current request for the group coordinator, with its address in Java's format."""
        may_describe = None
        if self.authorizer is not None:
            may_describe = partial(
                self.authorizer.allows, self.principal, self.host, Operation.DESCRIBE, ResourceType.TOPIC
            )
        return Caller(self.client_id, f"/{java_address(self.host)}", self.api_version, self.principal, may_describe)

    async def log_changes(self, change_log: ChangeLog, request: object, answer: object) -> None:
        """Log what the current request has changed."""
        await change_log.write(request, answer, principal=self.principal, client_id=self.client_id, peer=self.host)

    @property
    def sender(self) -> Sender:
        """The sender of the current request for the controller."""
        return Sender(self.principal, self.host, self.client_id)

    async def wait(
        self,
        purgatory: Purgatory,
        *keys: Hashable,
        until: Callable[[], bool],
        max_wait_ms: int,
        waits_for_appends: bool = False,
    ) -> bool:
        """Like `Purgatory.wait`, but returns False early when the client closes its connection or the server stops.

        For requests that only serve the client, such as Fetch. Not for Produce: the broker finishes every Produce that
        it has received.
        """
        if until():
            return True
        if max_wait_ms <= 0 or self.stopping:
            return False
        scope = self.wait_scope = trio.CancelScope()
        self.stream.watch(scope.cancel)
        try:
            return await purgatory.park(
                *keys, until=until, max_wait_ms=max_wait_ms, scope=scope, waits_for_appends=waits_for_appends
            )
        finally:
            self.stream.unwatch()
            self.wait_scope = None

    @contextmanager
    def waiting(self, scope: trio.CancelScope, *, for_client: bool = True) -> Iterator[None]:
        """Cancel `scope` if the server stops or, unless for_client is false, the client closes its connection while
        the block runs.
        """
        if self.stopping:
            scope.cancel()
        self.wait_scope = scope
        if for_client:
            self.stream.watch(scope.cancel)
        try:
            yield
        finally:
            if for_client:
                self.stream.unwatch()
            self.wait_scope = None

    def stop(self) -> None:
        """End the current wait, and all later waits at once."""
        self.stopping = True
        if self.wait_scope is not None:
            self.wait_scope.cancel()


class Handler(NamedTuple, Generic[Request]):
    """One API as this broker serves it.

    versions    the versions that are served
    advertised  the versions that ApiVersions names; may be more than those served (Produce: protocol.md 1.3)
    on_error    makes the response for a request that failed as a whole with a code; a result of None closes the
                connection
    is_exempt   request_percentage does not apply: other brokers send the request
    """

    request_class: type[Request]
    api_key: int
    versions: Versions
    advertised: Versions
    on_error: Callable[[Request, ErrorCode], Any]
    function: Callable[[Request, Any, Context], Awaitable[Any]]
    is_exempt: bool = False

    @property
    def name(self) -> str:
        """The API's name in Kafka, such as Produce."""
        return self.request_class.__name__.removesuffix("Request")

    def __call__(self, request: Request, broker: Any, context: Context) -> Awaitable[Any]:
        return self.function(request, broker, context)

    def refusal(self, request: Request, code: ErrorCode, version: int) -> Any:
        """The response for a request of this version that failed as a whole; None closes the connection."""
        response = self.on_error(request, code)
        return None if response is None else fitted(response, version)


def handles(
    request_class: type[Request],
    *,
    versions: str,
    advertised: str | None = None,
    on_error: Callable[[Request, ErrorCode], Any] | None = None,
    is_exempt: bool = False,
) -> Callable[[Callable[[Request, Broker, Context], Awaitable[Response | None]]], Handler[Request]]:
    """Declare that a function serves an API; see `Handler` for the parameters.

    Without `on_error` a failed request gets the error code at the top of its response, or in each result if not every
    version served has a code at the top.
    """
    schema = schema_of(request_class)
    served = Versions.parse(versions)
    declared = schema.versions
    is_declared = declared.lowest <= served.lowest <= served.highest <= declared.highest
    assert is_declared, f"{request_class.__name__} declares {declared}, not {versions}"
    assert schema.api_key is not None
    api_key = schema.api_key
    response = response_class(api_key)
    assert response is not None, f"{request_class.__name__} has no response class"
    has_code_at_top = any(
        field.name == "error_code" and served.lowest in field.versions for field in schema_of(response).fields
    )

    def declare(function: Callable[[Request, Broker, Context], Awaitable[Response | None]]) -> Handler[Request]:
        return Handler(
            request_class=request_class,
            api_key=api_key,
            versions=served,
            advertised=Versions.parse(advertised) if advertised is not None else served,
            on_error=on_error or partial(refused, in_each_result=not has_code_at_top),
            function=function,
            is_exempt=is_exempt,
        )

    return declare


def discover(package: str = __name__) -> dict[int, Handler[Any]]:
    """The handlers of all modules of a package, by api key."""
    found: dict[int, Handler[Any]] = {}
    for module in pkgutil.iter_modules(import_module(package).__path__):
        for value in vars(import_module(f"{package}.{module.name}")).values():
            if isinstance(value, Handler):
                assert found.get(value.api_key, value) is value, f"two handlers for {value.request_class.__name__}"
                found[value.api_key] = value
    return dict(sorted(found.items()))
