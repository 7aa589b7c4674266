"""TxnOffsetCommit, and what markers do with the offsets of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from kbroker.coordinator.common.ports import Producer
from kbroker.coordinator.pending_offsets import PendingOffsets
from kbroker.metadata.image import Image
from tests.coordinator.world import CALLER, GROUP, SESSION_MS, World
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic

FIRST, SECOND = 1000, 1001
MINUTE_MS = 60_000
RETENTION_MINUTES = 60


def delete_offset(world: World, topic: str = "orders") -> ErrorCode:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    topics = [OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
    answer = world.decide(OffsetDeleteRequest(group_id=GROUP, topics=topics))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def delete_group(world: World) -> ErrorCode:
    return ErrorCode(world.decide(DeleteGroupsRequest(groups_names=[GROUP])).results[0].error_code)


# Markers


def test_an_offset_in_an_open_transaction_is_unstable() -> None:
    world = World()
    world.commit(5)
    assert world.commit_in_transaction(9) == ErrorCode.NONE
    assert (world.committed(), world.is_unstable()) == (5, True)
    world.end(FIRST, committed=True)
    assert (world.committed(), world.is_unstable()) == (9, False)


def test_the_old_offset_remains_after_an_abort() -> None:
    world = World()
    world.commit(5)
    world.commit_in_transaction(9)
    world.end(FIRST, committed=False)
    assert (world.committed(), world.is_unstable()) == (5, False)
    world.reload()
    assert world.committed() == 5


def test_an_aborted_first_offset_was_never_committed() -> None:
    world = World()
    world.commit_in_transaction(9)
    assert (world.committed(), world.is_unstable()) == (-1, True)
    world.end(FIRST, committed=False)
    assert (world.committed(), world.is_unstable()) == (-1, False)


@pytest.mark.parametrize("reloads", [False, True], ids=["live", "loaded"])
def test_of_mixed_commits_the_newest_in_the_log_wins(reloads: bool) -> None:
    world = World()
    world.commit_in_transaction(9, producer_id=FIRST)
    world.commit_in_transaction(7, producer_id=SECOND)
    world.commit(5)
    world.commit_in_transaction(3, producer_id=SECOND, partition=1)
    world.commit_in_transaction(4, producer_id=FIRST, partition=1)
    for producer_id in (FIRST, SECOND):
        world.end(producer_id, committed=True)
    if reloads:
        world.reload()
    assert (world.committed(), world.committed(partition=1)) == (5, 4)


def test_an_offset_is_unstable_until_every_transaction_ends() -> None:
    world = World()
    world.commit_in_transaction(9, producer_id=FIRST)
    world.commit_in_transaction(7, producer_id=SECOND)
    world.end(FIRST, committed=True)
    assert (world.committed(), world.is_unstable()) == (9, True)
    world.end(SECOND, committed=False)
    assert (world.committed(), world.is_unstable()) == (9, False)


def test_one_transaction_commits_for_several_groups_at_once() -> None:
    world = World()
    world.commit_in_transaction(1, group_id="a")
    world.commit_in_transaction(2, group_id="b")
    world.commit_in_transaction(3, group_id="b")
    world.end(FIRST, committed=True)
    assert (world.committed(group_id="a"), world.committed(group_id="b")) == (1, 3)
    assert not world.is_unstable(group_id="a")


def test_a_marker_without_offsets_changes_nothing() -> None:
    world = World()
    world.commit(5)
    world.commit_in_transaction(9, producer_id=FIRST)
    world.end(SECOND, committed=True)
    assert (world.committed(), world.is_unstable()) == (5, True)


def test_loading_restores_open_transactions() -> None:
    world = World()
    world.commit(5)
    world.commit_in_transaction(9)
    world.reload()
    assert (world.committed(), world.is_unstable()) == (5, True)
    world.end(FIRST, committed=True)
    world.reload()
    assert (world.committed(), world.is_unstable()) == (9, False)


def test_a_refused_append_leaves_no_pending_offset() -> None:
    world = World()
    world.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.commit_in_transaction(9) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.is_unstable()
    assert world.commit(5) == ErrorCode.NONE
    assert world.committed() == 5, "the next decision is not transactional"


# Who may commit


def test_a_transaction_creates_a_group_without_members() -> None:
    world = World()
    assert world.commit_in_transaction(9) == ErrorCode.NONE
    assert [(one.group_state, one.protocol_type) for one in world.shard.list_groups()] == [("Empty", "")]


def test_a_member_commits_in_a_transaction_in_any_state() -> None:
    world = World()
    (joined,) = world.stable()
    assert world.commit_in_transaction(1, joined=joined) == ErrorCode.NONE
    world.join()  # a rebalance begins
    assert world.commit_in_transaction(2, joined=joined) == ErrorCode.NONE
    world.end(FIRST, committed=True)
    assert world.committed() == 2


def test_a_member_commits_in_a_transaction_before_it_has_its_assignment() -> None:
    world = World()
    joined = world.join()
    assert world.commit(1, joined=joined) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.commit_in_transaction(1, joined=joined) == ErrorCode.NONE


def test_only_the_current_generation_commits_in_a_transaction() -> None:
    world = World()
    (joined,) = world.stable()
    joined.generation_id += 1
    assert world.commit_in_transaction(1, joined=joined) == ErrorCode.ILLEGAL_GENERATION
    joined.generation_id = -1
    assert world.commit_in_transaction(1, joined=joined) == ErrorCode.ILLEGAL_GENERATION
    joined.member_id = "other"
    assert world.commit_in_transaction(1, joined=joined) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_in_transaction(1, joined=joined, group_id="missing") == ErrorCode.NONE
    joined.generation_id = 1
    assert world.commit_in_transaction(1, joined=joined, group_id="other") == ErrorCode.ILLEGAL_GENERATION
    assert not world.is_unstable()


def test_a_static_member_is_fenced_by_its_successor() -> None:
    world = World()
    (joined,) = world.stable(instance_id="i")
    assert world.commit_in_transaction(1, joined=joined, instance_id="i") == ErrorCode.NONE
    joined.member_id = "earlier"
    assert world.commit_in_transaction(1, joined=joined, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    assert world.commit_in_transaction(1, joined=joined, instance_id="other") == ErrorCode.UNKNOWN_MEMBER_ID


def test_producers_that_know_no_members_commit_for_any_group() -> None:
    world = World()
    world.stable()
    assert world.commit(1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_in_transaction(1) == ErrorCode.NONE


def test_transactional_commits_do_not_extend_sessions() -> None:
    world = World()
    (joined,) = world.stable()
    for _ in range(3):
        world.advance(SESSION_MS // 2)
        code = world.commit_in_transaction(1, joined=joined)
    assert code == ErrorCode.UNKNOWN_MEMBER_ID


def test_large_metadata_is_refused_for_its_partition() -> None:
    world = World(offset_metadata_max_bytes=3)
    assert world.commit_in_transaction(1, metadata="1234") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.commit_in_transaction(1, metadata=None) == ErrorCode.NONE


# Deletion and expiry


@pytest.mark.parametrize("delete", [delete_offset, delete_group])
@pytest.mark.parametrize("reloads", [False, True], ids=["live", "loaded"])
def test_deletion_removes_pending_offsets_too(delete: Callable[[World], ErrorCode], reloads: bool) -> None:
    world = World()
    world.commit_in_transaction(9)
    assert delete(world) == ErrorCode.NONE
    if reloads:
        world.reload()
    assert not world.is_unstable()
    world.end(FIRST, committed=True)
    assert world.committed() == -1


def test_deleting_a_topic_removes_its_pending_offsets() -> None:
    world = World()
    world.commit_in_transaction(9)
    world.append(world.shard.on_topics_deleted([(UUID(int=1), "orders")], now_ms=0, timestamp_ms=0))
    world.end(FIRST, committed=True)
    assert world.committed() == -1


def test_a_topic_deleted_during_loading_loses_its_pending_offsets() -> None:
    world = World()
    world.commit_in_transaction(9)
    world.reload()
    for decide in world.shard.after_loading(Image()):
        world.append(decide(now_ms=world.now_ms, timestamp_ms=world.timestamp_ms))  # type: ignore[arg-type]
    world.end(FIRST, committed=True)
    assert world.committed() == -1


def test_a_group_with_an_open_transaction_does_not_expire() -> None:
    world = World(offsets_retention_minutes=RETENTION_MINUTES)
    world.commit(5)
    world.commit(6, partition=1)
    world.commit_in_transaction(9)
    world.advance(3 * RETENTION_MINUTES * MINUTE_MS)
    assert [world.committed(partition=index) for index in (0, 1)] == [5, -1]
    world.end(FIRST, committed=False)
    world.advance(RETENTION_MINUTES * MINUTE_MS)
    assert world.shard.group_ids() == []


def test_a_group_without_offsets_waits_for_its_transaction() -> None:
    world = World(offsets_retention_minutes=RETENTION_MINUTES)
    world.commit_in_transaction(9)
    delete_offset(world)
    world.advance(3 * RETENTION_MINUTES * MINUTE_MS)
    assert world.shard.group_ids() == [GROUP]
    world.end(FIRST, committed=True)
    world.advance(RETENTION_MINUTES * MINUTE_MS)
    assert world.shard.group_ids() == []


# Large transactions


def large(*, committed: bool) -> World:
    """A transaction with offsets of 1,100 partitions has just ended; the timers have not run yet."""
    world = World()
    for partition in range(1_100):
        world.commit_in_transaction(1, partition=partition)
    world.end(FIRST, committed=committed)
    return world


def unstable(world: World) -> int:
    return sum(world.is_unstable(partition=partition) for partition in range(1_100))


@pytest.mark.parametrize("committed", [True, False])
def test_a_large_transaction_ends_in_steps(committed: bool) -> None:
    world = large(committed=committed)
    seen = [unstable(world)]
    while seen[-1]:
        assert sum(world.committed(partition=index) == 1 for index in range(1_100)) == (1_100 - seen[-1]) * committed
        world.append(world.shard.on_time(now_ms=world.now_ms, timestamp_ms=world.timestamp_ms))
        seen.append(unstable(world))
    assert seen == [600, 100, 0]


def test_a_large_transaction_ends_after_loading_too() -> None:
    world = large(committed=True)
    world.reload()
    world.on_time()
    assert unstable(world) == 0
    assert {world.committed(partition=partition) for partition in range(1_100)} == {1}


def test_what_comes_between_its_steps_is_kept() -> None:
    world = large(committed=True)
    waiting = [partition for partition in range(1_100) if world.is_unstable(partition=partition)][:3]
    world.shard.replay_marker(FIRST, committed=False)  # a repeated marker
    now = {"now_ms": world.now_ms, "timestamp_ms": world.timestamp_ms}
    for number, partition in enumerate(waiting):
        one = OffsetCommitRequestPartition(partition_index=partition, committed_offset=7, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name="orders", partitions=[one])]
        asked = OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", topics=topics)
        plain = world.shard.decide(asked, CALLER, **now)
        world.append(replace(plain, producer=(None, Producer(FIRST, 0), Producer(SECOND, 0))[number]))
    world.on_time()
    assert [world.committed(partition=partition) for partition in waiting] == [7, 1, 1]
    assert [world.is_unstable(partition=partition) for partition in waiting] == [False, True, True]
    for producer_id in (FIRST, SECOND):
        world.end(producer_id, committed=True)
    assert [world.committed(partition=partition) for partition in waiting] == [7, 7, 7]


def test_ended_transactions_leave_nothing_in_memory() -> None:
    pending: PendingOffsets[int] = PendingOffsets()
    for producer_id in (FIRST, SECOND):
        pending.put(producer_id, "g", "t", 0, 1)
        pending.put(producer_id, "g", "t", producer_id, 1)
    pending.remove("g", "t", 0)
    assert sorted(pending) == [("g", "t", FIRST, 1), ("g", "t", SECOND, 1)]
    for producer_id in (FIRST, SECOND):
        ended = pending.end(producer_id)
        assert ended is not None
        assert list(pending.drain(ended)) == [("g", "t", producer_id, 1)]
    assert (list(pending), pending._by_producer, pending._open) == ([], {}, {})
