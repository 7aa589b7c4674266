"""The paths of the pages, and the task that serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from kbroker.config.listeners import is_loopback
from kbroker.config.observability import http_address
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Listener
from kbroker.web import details, exposition, health, state, state_page
from kbroker.web.broker_metrics import count_isr_changes
from kbroker.web.http import TEXT, HttpServer, Page, Reply
from kbroker.web.ports import Observed
from kbroker.web.view import Asked, Views

Listen = Callable[[str, int], Awaitable[Sequence[Listener]]]

logger = get_logger(__name__)


@asynccontextmanager
async def serving_pages(node: Observed, listen: Listen) -> AsyncIterator[Callable[[Image, Delta], None]]:
    """Serve the pages of a node on the address in its settings; yields a listener for metadata images.

    Errors  OSError if the address cannot be used
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
    logger.info("serving pages", url=f"http://{node.pages_address}/")
    if not is_loopback(bound):
        logger.warning("other machines can read the pages about this node: the pages have no authentication")
    advertised = (one.host or "" for one in node.settings.listeners.advertised)
    hosts = (host, bound, *advertised, *node.settings.observability.kbroker_http_hosts)
    names = frozenset(name.lower() for name in hosts)
    server = HttpServer(node.env, _pages(node).get, turns=node.turns, metrics=node.metrics, names=names)
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(server.serve, listener)
            yield count_isr_changes(node.metrics, node.settings.node_id)
            nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.close()


def _pages(node: Observed) -> dict[str, Page]:
    views = Views(node)
    return {
        "/": state_page.reply,
        "/metrics": lambda _: Reply(200, exposition.CONTENT_TYPE, exposition.render(node)),
        "/health": lambda _: health.ready(node),
        "/health/ready": lambda _: health.ready(node),
        "/health/live": lambda _: health.live(node),
        "/state": lambda _: Reply(200, health.JSON, state.render(node)),
        "/state/view": _checked(lambda query: Reply(200, health.JSON, views.render(Asked.parse(query)))),
        "/state/partition": _checked(lambda query: details.partition_reply(node, query)),
        "/state/group": _checked(lambda query: details.group_reply(node, query)),
    }


def _checked(page: Page) -> Page:
    """The page, with status 400 if it raises ValueError."""

    def reply(query: str) -> Reply:
        try:
            return page(query)
        except ValueError as error:
            return Reply(400, TEXT, (f"{error}\n".encode(),))

    return reply
