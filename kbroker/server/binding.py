"""Binds the addresses of a node's listeners. They accept no connections before the node is ready.

localhost is bound on 127.0.0.1 and, if possible, on ::1.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from kbroker.config import Settings
from kbroker.config.listeners import PROTOCOLS, is_loopback
from kbroker.config.listeners import Listener as Address
from kbroker.config.tls import TlsSettings
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env, Listener, SocketOptions
from wire.messages.broker_registration import Endpoint

LOCALHOST: Final = "localhost"
EVERY_INTERFACE: Final = (None, "", "0.0.0.0", "::")  # noqa: S104  (compared with, not bound)

BoundListener = tuple[Endpoint, list[Listener]]
"""The address that is advertised to clients, and the bound addresses for which it stands."""

logger = get_logger(__name__)


async def bind(
    env: Env,
    settings: Settings,
    cleanup: ExitStack,
    addresses: Sequence[Address],
    advertised_addresses: Sequence[Address],
) -> list[BoundListener]:
    """Bind addresses; `cleanup` closes them. Errors: OSError, with a message for the operator."""
    advertised = {one.name: one for one in advertised_addresses}
    bound: list[BoundListener] = []
    for one in addresses:
        try:
            listeners = await listen(env, settings, one.host, one.port, accepts=False)
        except OSError as error:
            raise OSError(f"cannot listen on {one}: {error.strerror or error}") from error
        for listener in listeners:
            cleanup.callback(listener.close)
        endpoint = advertised.get(one.name, one)
        port = endpoint.port or listeners[0].port
        # Clients cannot connect to an address that means "every interface".
        host = LOCALHOST if endpoint.host in EVERY_INTERFACE else str(endpoint.host)
        protocol = settings.listeners.protocols[one.name]
        number = PROTOCOLS.index(protocol)
        bound.append((Endpoint(name=one.name, host=host, port=port, security_protocol=number), listeners))
    exposed = [
        f"{endpoint.name} has no {lacking}"
        for endpoint, listeners in bound
        if not is_loopback(listeners[0].host) and (lacking := _lacking(settings, endpoint.name))
    ]
    if exposed:
        logger.warning(f"clients on other machines can connect, but {'; '.join(exposed)}")
    return bound


def _lacking(settings: Settings, name: str) -> str:
    """The protection that a listener does not have; "" if it has TLS and authenticates all clients."""
    protocol = settings.listeners.protocols[name]
    found = []
    if not protocol.startswith("SASL_") and (
        protocol == "PLAINTEXT" or settings.for_listener(TlsSettings, name).ssl_client_auth != "required"
    ):
        found.append("authentication")
    if not protocol.endswith("SSL"):
        found.append("encryption")
    return " and no ".join(found)


async def listen(env: Env, settings: Settings, host: str | None, port: int, *, accepts: bool = True) -> list[Listener]:
    """Listen on one address; without `accepts` only bind it. Errors: OSError."""
    server = settings.server
    options = SocketOptions(
        server.socket_listen_backlog_size,
        server.socket_send_buffer_bytes,
        server.socket_receive_buffer_bytes,
        settings.limits.kbroker_busy_poll_us,
    )
    listen_on = partial(env.listen, options=options, accepts=accepts)
    if host != LOCALHOST:
        return [await listen_on(host or "", port)]
    listeners: list[Listener] = [await listen_on("127.0.0.1", port)]
    try:
        listeners.append(await listen_on("::1", listeners[0].port))
    except OSError as error:
        logger.debug("localhost is served over IPv4 only", error=error)
    return listeners
