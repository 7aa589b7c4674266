"""Connections to other brokers of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kbroker.client.streaming import Connection
from kbroker.security.connecting import open_stream
from wire.client import MAX_RESPONSE_BYTES

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker


async def connect_to_peer(
    broker: Broker, peer_id: int, *, client_id: str, timeout_ms: int, max_response_bytes: int = MAX_RESPONSE_BYTES
) -> Connection:
    """A connection to the inter-broker listener of another broker. Errors: OSError."""
    name = broker.settings.listeners.inter_broker_name
    registered = broker.image.brokers.get(peer_id)
    endpoint = None if registered is None or name is None else registered.endpoints.get(name)
    if endpoint is None:
        raise ConnectionError(f"broker {peer_id} is not registered with a listener {name}")
    with trio.move_on_after(timeout_ms / 1000):
        stream = await open_stream(
            broker.env, endpoint.host, endpoint.port, None if broker.security is None else broker.security.inter_broker
        )
        return Connection(stream, client_id=client_id, max_response_bytes=max_response_bytes)
    raise TimeoutError(f"no connection to {endpoint.host}:{endpoint.port} in time")
