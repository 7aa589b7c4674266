"""The sender of a request, in the form that the group coordinator stores and that log warnings show."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Protocol

from kbroker.coordinator.shard import Caller
from kbroker.metadata.principal import Principal
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.net_ports import Stream

logger = get_logger(__name__)


class Asking(Protocol):
    """The client of a request; see kbroker.handlers.Context."""

    @property
    def principal(self) -> Principal: ...

    @property
    def client_id(self) -> str: ...

    @property
    def api_version(self) -> int: ...

    @property
    def stream(self) -> Stream: ...


def caller_of(context: Asking) -> Caller:
    """The sender of a request, with its address in Java's format."""
    host = context.stream.peer_host
    if ":" in host:
        host = ":".join(f"{int(part, 16):x}" for part in IPv6Address(host.partition("%")[0]).exploded.split(":"))
    return Caller(context.client_id, f"/{host}", context.api_version, context.principal)


def warn_unserved(what: str, context: Asking, limit: RateLimitedLog, *, now_ms: int) -> None:
    """Log that a client uses an unimplemented feature; at most one line for each address and interval of the limit."""
    peer = context.stream.peer_host
    left_out = limit.admit((what, peer), now_ms=now_ms)
    if left_out is not None:
        logger.warning(what, peer=peer, client_id=context.client_id, left_out=left_out)
