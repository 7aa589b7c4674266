"""What becomes of a Produce with acks=all that waits for its replicas."""

from __future__ import annotations

from kbroker.broker.appending import Appended
from kbroker.storage.log_config import LogConfig
from tests.replication.partitions import partition, placed
from wire.errors import ErrorCode
from wire.record_batch import Record, build_batch

BOTH = (1, 2)


def test_r8_a_deposed_leader_never_acknowledges_what_waited() -> None:
    """Also if it leads again and its high watermark passes the offset: other records may be there."""
    led = partition(image=placed(replicas=BOTH, isr=BOTH), config=LogConfig())
    plan = led.log.append(build_batch([Record(timestamp=1, value=b"x")]), leader_epoch=0, timestamp_ms=1)
    led.on_append()
    waiting = Appended(led, plan, -1)
    assert waiting.outcome() is None
    led.apply(placed(replicas=BOTH, isr=BOTH, leader=2, epoch=1, partition_epoch=1))
    assert waiting.outcome() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.apply(placed(replicas=BOTH, isr=(1,), epoch=2, partition_epoch=2))
    assert led.known_high_watermark == plan.next_offset
    assert waiting.outcome() is ErrorCode.NOT_LEADER_OR_FOLLOWER
