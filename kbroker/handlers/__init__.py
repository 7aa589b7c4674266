"""The APIs that this broker serves: one file an API, with the name of its file in `wire.messages`. `ls` is the support
matrix.

    @handles(HeartbeatRequest, versions="0-4", authorize="READ group:{group_id}")
    async def heartbeat(request: HeartbeatRequest, broker: Broker, context: Context) -> HeartbeatResponse: ...

A handler translates between the protocol and the broker's domain, and holds no logic of its own. It runs in the task of
its connection, and only one at a time for each connection. What goes wrong is raised as `KafkaError`;
`kbroker.server.dispatch` makes the reply.

A handler returns the response; None means that there is no reply (Produce with acks=0). When it returns or raises,
nothing may refer to the request's bytes any more: `records` of a request are a view of the connection's receive buffer,
which is then used again.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar

import trio

from kbroker.runtime.net_ports import Stream
from kbroker.runtime.purgatory import Purgatory
from wire.errors import ErrorCode
from wire.schema import MISSING, Field, Versions, response_class, schema_of
from wire.types import Primitive

Request = TypeVar("Request")
Broker = TypeVar("Broker")
Response = TypeVar("Response")


class CloseConnection(Exception):
    """Ends a connection without a reply; the message is for the log. For what has no reply: a bad frame, acks=0."""


class Room(Protocol):
    """Memory for the answer that is being made; it counts as free when the answer has left."""

    def share(self, wanted: int) -> int:
        """Take `wanted` bytes, or fewer, perhaps none, for an answer that can be shorter; how many."""
        ...

    def take(self, size: int) -> None:
        """Take `size` bytes more, or give some back if it is negative."""
        ...


class Unbounded:
    """Room for any answer."""

    def share(self, wanted: int) -> int:
        return wanted

    def take(self, size: int) -> None:
        pass


class Context:
    """What a handler may know of the connection that a request came on. One object serves all requests of a connection,
    in turn.

    listener        the name of the listener (PLAINTEXT, ...), by which advertised addresses are chosen
    client_id       as the client calls itself in this request; "" if it does not. Escape it, it is anything
    api_version     the version of this request
    room            memory for answers that are large
    served          the handlers of this server by api key
    has_errors      the handler says that its response holds error codes, where looking for them in every response would
                    cost too much (Produce, Fetch); it is taken back when they were counted
    is_large        request or response have many array elements: the response is encoded in a thread
    """

    __slots__ = (
        "api_version",
        "client_id",
        "has_errors",
        "is_large",
        "listener",
        "room",
        "served",
        "stopping",
        "stream",
        "wait_scope",
    )

    def __init__(
        self, stream: Stream, *, listener: str, served: Mapping[int, Handler[Any]], room: Room | None = None
    ) -> None:
        self.room = room or Unbounded()
        self.stream = stream
        self.listener = listener
        self.served = served
        self.client_id = ""
        self.api_version = 0
        self.has_errors = False
        self.is_large = False
        self.stopping = False
        self.wait_scope: trio.CancelScope | None = None

    async def wait(self, purgatory: Purgatory, *keys: Hashable, until: Callable[[], bool], max_wait_ms: int) -> bool:
        """As `Purgatory.wait`, but it ends early (False) when the client closes its connection or the server stops.

        For requests whose waiting is of use to the client alone, as Fetch. Not for Produce: what was received is done.
        """
        if until():
            return True
        if max_wait_ms <= 0 or self.stopping:
            return False
        scope = self.wait_scope = trio.CancelScope()
        self.stream.watch(scope.cancel)
        try:
            return await purgatory.park(*keys, until=until, max_wait_ms=max_wait_ms, scope=scope)
        finally:
            self.stream.unwatch()
            self.wait_scope = None

    @contextmanager
    def waiting(self, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel `scope` when the client closes its connection or the server stops, as long as the block runs."""
        if self.stopping:
            scope.cancel()
        self.wait_scope = scope
        self.stream.watch(scope.cancel)
        try:
            yield
        finally:
            self.stream.unwatch()
            self.wait_scope = None

    def stop(self) -> None:
        """End the wait of the request that is waiting now, and of all later ones."""
        self.stopping = True
        if self.wait_scope is not None:
            self.wait_scope.cancel()


@dataclass(frozen=True)
class Handler(Generic[Request]):
    """One API as this broker serves it.

    versions    those that are served; advertised are those that ApiVersions names, which may be more (Produce:
                protocol.md 1.3)
    authorize   what the principal must be allowed to do, as "OPERATION resource-type:{request_attribute}"; None is
                anything
    on_error    the response that says of a whole request that it failed with a code; None as its result closes the
                connection
    """

    request_class: type[Request]
    api_key: int
    versions: Versions
    advertised: Versions
    authorize: str | None
    on_error: Callable[[Request, ErrorCode], Any]
    function: Callable[[Request, Any, Context], Awaitable[Any]]

    @property
    def name(self) -> str:
        """The API's name, as Kafka has it: Produce."""
        return self.request_class.__name__.removesuffix("Request")

    def __call__(self, request: Request, broker: Any, context: Context) -> Awaitable[Any]:
        return self.function(request, broker, context)


def handles(
    request_class: type[Request],
    *,
    versions: str,
    advertised: str | None = None,
    authorize: str | None = None,
    on_error: Callable[[Request, ErrorCode], Any] | None = None,
) -> Callable[[Callable[[Request, Broker, Context], Awaitable[Response | None]]], Handler[Request]]:
    """Declare that a function serves an API; see `Handler` for the parameters.

    `on_error` may be left out where the response has a top-level error_code in every version served.
    """
    schema = schema_of(request_class)
    served = Versions.parse(versions)
    declared = schema.versions
    is_declared = declared.lowest <= served.lowest <= served.highest <= declared.highest
    assert is_declared, f"{request_class.__name__} declares {declared}, not {versions}"
    assert schema.api_key is not None
    api_key = schema.api_key

    def declare(function: Callable[[Request, Broker, Context], Awaitable[Response | None]]) -> Handler[Request]:
        return Handler(
            request_class=request_class,
            api_key=api_key,
            versions=served,
            advertised=Versions.parse(advertised) if advertised is not None else served,
            authorize=authorize,
            on_error=on_error or _with_error_code(request_class, api_key, served),
            function=function,
        )

    return declare


def _with_error_code(
    request_class: type[Request], api_key: int, served: Versions
) -> Callable[[Request, ErrorCode], object]:
    response = response_class(api_key)
    assert response is not None, f"{request_class.__name__} has no response class"
    fields = schema_of(response).fields
    assert any(field.name == "error_code" and served.lowest in field.versions for field in fields), (
        f"{response.__name__} has no error_code at its top: give on_error"
    )
    required = [field for field in fields if field.default is MISSING and field.name != "error_code"]

    def respond(_request: Request, code: ErrorCode) -> object:
        return response(error_code=code, **{field.name: _empty(field) for field in required})

    return respond


def _empty(field: Field) -> object:
    """What a failed request has in a field that has no default."""
    if field.is_array:
        return []
    return field.kind.default if isinstance(field.kind, Primitive) else None


def discover() -> dict[int, Handler[Any]]:
    """The handlers of this package by api key, found by listing it."""
    found: dict[int, Handler[Any]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, Handler):
                assert found.get(value.api_key, value) is value, f"two handlers for {value.request_class.__name__}"
                found[value.api_key] = value
    return dict(sorted(found.items()))
