"""Who sends a request about groups, as the coordinator remembers and shows it."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Protocol

from kbroker.coordinator.shard import Caller
from kbroker.runtime.net_ports import Stream


class Asking(Protocol):
    """What a request's context says of its client; see kbroker.handlers.Context."""

    @property
    def client_id(self) -> str: ...

    @property
    def api_version(self) -> int: ...

    @property
    def stream(self) -> Stream: ...


def caller_of(context: Asking) -> Caller:
    """The sender of a request, with its address as Java writes it."""
    host = context.stream.peer_host
    if ":" in host:
        host = ":".join(f"{int(part, 16):x}" for part in IPv6Address(host.partition("%")[0]).exploded.split(":"))
    return Caller(context.client_id, f"/{host}", context.api_version)
