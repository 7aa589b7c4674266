"""The paths of the pages. Importing this module takes a third as long as importing the broker."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.web import details, exposition, health, state, state_page
from kbroker.web.asked import Asked
from kbroker.web.gate import Gate
from kbroker.web.http import TEXT, HttpServer, Page, Reply
from kbroker.web.ports import Observed
from kbroker.web.view import Views


def pages_server(node: Observed, names: Collection[str], gate: Gate | None) -> HttpServer:
    """A server of the pages of a node under these host names; `gate` admits those who have its token."""
    return HttpServer(
        node.env,
        _pages(node).get,
        turns=node.turns,
        metrics=node.metrics,
        names=names,
        gate=gate,
        find_public=_public_pages(node).get,
        tls=None if node.security is None else node.security.pages,
    )


def _pages(node: Observed) -> dict[str, Page]:
    views = Views(node)
    return {
        "/": state_page.reply,
        "/metrics": lambda _: Reply(200, exposition.CONTENT_TYPE, exposition.render(node)),
        "/health": lambda _: health.ready(node),
        "/health/ready": lambda _: health.ready(node),
        "/health/live": lambda _: health.live(node),
        "/state": lambda _: Reply(200, health.JSON, state.render(node)),
        "/state/view": _checked(lambda query: views.reply(Asked.parse(query))),
        "/state/partition": _checked(lambda query: details.partition_reply(node, query)),
        "/state/group": _checked(lambda query: details.group_reply(node, query)),
    }


def _public_pages(node: Observed) -> dict[str, Page]:
    """The pages for clients without the token: load balancers and container platforms ask them."""
    return {
        "/health": lambda _: health.status_only(node),
        "/health/ready": lambda _: health.status_only(node),
        "/health/live": lambda _: health.alive(),
    }


def _checked(page: Page) -> Page:
    """The page, with status 400 if it raises ValueError."""

    def reply(query: str) -> Reply:
        try:
            return page(query)
        except ValueError as error:
            return Reply(400, TEXT, (f"{error}\n".encode(),))

    return reply
