"""Requests with valid bodies and arbitrary values never meet a fault, and leave a log that can be replayed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from kbroker import quorum
from kbroker.client.streaming import ConnectionClosed
from kbroker.metadata.image import Image
from kbroker.metadata.snapshot import image_records
from tests.quorum.site import CLUSTER_ID, Site, controller_site, creation
from tests.quorum.test_fetch import Copy
from tests.wire.generated import values

APIS = {
    handler.request_class: handler.versions.highest
    for handler in quorum.discover().values()
    if handler.name not in ("ApiVersions", "Fetch")  # Fetch waits
}
REQUESTS = st.sampled_from(sorted(APIS, key=lambda cls: cls.__name__)).flatmap(
    lambda cls: st.tuples(values(cls, APIS[cls]), st.just(APIS[cls]))
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(REQUESTS, min_size=1, max_size=8))
def test_arbitrary_requests_meet_no_fault(requests: list[tuple[Any, int]]) -> None:
    async def main() -> None:
        async with controller_site() as site:
            await prepare(site)
            for request, version in requests:
                client = await site.connect()
                with suppress(ConnectionClosed):  # there is no answer to some requests
                    await client.ask(with_real_ids(site, request), version=version)
            follower = Copy()
            client = await site.connect()
            await follower.follow(client)
            assert follower.image == site.image
            again = Image().apply(list(image_records(site.image)), offset=site.image.offset, epoch=site.image.epoch)
            assert again == site.image

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def prepare(site: Site) -> None:
    client = await site.connect()
    for broker in (0, 1):
        await site.register(client, broker)
    assert (await client.ask(creation("orders", {0: [0, 1], 1: [1, 0]}))).topics[0].error_code == 0


def with_real_ids(site: Site, request: Any) -> Any:
    """Let requests of brokers pass the check of their epoch."""
    if getattr(request, "broker_id", None) in site.image.brokers and hasattr(request, "broker_epoch"):
        request.broker_epoch = site.image.brokers[request.broker_id].epoch
    if hasattr(request, "cluster_id"):
        request.cluster_id = CLUSTER_ID
    return request
