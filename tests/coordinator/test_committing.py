"""OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.offsets import Offsets
from kbroker.metadata.image import Image, TopicImage
from tests.coordinator.world import GROUP, SESSION_MS, WALL_START_MS, World, subscription
from wire.errors import ErrorCode
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopic
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue

FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)


def delete(world: World, *topics: str, group_id: str = GROUP) -> tuple[ErrorCode, list[ErrorCode]]:
    """OffsetDelete of partition 0 of topics: the top-level error code, and the code of each partition."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for topic in topics
        ],
    )
    response = world.decide(request)
    codes = [ErrorCode(one.partitions[0].error_code) for one in response.topics]
    return ErrorCode(response.error_code), codes


def test_a_member_commits_and_every_client_can_fetch_it() -> None:
    world = World()
    (joined,) = world.stable()
    assert world.commit(42, joined=joined, metadata="mine") == ErrorCode.NONE
    topics = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])]
    response = world.shard.fetch_offsets(OffsetFetchRequestGroup(group_id=GROUP, topics=topics))
    found, missing = response.topics[0].partitions
    assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (42, 3, "mine")
    assert (missing.committed_offset, missing.committed_leader_epoch, missing.metadata) == (-1, -1, "")
    assert found.error_code == missing.error_code == response.error_code == ErrorCode.NONE


def test_a_simple_consumer_commits_without_a_group() -> None:
    world = World()
    assert world.commit(7) == ErrorCode.NONE
    assert world.committed() == 7
    assert [(one.group_state, one.protocol_type) for one in world.shard.list_groups()] == [("Empty", "")]


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_commit_to_a_missing_group_is_refused(version: int, code: ErrorCode) -> None:
    world = World()
    (joined,) = world.stable()
    assert world.commit(7, joined=joined, group_id="other", version=version) == code
    assert world.shard.group_ids() == [GROUP]


def test_only_members_commit_to_a_group_with_members() -> None:
    world = World()
    (joined,) = world.stable()
    assert world.commit(7) == ErrorCode.UNKNOWN_MEMBER_ID
    joined.generation_id = -1
    assert world.commit(7, joined=joined) == ErrorCode.ILLEGAL_GENERATION
    joined.member_id = "nobody"
    assert world.commit(7, joined=joined) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() == -1


def test_a_tool_commits_to_a_group_without_members() -> None:
    world = World()
    (joined,) = world.stable()
    world.leave(joined.member_id)
    assert world.commit(7) == ErrorCode.NONE
    assert world.commit(8, joined=joined) == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_keep_a_member_alive() -> None:
    world = World()
    (joined,) = world.stable()
    for offset in range(5):
        world.advance(SESSION_MS - 1)
        assert world.commit(offset, joined=joined) == ErrorCode.NONE


def test_a_commit_during_the_assignment_gets_rebalance_in_progress() -> None:
    world = World()
    (joined,) = world.stable()
    again = world.join(joined.member_id)
    assert world.commit(1, joined=again) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("", ErrorCode.NONE),
        (None, ErrorCode.NONE),
        ("x" * 10, ErrorCode.NONE),
        ("ü" * 10, ErrorCode.NONE),
        ("\U0001f600" * 5, ErrorCode.NONE),
        ("x" * 11, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("\U0001f600" * 6, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_size_is_counted_in_utf16_units_as_in_java(metadata: str | None, code: ErrorCode) -> None:
    world = World(offset_metadata_max_bytes=10)
    assert world.commit(1, metadata=metadata) == code
    assert world.committed() == (1 if code == ErrorCode.NONE else -1)


def test_too_much_metadata_fails_only_its_own_partition() -> None:
    world = World(offset_metadata_max_bytes=1)
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=5, committed_metadata="x" * index)
        for index in range(3)
    ]
    request = OffsetCommitRequest(
        group_id=GROUP, member_id="", topics=[OffsetCommitRequestTopic(name="orders", partitions=partitions)]
    )
    response = world.decide(request)
    assert [one.error_code for one in response.topics[0].partitions] == [0, 0, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert [world.committed(partition=index) for index in range(3)] == [5, 5, -1]


def test_a_commit_that_cannot_be_stored_changes_nothing() -> None:
    world = World()
    world.commit(5)
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.commit(6) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.committed() == 5
    world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert world.commit(6, group_id="other") == ErrorCode.NOT_COORDINATOR
    assert world.shard.group_ids() == [GROUP]


def test_an_empty_commit_creates_no_group() -> None:
    world = World()
    response = world.decide(OffsetCommitRequest(group_id=GROUP, member_id="", topics=[]))
    assert response.topics == []
    assert world.shard.group_ids() == []


def test_committed_offsets_survive_a_change_of_the_coordinator() -> None:
    world = World()
    (joined,) = world.stable()
    world.commit(5, joined=joined, metadata="a")
    world.commit(6, joined=joined, metadata="b")
    world.commit(9, joined=joined, topic="other", partition=3)
    before = world.shard.offsets_of(GROUP)
    world.reload()
    assert world.shard.offsets_of(GROUP) == before
    assert (world.committed(), world.shard.offset_count) == (6, 2)
    assert world.commit(7, joined=joined) == ErrorCode.NONE, "the membership survives too"


def test_a_fetch_without_topics_returns_all_offsets() -> None:
    world = World()
    for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
        world.commit(partition + 1, topic=topic, partition=partition)
    response = world.shard.fetch_offsets(OffsetFetchRequestGroup(group_id=GROUP, topics=None))
    found = {
        (one.name, each.partition_index): each.committed_offset for one in response.topics for each in one.partitions
    }
    assert found == {("a", 0): 1, ("a", 1): 2, ("b", 0): 1}


@pytest.mark.parametrize("group_id", ["nobody", ""])
def test_a_missing_group_has_no_offsets_and_no_error(group_id: str) -> None:
    world = World()
    response = world.shard.fetch_offsets(OffsetFetchRequestGroup(group_id=group_id, topics=None))
    assert (response.error_code, response.topics) == (ErrorCode.NONE, [])
    assert world.committed(group_id=group_id) == -1


def test_an_offset_of_an_earlier_topic_id_is_not_returned() -> None:
    world = World()
    world.commit(5, topic_id=FIRST_ID)
    assert world.committed(topic_id=FIRST_ID) == 5
    assert world.committed() == 5, "a fetch without a topic id matches"
    assert world.committed(topic_id=SECOND_ID) == -1
    world.commit(6)
    assert world.committed(topic_id=SECOND_ID) == 6, "a commit without a topic id matches"


def test_deleting_a_topic_keeps_offsets_of_its_namesake() -> None:
    world = World()
    world.commit(5, topic_id=FIRST_ID)
    world.commit(6, topic_id=SECOND_ID, partition=1)
    world.commit(7, partition=2)
    world.commit(8, topic="other", topic_id=SECOND_ID)
    deleted = world.shard.on_topics_deleted(
        [(FIRST_ID, "orders")], now_ms=world.now_ms, timestamp_ms=world.timestamp_ms
    )
    world.append(deleted)
    assert [world.committed(partition=index) for index in range(3)] == [-1, 6, -1]
    assert world.committed(topic="other") == 8
    world.reload()
    assert [world.committed(partition=index) for index in range(3)] == [-1, 6, -1]


def test_loading_keeps_offsets_without_an_id_of_a_topic_that_exists() -> None:
    world = World()
    world.commit(5, topic_id=FIRST_ID)
    world.commit(6, topic_id=SECOND_ID, partition=1)
    world.commit(7, partition=2)
    world.commit(8, topic="deleted")
    world.reload()
    image = Image(topics_by_name={"orders": TopicImage("orders", SECOND_ID, {})})
    for decide in world.shard.after_loading(image):
        world.append(decide(now_ms=world.now_ms, timestamp_ms=world.timestamp_ms))
    assert [world.committed(partition=index) for index in range(3)] == [-1, 6, 7]
    assert world.committed(topic="deleted") == -1


# OffsetDelete


def test_offsets_of_an_empty_group_are_deleted() -> None:
    world = World()
    world.commit(5)
    assert delete(world, "orders", "other") == (ErrorCode.NONE, [ErrorCode.NONE, ErrorCode.NONE])
    assert world.committed() == -1
    world.reload()
    assert world.committed() == -1


def test_deleting_all_offsets_of_a_group_frees_its_entry() -> None:
    offsets = Offsets()
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=0)
    keys = [OffsetCommitKey(group=GROUP, topic=topic, partition=partition) for topic in "ab" for partition in (0, 1)]
    for key in keys:
        offsets.replay(key, value, record_offset=-1, producer_id=-1)
    for key in keys[:2]:
        offsets.replay(key, None, record_offset=-1, producer_id=-1)
    assert set(offsets.of_group(GROUP)) == {"b"}
    for key in keys:
        offsets.replay(key, None, record_offset=-1, producer_id=-1)
    assert (list(offsets.committed()), offsets.count, len(offsets._by_group)) == ([], 0, 0)


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    world = World()
    (joined,) = world.stable(protocols={"range": subscription("orders", "payments")})
    for topic in ("orders", "payments", "other"):
        world.commit(5, joined=joined, topic=topic)
    code, codes = delete(world, "orders", "payments", "other")
    assert code == ErrorCode.NONE
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert [world.committed(topic=topic) for topic in ("orders", "other")] == [5, -1]
    world.reload()
    assert delete(world, "orders") == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0\0\0\0\x09", b"\0\0\x7f\xff\xff\xff"])
def test_unreadable_subscriptions_keep_all_offsets(metadata: bytes) -> None:
    world = World()
    (joined,) = world.stable(protocols={"range": metadata})
    world.commit(5, joined=joined)
    assert delete(world, "orders") == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])


def test_later_subscription_versions_are_read_by_their_first_fields() -> None:
    world = World()
    metadata = b"\0\3" + subscription("orders")[2:] + b"\0\0\0\0" + b"\0\0\0\1" + b"\xff\xff" + b"whatever comes"
    (joined,) = world.stable(protocols={"cooperative-sticky": metadata})
    world.commit(5, joined=joined, topic="other")
    assert delete(world, "orders", "other")[1] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]


def test_offset_delete_refuses_missing_groups() -> None:
    assert delete(World(), "orders", group_id="other") == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_offsets_of_other_protocol_types_are_deleted_only_when_empty() -> None:
    world = World()
    (joined,) = world.stable(protocol_type="connect")
    world.commit(5, joined=joined)
    assert delete(world, "orders") == (ErrorCode.NON_EMPTY_GROUP, [])
    world.leave(joined.member_id)
    assert delete(world, "orders") == (ErrorCode.NONE, [ErrorCode.NONE])


def test_a_huge_retention_does_not_overflow() -> None:
    world = World()
    assert world.commit(5, retention_ms=2**63 - 1, version=2) == ErrorCode.NONE
    world.reload()
    assert world.committed() == 5


def test_several_commits_may_share_an_append() -> None:
    world = World()
    now = {"now_ms": world.now_ms, "timestamp_ms": WALL_START_MS}
    outcomes = []
    for offset in range(3):
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")]
        topics = [OffsetCommitRequestTopic(name="orders", partitions=partitions)]
        request = OffsetCommitRequest(group_id=GROUP, member_id="", topics=topics)
        outcomes.append(world.shard.decide(request, Caller(api_version=9), **now))
    for base_offset, outcome in enumerate(outcomes):
        world.shard.on_appended(outcome, base_offset=base_offset, **now)
    assert world.committed() == 2
