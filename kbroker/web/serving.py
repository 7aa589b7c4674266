"""The task that serves the pages.

The modules of the pages and of HTTP are imported at the start or, for nodes in tests, in a thread at the first
connection: few tests look at pages, and the import takes 40 ms.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from kbroker.config.listeners import is_loopback
from kbroker.config.observability import http_address
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Listener
from kbroker.runtime.retrying import accept
from kbroker.web.gate import Gate, gate_of
from kbroker.web.isr_changes import count_isr_changes
from kbroker.web.ports import Observed

if TYPE_CHECKING:
    from kbroker.web.http import HttpServer

Listen = Callable[[str, int], Awaitable[Sequence[Listener]]]

logger = get_logger(__name__)


@asynccontextmanager
async def serving_pages(
    node: Observed, listen: Listen, *, on_demand: bool = False
) -> AsyncIterator[Callable[[Image, Delta], None]]:
    """Serve the pages of a node on the address in its settings; yields a listener for metadata images.

    `on_demand` imports the pages at the first connection. Errors: OSError if the address cannot be used
    """
    address = node.settings.observability.kbroker_http_listener
    assert address is not None, "the caller checks that pages are on"
    host, port = http_address(address)
    try:
        listeners = await listen(host, port)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error
    bound = listeners[0].host
    node.pages_address = f"{f'[{bound}]' if ':' in bound else bound}:{listeners[0].port}"
    gate = gate_of(node.settings.observability, node.env.disk)
    has_tls = node.security is not None and node.security.pages is not None
    scheme = "https" if has_tls else "http"
    logger.info("serving pages", url=f"{scheme}://{node.pages_address}/", token=gate is not None)
    if not is_loopback(bound) and (lacking := _lacking(has_token=gate is not None, has_tls=has_tls)):
        logger.warning(f"other machines can reach the pages about this node: {lacking}", address=node.pages_address)
    advertised = (one.host or "" for one in node.settings.listeners.advertised)
    hosts = (host, bound, *advertised, *node.settings.observability.kbroker_http_hosts)
    pages = _Pages(node, frozenset(name.lower() for name in hosts), gate)
    try:
        if not on_demand:
            pages.load()
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(pages.serve, listener)
            yield count_isr_changes(node.metrics, node.settings.node_id)
            nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.close()


class _Pages:
    """The server of the pages, which is made when it is needed."""

    def __init__(self, node: Observed, names: Collection[str], gate: Gate | None) -> None:
        self._node = node
        self._names = names
        self._gate = gate
        self._server: HttpServer | None = None
        self._loading = trio.Lock()  # there may be several listeners

    def load(self) -> HttpServer:
        """The server. Blocking, because of the import."""
        from kbroker.web.pages import pages_server  # noqa: PLC0415  (see above)

        if self._server is None:
            self._server = pages_server(self._node, self._names, self._gate)
        return self._server

    async def serve(self, listener: Listener) -> None:
        """Accept and answer until cancelled."""
        first = None
        if self._server is None:
            first = await accept(listener, self._node.env, _cannot_accept)
            try:
                async with self._loading:
                    await self._node.env.run_blocking(self.load)
            except BaseException:
                first.close()
                raise
        await self.load().serve(listener, first=first)


def _cannot_accept(error: OSError) -> None:
    logger.debug("cannot accept connections to the pages; will retry", error=error)


def _lacking(*, has_token: bool, has_tls: bool) -> str:
    """What clients on other machines lack for safety; "" if nothing."""
    found = []
    if not has_token:
        found.append("everybody can read them, because kbroker.http.token is not set")
    if not has_tls:
        found.append("everybody on the way can read what is sent, because they have no TLS")
    return "; ".join(found)
