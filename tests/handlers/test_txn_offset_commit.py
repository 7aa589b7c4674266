"""TxnOffsetCommit on a running node."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kbroker.handlers.txn_offset_commit import PARTITIONS_TOGETHER
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, memory_broker
from tests.handlers.asking import create_topic
from tests.handlers.groups import commit, find, offsets_of
from tests.handlers.transactions import (
    add_offsets,
    commit_in_transaction,
    described,
    end,
    init,
    is_stable,
    settled,
)
from wire.errors import ErrorCode
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def producer(client: Client) -> tuple[int, int]:
    """A transactional producer `t` without a transaction; the topic `t` and `__consumer_offsets` exist."""
    await find(client)
    await create_topic(client, "t", partitions=2)
    return await init(client, "t")


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
async def test_offsets_are_visible_after_a_commit_only(
    client: Client, producer: tuple[int, int], version: int, is_commit: bool
) -> None:
    await commit(client, {("t", 0): 5})
    assert await add_offsets(client, producer) == 0
    answer = await commit_in_transaction(client, {("t", 0): 9, ("t", 1): 8}, producer=producer, version=version)
    assert answer == {("t", 0): 0, ("t", 1): 0}
    assert await offsets_of(client) == {("t", 0): 5}
    assert not await is_stable(client)
    assert (await end(client, "t", *producer, is_commit=is_commit)).error_code == 0
    await settled(client, "t")
    assert await offsets_of(client) == ({("t", 0): 9, ("t", 1): 8} if is_commit else {("t", 0): 5})
    assert await is_stable(client)


@pytest.mark.parametrize("verifies", ["true", "false"])
async def test_version_5_adds_the_groups_partition_itself(verifies: str) -> None:
    """Even without verification: otherwise no marker would be written there."""
    async with memory_broker(settings={"transaction.partition.verification.enable": verifies}) as broker:
        client = await broker.connect()
        await find(client)
        await create_topic(client, "t")
        producer = await init(client, "t")
        answer = await commit_in_transaction(client, {("t", 0): 9}, producer=producer, version=5)
        assert answer == {("t", 0): ErrorCode.UNSUPPORTED_VERSION}
        raised = FeatureUpdateKey(feature="transaction.version", max_version_level=2, upgrade_type=1)
        assert (await client.ask(UpdateFeaturesRequest(feature_updates=[raised]))).error_code == 0
        assert await commit_in_transaction(client, {("t", 0): 9}, producer=producer, version=5) == {("t", 0): 0}
        state = await described(client, "t")
        assert [(topic.topic, state.transaction_state) for topic in state.topics] == [("__consumer_offsets", "Ongoing")]
        assert (await end(client, "t", *producer)).error_code == 0
        await settled(client, "t")
        assert await offsets_of(client) == {("t", 0): 9}


@pytest.mark.parametrize("version", range(5))
async def test_offsets_outside_of_a_transaction_are_refused(
    client: Client, producer: tuple[int, int], version: int
) -> None:
    code = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    assert await commit_in_transaction(client, {("t", 0): 9}, producer=producer, version=version) == {("t", 0): code}
    assert await is_stable(client)


async def test_an_old_producer_cannot_commit_offsets(client: Client, producer: tuple[int, int]) -> None:
    assert await add_offsets(client, producer) == 0
    assert await commit_in_transaction(client, {("t", 0): 9}, producer=producer) == {("t", 0): 0}
    newer = await init(client, "t")
    assert newer == (producer[0], producer[1] + 2), "one epoch fenced the old producer and aborted its transaction"
    code = ErrorCode.INVALID_PRODUCER_EPOCH
    assert await commit_in_transaction(client, {("t", 0): 9}, producer=producer) == {("t", 0): code}
    assert await is_stable(client)


async def test_without_verification_any_producer_may_commit() -> None:
    async with memory_broker(settings={"transaction.partition.verification.enable": "false"}) as broker:
        client = await broker.connect()
        await find(client)
        await create_topic(client, "t")
        assert await commit_in_transaction(client, {("t", 0): 9}) == {("t", 0): 0}
        assert not await is_stable(client)


async def test_r11_pending_offsets_survive_a_crash_of_their_coordinator(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await find(client)
        await create_topic(client, "t")
        await commit(client, {("t", 0): 5})
        producer = await init(client, "t")
        await add_offsets(client, producer)
        await commit_in_transaction(client, {("t", 0): 9}, producer=producer)
        disk = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        assert await offsets_of(client) == {("t", 0): 5}
        assert not await is_stable(client)
        assert (await end(client, "t", *producer)).error_code == 0
        await settled(client, "t")
        assert await offsets_of(client) == {("t", 0): 9}


async def test_a_large_commit_is_stored_in_parts(client: Client, producer: tuple[int, int]) -> None:
    partitions = 2 * PARTITIONS_TOGETHER + 1
    await create_topic(client, "large", partitions=partitions)
    await add_offsets(client, producer)
    offsets = {("large", index): index for index in range(partitions)}
    assert set((await commit_in_transaction(client, offsets, producer=producer)).values()) == {0}
    assert await offsets_of(client) == {}
    assert (await end(client, "t", *producer)).error_code == 0
    while True:
        if len(found := await offsets_of(client)) == partitions:
            break
        await trio.sleep(0.01)
    assert found == offsets


async def test_a_group_that_a_transaction_creates_is_logged_once(
    client: Client, producer: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kbroker")
    assert await add_offsets(client, producer, "new") == 0
    for _ in range(2):
        answer = await commit_in_transaction(client, {("t", 0): 5}, producer=producer, group_id="new")
        assert answer == {("t", 0): 0}
    (line,) = (vars(each)["kbroker_fields"] for each in caplog.records if each.getMessage() == "group created")
    assert (line["group"], line["client_id"]) == ("new", "test")


@pytest.mark.parametrize("version", range(6))
async def test_partitions_that_do_not_exist_are_refused_alone(
    client: Client, producer: tuple[int, int], version: int
) -> None:
    await add_offsets(client, producer)
    offsets = {("t", 7): 1, ("t", 0): 9, ("other", 0): 1}
    answer = await commit_in_transaction(client, offsets, producer=producer, version=version)
    assert answer == {("t", 0): 0, ("t", 7): UNKNOWN, ("other", 0): UNKNOWN}


async def test_commits_wait_for_the_coordinator_of_the_transaction(client: Client) -> None:
    await find(client)
    await create_topic(client, "t")
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await commit_in_transaction(client, {("t", 0): 5}) == {("t", 0): code}


@pytest.mark.parametrize("group_id", ["", "g"])
async def test_a_broker_refuses_groups_that_it_does_not_coordinate(client: Client, group_id: str) -> None:
    await create_topic(client, "t")
    code = ErrorCode.NOT_COORDINATOR if group_id else ErrorCode.INVALID_GROUP_ID
    assert await commit_in_transaction(client, {("t", 0): 5}, group_id=group_id) == {("t", 0): code}
