"""Offsets of consumer groups: who may commit and fetch, their expiry, and the end of a group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.coordinator.consumer.world import ConsumerWorld, Member, settle
from tests.coordinator.world import GROUP
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.messages.offset_fetch import OffsetFetchRequestGroup

NONE, STALE = ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH
MINUTE_MS = 60_000


def as_joined(member_id: str, epoch: int) -> Any:
    """What World.commit takes from a JoinGroup response."""
    return SimpleNamespace(member_id=member_id, generation_id=epoch)


def shared() -> tuple[ConsumerWorld, Member, Member]:
    """Two members; the first has had its partitions for two epochs."""
    world = ConsumerWorld()
    one, two = world.member("one"), world.member("two")
    settle(one, two)
    return world, one, two


@pytest.mark.parametrize(
    ("member_id", "difference", "version", "code"),
    [
        ("one", 0, 9, NONE),
        ("one", 1, 9, STALE),
        ("one", -1, 9, NONE),
        ("one", -2, 9, STALE),
        ("one", 0, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("nobody", 0, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 0, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_need_an_epoch_of_the_partition(member_id: str, difference: int, version: int, code: ErrorCode) -> None:
    world, one, _ = shared()
    (partition, *_) = one.owned["orders"]
    joined = as_joined(member_id, one.epoch + difference)
    topic_id = world.id_of("orders")
    assert world.commit(7, joined=joined, partition=partition, topic_id=topic_id, version=version) == code
    assert world.committed(partition=partition) == (7 if code is NONE else -1)


def test_an_old_epoch_cannot_commit_a_partition_of_another_member() -> None:
    world, one, two = shared()
    (partition, *_) = two.owned["orders"]
    joined = as_joined("one", one.epoch - 1)
    assert world.commit(7, joined=joined, partition=partition, topic_id=world.id_of("orders")) == STALE


def test_without_members_anybody_commits() -> None:
    world, _, _ = shared()
    assert world.commit(1) == ErrorCode.UNKNOWN_MEMBER_ID
    for member_id in ("one", "two"):
        world.beat(member_id, -1)
    assert world.commit(1) == NONE


@pytest.mark.parametrize(
    ("member_id", "difference", "code"),
    [("one", 0, NONE), ("one", -1, STALE), ("nobody", 0, ErrorCode.UNKNOWN_MEMBER_ID), (None, None, NONE)],
)
def test_fetches_need_the_epoch_of_the_member(member_id: str | None, difference: int | None, code: ErrorCode) -> None:
    world, one, _ = shared()
    epoch = -1 if difference is None else one.epoch + difference
    request = OffsetFetchRequestGroup(group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=None)
    assert world.shard.fetch_offsets(request).error_code == code


def test_offsets_of_subscribed_topics_are_kept() -> None:
    world, one, _ = shared()
    world.commit(7, joined=as_joined("one", one.epoch), topic="other")
    world.commit(7, joined=as_joined("one", one.epoch))
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in ("orders", "other")
    ]
    answer = world.decide(OffsetDeleteRequest(group_id=GROUP, topics=topics))
    assert [one.partitions[0].error_code for one in answer.topics] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE]
    assert (world.committed(), world.committed(topic="other")) == (7, -1)


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    world, one, _ = shared()
    world.commit(7, joined=as_joined("one", one.epoch))
    delete = DeleteGroupsRequest(groups_names=[GROUP])
    assert world.decide(delete).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    world.leave("one", "two")
    assert world.decide(delete).results[0].error_code == NONE
    assert world.shard.group(GROUP) is None
    world.reload()
    assert world.shard.group_ids() == []
    assert world.shard.offset_count == 0


def test_an_empty_group_ends_with_its_last_offset() -> None:
    world = ConsumerWorld(offsets_retention_minutes=60, offsets_retention_check_interval_ms=MINUTE_MS)
    one = world.member("one")
    settle(one)
    world.commit(7, joined=as_joined("one", one.epoch))
    for _ in range(200):
        world.advance(MINUTE_MS // 2)
        one.beat()
    assert world.committed() == 7, "a member subscribes to the topic"
    world.beat("one", -1)
    world.advance(2 * MINUTE_MS)
    assert world.shard.group(GROUP) is None, "the offset was committed long ago"
    world.reload()
    assert world.shard.group_ids() == []
