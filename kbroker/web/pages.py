"""Which path is what, and the task that serves them."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kbroker.runtime.net_ports import Listener
from kbroker.web import exposition, health, state
from kbroker.web.broker_metrics import count_isr_changes
from kbroker.web.http import TEXT, HttpServer, Limits, Page, Reply
from kbroker.web.ports import Observed

_INDEX = b"""\
/metrics       for Prometheus
/health        200 when the node is ready, 503 and why when it is not; also as /health/ready
/health/live   200 when the node answers at all
/state         partitions, groups and connections as JSON
"""


class Pages:
    """The pages of one node: run `serve`.

    Shape  on_image is to hear of every image, for what is counted there
    """

    def __init__(self, node: Observed, *, limits: Limits | None = None) -> None:
        self._server = HttpServer(node.env, _pages(node).get, metrics=node.metrics, limits=limits or Limits())
        self.on_image = count_isr_changes(node.metrics, node.settings.node_id)

    async def serve(self, listeners: Sequence[Listener]) -> None:
        """Answer on these addresses until cancelled."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._server.serve, listener)


def _pages(node: Observed) -> dict[str, Page]:
    return {
        "/": lambda: Reply(200, TEXT, (_INDEX,)),
        "/metrics": lambda: Reply(200, exposition.CONTENT_TYPE, exposition.render(node)),
        "/health": lambda: health.ready(node),
        "/health/ready": lambda: health.ready(node),
        "/health/live": lambda: health.live(node),
        "/state": lambda: Reply(200, health.JSON, state.render(node)),
    }
