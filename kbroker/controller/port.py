"""How a broker asks the active controller: with requests that are values, so that they can travel.

A request is an object of one of Kafka's request classes (CreateTopics, AlterPartition, AllocateProducerIds,
BrokerHeartbeat, ...), which a decision answers (decisions.py). Handlers and the rest of the broker see only this port.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kbroker.metadata.principal import ANONYMOUS, Principal
from wire.errors import KafkaError

Response = TypeVar("Response")

NEWEST_VERSION: Final = 32_767
"""Above all versions of requests."""


class Sender(NamedTuple):
    """The client that sent a request to this broker. host is an IP address."""

    principal: Principal = ANONYMOUS
    host: str = "127.0.0.1"
    client_id: str = ""


class VersionNotForwarded(KafkaError):
    """The controller does not know the version of a client's request. The client's connection is closed, as in Kafka,
    because the broker's ApiVersions has promised this version.
    """


class ControllerPort(Protocol):
    """Asks the active controller for decisions.

    active_id  the node id of the active controller as this node knows it, -1 if none is known
    """

    @property
    def active_id(self) -> int: ...

    async def ask(
        self,
        request: Any,
        response: type[Response],
        *,
        version: int = NEWEST_VERSION,
        is_needed: bool = False,
        sender: Sender | None = None,
    ) -> Response:
        """Have a request decided. The decision is committed before this returns; it is also in effect on this broker
        if the controller is in its process.

        response   the class of the response
        version    the version in which a client sent the request
        is_needed  the broker needs the topics that the request creates to read or copy data, so that a controller may
                   create them on a nearly full disk
        sender     the client that sent the request; None if the broker itself asks, with its own rights
        Errors     KafkaError if the request as a whole failed; for a client's request UNKNOWN_SERVER_ERROR if the
                   controller does not accept the broker's Envelope, VersionNotForwarded
        """
        ...
