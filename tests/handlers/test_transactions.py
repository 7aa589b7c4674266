"""Transactions from InitProducerId to their markers, with the clients' requests."""

from __future__ import annotations

import pytest

from kbroker.testing.broker import Client
from tests.handlers.asking import create_topic, fetching, parts, wanted
from tests.handlers.transactions import add_partitions, described, end, init, settled
from wire.errors import ErrorCode


@pytest.mark.parametrize("is_commit", [True, False])
async def test_the_end_of_a_transaction_writes_its_markers(client: Client, is_commit: bool) -> None:
    await create_topic(client, "t")
    producer_id, epoch = await init(client, "x")
    assert await add_partitions(client, "x", producer_id, epoch, ("t", 0)) == {("t", 0): 0}
    assert (await described(client, "x")).transaction_state == "Ongoing"
    answer = await end(client, "x", producer_id, epoch, is_commit=is_commit)
    assert answer.error_code == 0
    assert (await settled(client, "x")).transaction_state == ("CompleteCommit" if is_commit else "CompleteAbort")
    read = parts(await client.ask(fetching("t", wanted(), read_committed=True), version=12))[0]
    assert read.last_stable_offset == read.high_watermark == 1


async def test_a_second_producer_fences_the_first(client: Client) -> None:
    await create_topic(client, "t")
    first = await init(client, "x")
    second = await init(client, "x")
    assert second == (first[0], first[1] + 1)
    assert await add_partitions(client, "x", *first, ("t", 0)) == {("t", 0): ErrorCode.PRODUCER_FENCED}
    assert await add_partitions(client, "x", *second, ("t", 0)) == {("t", 0): 0}
