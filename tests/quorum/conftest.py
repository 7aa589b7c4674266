"""A controller in memory; all tests here run on virtual time."""

from collections.abc import AsyncIterator
from inspect import iscoroutinefunction

import pytest

from kbroker.client.streaming import Connection
from tests.handlers.conftest import run_on_virtual_time
from tests.quorum.site import Site, controller_site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "quorum" and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_on_virtual_time))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with controller_site() as running:
        yield running


@pytest.fixture
async def client(site: Site) -> Connection:
    return await site.connect()
