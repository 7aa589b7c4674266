"""When offsets and groups expire."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coordinator.world import GROUP, World, subscription
from wire.errors import ErrorCode

MINUTE_MS = 60_000
RETENTION_MS = 60 * MINUTE_MS
CHECK_MS = MINUTE_MS


def retaining_world() -> World:
    """Retains offsets for an hour, and checks every minute."""
    return World(offsets_retention_minutes=60, offsets_retention_check_interval_ms=CHECK_MS)


def test_a_simple_consumers_offset_and_group_expire_after_its_commit() -> None:
    world = retaining_world()
    world.commit(5)
    world.advance(RETENTION_MS // 2)
    world.commit(6, partition=1)
    world.advance(RETENTION_MS // 2 - 1)
    assert world.committed() == 5
    world.advance(CHECK_MS)
    assert (world.committed(), world.committed(partition=1)) == (-1, 6)
    assert world.shard.group_ids() == [GROUP]
    world.advance(RETENTION_MS)
    assert world.shard.group_ids() == []
    assert world.shard.counts.offset_expirations == 2
    world.reload()
    assert world.shard.group_ids() == []


def test_offsets_expire_after_their_group_became_empty() -> None:
    world = retaining_world()
    (joined,) = world.stable(session_ms=1_800_000)
    world.commit(5, joined=joined)
    for _ in range(6):
        world.advance(1_200_000)
        assert world.heartbeat(joined) == ErrorCode.NONE
    assert world.committed() == 5, "a member reads the topic"
    world.leave(joined.member_id)
    world.advance(RETENTION_MS - 1)
    assert world.committed() == 5
    world.advance(CHECK_MS)
    assert world.committed() == -1
    assert world.shard.group_ids() == []


def test_the_time_since_a_group_became_empty_survives_a_restart() -> None:
    world = retaining_world()
    (joined,) = world.stable()
    world.commit(5, joined=joined)
    world.leave(joined.member_id)
    world.advance(RETENTION_MS // 2)
    world.reload()
    world.advance(RETENTION_MS // 2 - 1)
    assert world.committed() == 5
    world.advance(CHECK_MS)
    assert world.committed() == -1


def test_offsets_of_unsubscribed_topics_expire_in_a_stable_group() -> None:
    world = retaining_world()
    (joined,) = world.stable(session_ms=1_800_000, protocols={"range": subscription("orders")})
    for topic in ("orders", "payments"):
        world.commit(5, joined=joined, topic=topic)
    for _ in range(4):
        world.advance(1_200_000)
        world.heartbeat(joined)
    assert (world.committed(topic="orders"), world.committed(topic="payments")) == (5, -1)
    assert world.shard.group_ids() == [GROUP]


@pytest.mark.parametrize(
    "arguments",
    [{"protocol_type": "connect"}, {"protocols": {"range": b"unreadable"}}],
    ids=["not of consumers", "unreadable subscription"],
)
def test_offsets_never_expire_while_subscriptions_are_unknown(arguments: dict[str, Any]) -> None:
    world = retaining_world()
    (joined,) = world.stable(session_ms=1_800_000, **arguments)
    world.commit(5, joined=joined)
    for _ in range(4):
        world.advance(1_200_000)
        world.heartbeat(joined)
    assert world.committed() == 5


def test_nothing_expires_while_a_group_rebalances() -> None:
    world = retaining_world()
    (joined,) = world.stable(session_ms=1_800_000, rebalance_ms=2 * RETENTION_MS, protocols={"range": subscription()})
    world.commit(5, joined=joined)
    world.advance(RETENTION_MS - 2 * CHECK_MS)
    world.heartbeat(joined)
    world.join(rebalance_ms=2 * RETENTION_MS, session_ms=1_800_000)
    for _ in range(3):
        world.advance(4 * CHECK_MS)
        world.heartbeat(joined)
    assert world.committed() == 5


def test_the_retention_of_a_commit_overrides_the_default() -> None:
    world = retaining_world()
    world.commit(5, retention_ms=5 * MINUTE_MS, version=4)
    world.commit(6, partition=1, retention_ms=10 * RETENTION_MS, version=4)
    world.reload()
    world.advance(5 * MINUTE_MS - 1)
    assert world.committed() == 5
    world.advance(CHECK_MS)
    assert world.committed() == -1
    world.advance(2 * RETENTION_MS)
    assert world.committed(partition=1) == 6


def test_empty_groups_without_offsets_are_deleted_at_the_next_check() -> None:
    world = retaining_world()
    (joined,) = world.stable()
    world.leave(joined.member_id)
    assert world.shard.group_ids() == [GROUP]
    world.advance(CHECK_MS)
    assert world.shard.group_ids() == []


def test_a_group_in_its_initial_delay_is_not_deleted() -> None:
    world = World(group_initial_rebalance_delay_ms=4 * MINUTE_MS, offsets_retention_check_interval_ms=CHECK_MS)
    parked = world.join(rebalance_ms=20 * MINUTE_MS)
    world.advance(3 * MINUTE_MS)
    assert world.shard.group_ids() == [GROUP]
    world.advance(MINUTE_MS)
    assert world.answers[parked].error_code == ErrorCode.NONE


def test_failed_tombstones_are_written_at_the_next_check() -> None:
    world = retaining_world()
    world.commit(5)
    world.advance(RETENTION_MS - 1)
    world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    world.advance(1)
    assert world.committed() == 5
    assert world.shard.counts.offset_expirations == 1, "the append was attempted"
    world.advance(CHECK_MS)
    assert world.committed() == -1


def test_offsets_pending_in_a_transaction_do_not_expire() -> None:
    world = retaining_world()
    world.commit(5)
    key, value = world.log[-1]
    world.shard.replay(key, value, offset=1, producer_id=1000)
    world.advance(2 * RETENTION_MS)
    assert world.committed() == 5
    world.shard.replay_marker(1000, committed=False)
    world.advance(CHECK_MS)
    assert world.committed() == -1
    assert world.shard.group_ids() == []
