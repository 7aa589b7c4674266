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
from kbroker.web.gate import gate_of
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
    gate = gate_of(node.settings.observability, node.env.disk)
    logger.info("serving pages", url=f"http://{node.pages_address}/", token=gate is not None)
    if not is_loopback(bound) and (lacking := _lacking(has_token=gate is not None, has_tls=False)):
        logger.warning(f"other machines can reach the pages about this node: {lacking}", address=node.pages_address)
    advertised = (one.host or "" for one in node.settings.listeners.advertised)
    hosts = (host, bound, *advertised, *node.settings.observability.kbroker_http_hosts)
    names = frozenset(name.lower() for name in hosts)
    server = HttpServer(
        node.env,
        _pages(node).get,
        turns=node.turns,
        metrics=node.metrics,
        names=names,
        gate=gate,
        find_public=_public_pages(node).get,
    )
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


def _public_pages(node: Observed) -> dict[str, Page]:
    """The pages for clients without the token: load balancers and container platforms ask them."""
    return {
        "/health": lambda _: health.without_details(health.ready(node)),
        "/health/ready": lambda _: health.without_details(health.ready(node)),
        "/health/live": lambda _: health.without_details(health.live(node)),
    }


def _lacking(*, has_token: bool, has_tls: bool) -> str:
    """What clients on other machines lack for safety; "" if nothing."""
    found = []
    if not has_token:
        found.append("everybody can read them, because kbroker.http.token is not set")
    if not has_tls:
        found.append("everybody on the way can read what is sent, because they have no TLS")
    return "; ".join(found)


def _checked(page: Page) -> Page:
    """The page, with status 400 if it raises ValueError."""

    def reply(query: str) -> Reply:
        try:
            return page(query)
        except ValueError as error:
            return Reply(400, TEXT, (f"{error}\n".encode(),))

    return reply
