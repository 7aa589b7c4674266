"""The data of the state page, in memory: order, pages, search, and who may make the node do how much."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from trio.testing import MockClock

from kbroker.metadata.image import PartitionImage
from kbroker.web.asked import Asked
from kbroker.web.partition_tables import OFFLINE, OK, REASSIGNING, UNDER_MIN_ISR, UNDER_REPLICATED, trouble_of
from kbroker.web.sorting import Order, Sorted
from kbroker.web.view import MAX_KEPT, Views
from tests.handlers.test_consumer_group_heartbeat import join as join_consumer_group
from tests.handlers.transactions import add_partitions, init
from tests.web.asking import Browser, get
from tests.web.test_pages import commit, create, find_coordinator, observed, produce


async def view(env: Any, query: str = "") -> Any:
    got = await get(env, f"/state/view?{query}")
    assert got.status == 200, got.body
    return got.json


def _page(order: str, keys: list[tuple[int, str]]) -> tuple[list[Any], int, int]:
    table = Sorted(Order.parse(order, ("n",)), 10)
    for key in keys:
        table.add(key)
    steps = table.page()
    while True:
        try:
            assert next(steps) == b""
        except StopIteration as ended:
            return tuple(ended.value)


@pytest.mark.parametrize("order", ["n", "-n"])
@pytest.mark.parametrize("page", [0, 3, 129, 500])
def test_pages_are_slices_of_the_sorted_rows(order: str, page: int) -> None:
    keys = [((7 * number) % 1_299, f"name {number}") for number in range(1_299)]
    expected = sorted(keys, reverse=order != "n")
    found, number, total = _page(f"{order}.{page}", keys)
    assert (number, total) == (min(page, 129), 1_299)
    assert found == expected[number * 10 : number * 10 + 10]


def test_an_empty_table_has_one_empty_page() -> None:
    assert _page("n.4", []) == ([], 0, 0)


async def test_partitions_are_searched_sorted_and_paged_by_the_node() -> None:
    async with observed() as (broker, client):
        await create(client, "Orders", partitions=120)
        await create(client, "small", partitions=1)
        await produce(client, "Orders", records=9, index=77)
        first = await view(broker.env, "search=order")
        last = await view(broker.env, "search=order&partitions=name.2")
        beyond = await view(broker.env, "search=order&partitions=name.9")
        largest = await view(broker.env, "partitions=size&topics=-name")
        nothing = await view(broker.env, "search=" + quote("<none>"))
    assert (first["partitions"]["count"], first["topics"]["count"], first["totals"]["partitions"]) == (120, 1, 121)
    assert [row["partition"] for row in first["partitions"]["rows"]] == list(range(50))
    assert [row["partition"] for row in last["partitions"]["rows"]] == list(range(100, 120))
    assert beyond["partitions"] == last["partitions"]
    assert largest["partitions"]["rows"][0]["partition"] == 77
    assert largest["partitions"]["rows"][0]["offsets"]["log_end"] == 9
    assert [row["name"] for row in largest["topics"]["rows"]] == ["small", "Orders"]
    assert nothing["partitions"]["rows"] == nothing["topics"]["rows"] == []


async def test_groups_and_open_transactions_are_shown_with_lag_and_time() -> None:
    async with observed() as (broker, client):
        await create(client, "t", partitions=2)
        await produce(client, "t", records=5)
        await find_coordinator(client, "g")
        await commit(client, "g", "t", {0: 2, 1: 0})
        await add_partitions(client, "x", *(await init(client, "x")), ("t", 1))
        await init(client, "idle")
        found = await view(broker.env, "groups=lag")
        group = (await get(broker.env, "/state/group?group=g")).json
    (row,) = found["groups"]["rows"]
    assert (row["group_id"], row["type"], row["lag"], row["offsets"], row["unknown"]) == ("g", "classic", 3, 2, 0)
    assert [(one["partition"], one["lag"]) for one in group["offsets"]] == [(0, 3), (1, 0)]
    (row,) = found["transactions"]["rows"]
    assert (row["transactional_id"], row["state"], row["partitions"]) == ("x", "Ongoing", ["t-1"])
    assert row["start_timestamp_ms"] <= found["at_ms"]


async def test_a_group_of_the_new_protocol_is_shown_with_its_members() -> None:
    async with observed() as (broker, client):
        await create(client, "t", partitions=2)
        await find_coordinator(client, "g")
        assert (await join_consumer_group(client)).error_code == 0
        (row,) = (await view(broker.env))["groups"]["rows"]
        group = (await get(broker.env, "/state/group?group=g")).json
    assert (row["type"], row["state"], row["members"], row["is_steady"]) == ("consumer", "Stable", 1, True)
    assert (group["member_count"], group["members"][0]["client_id"]) == (1, 'a "client"\n')
    assert group["group_epoch"] == group["assignment_epoch"] > 0


@pytest.mark.parametrize(
    "query",
    [
        "view?partitions=secret",
        "view?partitions=name.-1",
        "view?partitions=name.99999999999",
        "view?page=1",
        "view?topics=name.%D9%A3",
        "view?search=" + "x" * 3_000,
        "view?" + "search=1&" * 50,
        "partition?" + "topic=1&" * 50,
        "group?" + "group=1&" * 50,
    ],
)
async def test_a_bad_query_is_refused(query: str) -> None:
    async with observed() as (broker, _client):
        assert (await get(broker.env, f"/state/{query}")).status == 400


@pytest.mark.parametrize(
    "path",
    [
        "partition",
        "partition?topic=t&partition=-1",
        "partition?topic=t&partition=9",
        "partition?topic=t&partition=" + "9" * 5_000,
        "partition?topic=..%2f..%2fetc&partition=0",
        "group",
        "group?group=unknown",
    ],
)
async def test_details_of_what_does_not_exist_are_absent(path: str) -> None:
    async with observed() as (broker, client):
        await create(client, "t")
        got = await get(broker.env, f"/state/{path}")
    assert got.status == 404
    assert "error" in got.json


async def test_a_view_is_kept_for_a_second_and_only_so_many(autojump_clock: MockClock) -> None:
    async with observed() as (broker, client):
        await create(client, "a")
        before = await view(broker.env)
        await create(client, "b")
        assert await view(broker.env) == before
        autojump_clock.jump(1.1)
        assert (await view(broker.env))["totals"]["topics"] == 2

        views = Views(broker.node)
        for number in range(3 * MAX_KEPT):
            list(views.reply(Asked.parse(f"search={number}")).pieces)
        assert len(views._kept) == MAX_KEPT


async def test_the_page_and_its_data_hold_no_secret() -> None:
    async with observed() as (broker, client):
        await create(client, "t")
        browser = await Browser.connect(broker.env)
        page = await browser.get("/")
        data = (await browser.get("/state/view")).body
        detail = (await browser.get("/state/partition?topic=t&partition=0")).body
    assert page.headers["content-type"].startswith("text/html")
    assert b"://" not in page.body.replace(b"http://www.w3.org/2000/svg", b""), "no outside assets"
    for text in (data, detail):
        assert not {"settings", "config", "configs"} & set(json.loads(text))


def _partition(*isr: int, leader: int = 1, adding: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage((1, 2, 3), isr, leader, 0, 0, adding_replicas=adding)


@pytest.mark.parametrize(
    ("partition", "min_isr", "trouble"),
    [
        (_partition(1, 2, 3), 2, OK),
        (_partition(1, 2), 2, UNDER_REPLICATED),
        (_partition(1), 2, UNDER_MIN_ISR),
        (_partition(1, 2, 3), 5, OK),
        (_partition(1, 2), 5, UNDER_MIN_ISR),
        (_partition(1, leader=-1), 1, OFFLINE),
        (_partition(1, 2, 3, adding=(3,)), 1, REASSIGNING),
    ],
)
def test_the_worst_trouble_of_a_partition(partition: PartitionImage, min_isr: int, trouble: int) -> None:
    assert trouble_of(partition, None, min_isr, has_failed=False) == trouble
