"""OffsetCommit, OffsetFetch and OffsetDelete on a running node."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import create_topic, delete_topic
from tests.handlers.groups import commit, committing, fetch_group, find, form, offsets_of
from wire.errors import ErrorCode
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NO_TOPIC_ID = UUID(int=7)


@pytest.fixture
async def topic_id(client: Client) -> UUID:
    """The id of the topic `t` with two partitions; `__consumer_offsets` exists too."""
    await find(client)
    return await create_topic(client, "t", partitions=2)


@pytest.mark.parametrize("version", range(2, 11))
async def test_every_version_commits_what_every_version_fetches(client: Client, topic_id: UUID, version: int) -> None:
    key: str | UUID = topic_id if version >= 10 else "t"
    answer = await commit(client, {(key, 0): 5, (key, 1): 7}, version=version, metadata="note")
    assert answer == {(key, 0): 0, (key, 1): 0}
    for fetched in range(1, 11):
        assert await fetch(client, topic_id, [0, 1], version=fetched) == {0: (5, "note", 0), 1: (7, "note", 0)}


async def fetch(
    client: Client, topic_id: UUID, indexes: list[int], *, version: int, group_id: str = "g"
) -> dict[int, tuple[int, str | None, int]]:
    """(offset, metadata, error code) by partition, for any version."""
    if version >= 8:
        key: str | UUID = topic_id if version >= 10 else "t"
        topics = (await fetch_group(client, group_id, [(key, index) for index in indexes], version=version)).topics
    else:
        asked = OffsetFetchRequestTopic(name="t", partition_indexes=indexes)
        topics = (await client.ask(OffsetFetchRequest(group_id=group_id, topics=[asked]), version=version)).topics
    assert len(topics) == 1
    return {one.partition_index: (one.committed_offset, one.metadata, one.error_code) for one in topics[0].partitions}


@pytest.mark.parametrize("version", range(1, 11))
async def test_without_a_commit_the_offset_is_minus_one(client: Client, topic_id: UUID, version: int) -> None:
    await commit(client, {("t", 0): 5})
    assert await fetch(client, topic_id, [0, 1, 9], version=version) == {0: (5, "", 0), 1: (-1, "", 0), 9: (-1, "", 0)}
    assert await fetch(client, topic_id, [0], version=version, group_id="other") == {0: (-1, "", 0)}


@pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
async def test_null_topics_are_all_topics(client: Client, topic_id: UUID, version: int) -> None:
    other_id = await create_topic(client, "u")
    await commit(client, {("t", 0): 5, ("u", 0): 6})
    if version >= 8:
        expected = {(topic_id, 0): 5, (other_id, 0): 6} if version >= 10 else {("t", 0): 5, ("u", 0): 6}
        assert await offsets_of(client, version=version) == expected
    else:
        answer = await client.ask(OffsetFetchRequest(group_id="g", topics=None), version=version)
        assert {topic.name: topic.partitions[0].committed_offset for topic in answer.topics} == {"t": 5, "u": 6}


async def test_one_request_fetches_offsets_of_several_groups(client: Client, topic_id: UUID) -> None:
    from wire.messages.offset_fetch import OffsetFetchRequestGroup

    for number, group_id in enumerate(("a", "b")):
        await commit(client, {("t", 0): number}, group_id=group_id)
    groups = [OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in ("a", "b", "c")]
    answer = await client.ask(OffsetFetchRequest(groups=groups), version=9)
    found = {
        one.group_id: [part.committed_offset for topic in one.topics for part in topic.partitions]
        for one in answer.groups
    }
    assert found == {"a": [0], "b": [1], "c": []}


@pytest.mark.parametrize("version", [2, 9])
async def test_unknown_partitions_are_refused_and_the_rest_is_committed(
    client: Client, topic_id: UUID, version: int
) -> None:
    answer = await commit(client, {("t", 0): 5, ("t", 2): 6, ("nowhere", 0): 7}, version=version)
    assert answer == {("t", 0): 0, ("t", 2): UNKNOWN, ("nowhere", 0): UNKNOWN}
    assert await offsets_of(client) == {("t", 0): 5}


async def test_unknown_topic_ids_are_refused_by_id(client: Client, topic_id: UUID) -> None:
    answer = await commit(client, {(topic_id, 0): 5, (topic_id, 2): 6, (NO_TOPIC_ID, 0): 7}, version=10)
    assert answer == {(topic_id, 0): 0, (topic_id, 2): UNKNOWN, (NO_TOPIC_ID, 0): ErrorCode.UNKNOWN_TOPIC_ID}
    found = await fetch_group(client, places=[(topic_id, 0), (NO_TOPIC_ID, 0)], version=10)
    assert {
        topic.topic_id: (one.committed_offset, one.error_code) for topic in found.topics for one in topic.partitions
    } == {
        topic_id: (5, 0),
        NO_TOPIC_ID: (-1, ErrorCode.UNKNOWN_TOPIC_ID),
    }


async def test_a_topic_that_is_named_twice_is_answered_once(client: Client, topic_id: UUID) -> None:
    request = committing({("nowhere", 0): 1})
    request.topics *= 2
    answer = await client.ask(request, version=9)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("nowhere", 2)]


@pytest.mark.parametrize("version", range(1, 11))
async def test_without_the_offsets_topic_no_group_has_offsets(client: Client, version: int) -> None:
    topic_id = await create_topic(client, "t")
    code = ErrorCode.NOT_COORDINATOR
    key: str | UUID = topic_id if version >= 10 else "t"
    assert await commit(client, {(key, 0): 5}, version=max(version, 2)) == {(key, 0): code}
    if version >= 8:
        assert (await fetch_group(client, version=version)).error_code == code
    elif version >= 2:
        answer = await client.ask(OffsetFetchRequest(group_id="g", topics=None), version=version)
        assert (answer.error_code, answer.topics) == (code, [])
    else:
        indexes = list(range(250))  # more than the handler reads at once
        assert await fetch(client, topic_id, indexes, version=1) == dict.fromkeys(indexes, (-1, "", code))


async def test_long_metadata_is_refused_for_its_partition(client: Client, topic_id: UUID) -> None:
    assert await commit(client, {("t", 0): 5}, metadata="x" * 4097) == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert await commit(client, {("t", 0): 5}, metadata="x" * 4096) == {("t", 0): 0}


async def test_deleting_a_topic_deletes_its_offsets(client: Client, topic_id: UUID, broker: MemoryBroker) -> None:
    await create_topic(client, "u")
    await commit(client, {("t", 0): 5, ("u", 0): 6})
    await delete_topic(client, "t")
    assert await offsets_of(client) == {("u", 0): 6}
    await create_topic(client, "t", partitions=2)
    assert await offsets_of(client) == {("u", 0): 6}
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
        assert await offsets_of(await again.connect()) == {("u", 0): 6}, "they stay deleted"


async def delete_offsets(client: Client, group_id: str, **topics: list[int]) -> tuple[int, dict[tuple[str, int], int]]:
    asked = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=one) for one in indexes]
        )
        for name, indexes in topics.items()
    ]
    answer = await client.ask(OffsetDeleteRequest(group_id=group_id, topics=asked))
    found = {(topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions}
    return answer.error_code, found


async def test_offsets_are_deleted_one_by_one(client: Client, topic_id: UUID) -> None:
    await commit(client, {("t", 0): 5, ("t", 1): 6})
    answer = await delete_offsets(client, "g", t=[0, 7], nowhere=[0])
    assert answer == (0, {("t", 7): UNKNOWN, ("nowhere", 0): UNKNOWN, ("t", 0): 0})
    assert await offsets_of(client) == {("t", 1): 6}


async def test_deleting_offsets_of_an_unknown_group_fails_as_a_whole(client: Client, topic_id: UUID) -> None:
    assert await delete_offsets(client, "nobody", t=[0], nowhere=[0]) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    assert await delete_offsets(client, "", t=[0]) == (ErrorCode.INVALID_GROUP_ID, {})


@pytest.mark.parametrize("loss", [None, Loss.PROCESS_DEATH], ids=["stopped", "killed"])
async def test_k10_groups_and_offsets_are_the_same_after_a_restart(loss: Loss | None) -> None:
    disk = SimulatedDisk()
    async with memory_broker(disk, stops_cleanly=loss is None) as broker:
        client = await broker.connect()
        await find(client)
        await create_topic(client, "t")
        joined = await form(client)
        await commit(client, {("t", 0): 5}, joined=joined, metadata="mine")
        await commit(client, {("t", 0): 9}, group_id="simple")
        survivor = disk if loss is None else disk.crash(loss)
    async with memory_broker(survivor) as broker:
        client = await broker.connect()
        assert await offsets_of(client) == {("t", 0): 5}
        assert await offsets_of(client, "simple") == {("t", 0): 9}
        assert await commit(client, {("t", 0): 6}, joined=joined) == {("t", 0): 0}, "its member continues unaffected"


async def test_requests_fail_while_a_group_is_loading(broker: MemoryBroker, client: Client, topic_id: UUID) -> None:
    joined = await form(client)
    await commit(client, {("t", 0): 5}, joined=joined)
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH), latency_ms=1000) as again:
        from tests.handlers.groups import beat, join
        from wire.messages.list_groups import ListGroupsRequest

        client = await again.connect()
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await commit(client, {("t", 0): 6}, joined=joined) == {("t", 0): code}
        assert (await fetch_group(client)).error_code == code
        assert (await join(client, "g", joined.member_id)).error_code == code
        assert await beat(client, joined) == 0, "a heartbeat would only make it join again"
        listed = await client.ask(ListGroupsRequest())
        assert (listed.error_code, listed.groups) == (code, [])
        await trio.sleep(60)
        assert await offsets_of(client) == {("t", 0): 5}


async def test_a_full_disk_refuses_commits_and_keeps_earlier_ones(
    client: Client, topic_id: UUID, broker: MemoryBroker
) -> None:
    await commit(client, {("t", 0): 5})
    broker.disk.capacity_bytes = 1
    assert await commit(client, {("t", 0): 6}) == {("t", 0): ErrorCode.NOT_COORDINATOR}
    assert await offsets_of(client) == {("t", 0): 5}
    broker.disk.heal()
    await trio.sleep(5)
    assert await commit(client, {("t", 0): 7}) == {("t", 0): 0}
    assert await offsets_of(client) == {("t", 0): 7}


@pytest.mark.parametrize("codec", range(5))
async def test_group_records_are_compressed_as_configured(codec: int) -> None:
    own = {"offsets.topic.compression.codec": codec, "offsets.topic.num.partitions": 1}
    async with memory_broker(settings=own) as broker:
        client = await broker.connect()
        await find(client)
        await create_topic(client, "t")
        assert await commit(client, {("t", 0): 5}, metadata="x" * 1000) == {("t", 0): 0}
        stored = broker.disk.image()["/data/__consumer_offsets-0/00000000000000000000.log"]
        assert stored is not None
        assert stored[22] & 7 == codec
        assert (b"x" * 100 in stored) == (codec == 0)
        survivor = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(survivor, settings=own) as broker:
        assert await offsets_of(await broker.connect()) == {("t", 0): 5}
