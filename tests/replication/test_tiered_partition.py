"""A partition's answers for offsets that are only in the tier."""

from uuid import UUID

import pytest

from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import FUTURE_REPLICA, Fetcher
from kbroker.storage.log_config import LogConfig
from kbroker.storage.retention import RetentionPlan
from kbroker.tiered.api import TopicIdPartition
from kbroker.tiered.partition import RemotePartition
from tests.replication.partitions import append, asking, partition, placed, round_over
from wire.errors import ErrorCode

LARGE = b"x" * 600


def partly_tiered() -> Partition:
    """Offsets 0 to 9, of which 0 to 5 are only in the tier; broker 2 is a follower outside the ISR."""
    held = partition(image=placed(replicas=(1, 2)), config=LogConfig(segment_bytes=1400))
    append(held, 10, value=LARGE)
    held.remote = RemotePartition(TopicIdPartition(UUID(int=1), "t", 0), highest_offset_in_remote_storage=7)
    gone = tuple(segment.base_offset for segment in held.log.segments if segment.base_offset < 6)
    held.log.apply_retention(RetentionPlan(gone, is_copied=True), now_ms=0, timestamp_ms=0)
    assert (held.log.log_start_offset, held.log.local_log_start_offset) == (0, 6)
    return held


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("replica", [2, FUTURE_REPLICA])
def test_a_replica_learns_at_once_that_an_offset_is_tiered(replica: int, offset: int) -> None:
    """KAFKA-16013: a replica never waits for a remote read."""
    made = round_over([partly_tiered()], asking(offset=offset), fetcher=Fetcher(replica), min_bytes=1000)
    answer = made.answers[0]
    assert answer.error_code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert (answer.high_watermark, answer.log_start_offset, answer.size) == (10, 0, 0)
    assert made.answers_at_once


def test_a_fetch_of_a_tiered_offset_acknowledges_nothing() -> None:
    held = partly_tiered()
    made = round_over([held], asking(offset=5), fetcher=Fetcher(2))
    assert made.note_follower() == ([], [])
    assert made.answers[0].error_code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert held.progress is not None
    assert held.progress.followers[2].fetch_offset == -1


def test_a_tiered_offset_is_reported_before_a_stale_broker_epoch() -> None:
    made = round_over([partly_tiered()], asking(offset=5), fetcher=Fetcher(2, is_stale=True))
    made.note_follower()
    assert made.answers[0].error_code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE


@pytest.mark.parametrize(("replica", "epoch"), [(1, -1), (3, -1), (1, 0), (3, 0)])
def test_brokers_without_a_replica_do_not_read_the_tier(replica: int, epoch: int) -> None:
    answer = round_over([partly_tiered()], asking(offset=5, epoch=epoch), fetcher=Fetcher(replica)).answers[0]
    expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if epoch < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (answer.error_code, answer.high_watermark) == (expected, -1)


@pytest.mark.parametrize("replica", [-1, -2])
@pytest.mark.parametrize(("offset", "is_remote"), [(0, True), (5, True), (6, False), (10, False)])
def test_consumers_read_offsets_before_the_local_log_from_the_tier(replica: int, offset: int, is_remote: bool) -> None:
    answer = round_over([partly_tiered()], asking(offset=offset), fetcher=Fetcher(replica)).answers[0]
    assert answer.error_code is ErrorCode.NONE
    assert answer.read is not None
    assert answer.read.is_remote is is_remote
    assert (answer.size > 0) is (6 <= offset < 10)


def test_an_offset_below_the_log_start_is_out_of_range() -> None:
    held = partly_tiered()
    held.log.raise_log_start_offset(3)
    assert round_over([held], asking(offset=2)).answers[0].error_code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert round_over([held], asking(offset=2), fetcher=Fetcher(2)).answers[0].error_code is (
        ErrorCode.OFFSET_OUT_OF_RANGE
    )
    held.remote = None
    assert round_over([held], asking(offset=4)).answers[0].error_code is ErrorCode.OFFSET_OUT_OF_RANGE
