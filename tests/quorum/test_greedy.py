"""Valid requests of other nodes with many array elements do not delay the heartbeats at a controller."""

from __future__ import annotations

import pytest

from kbroker import quorum
from tests.greedy import World, greedy_requests
from tests.handlers.test_greedy_requests import CALLS_AT_ONCE, ELEMENTS, reply_bytes, watched
from tests.quorum.site import CLUSTER_ID, controller_site, creation


@pytest.mark.long
async def test_no_array_of_any_request_blocks_the_controller() -> None:
    async with controller_site(kbroker_max_request_elements=ELEMENTS) as site:
        client = await site.connect()
        epoch = await site.register(client, 1)
        assert (await client.ask(creation("t", {index: [1] for index in range(50)}))).topics[0].error_code == 0
        values = {"broker_id": 1, "broker_epoch": epoch, "cluster_id": CLUSTER_ID}
        world = World("t", site.image.topics_by_name["t"].id, "g", values)
        slow: list[str] = []
        answered = 0
        for request in greedy_requests(quorum.discover(), world, max_bytes=400_000, max_elements=ELEMENTS):
            asking = await site.connect()
            with watched() as longest:
                answered += await reply_bytes(asking, request.frame) is not None
            if longest.calls > CALLS_AT_ONCE:
                slow.append(f"{longest.calls} calls: {request}")
        assert not slow, "\n".join(slow)
        assert answered > 50
