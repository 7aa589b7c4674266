"""`kill -9` of the broker under test, bounded to less than a minute; `python -m compat.torture.kill9` goes further."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.brokers import KbrokerProcess
from compat.kafka import KafkaNode
from compat.torture.kill9 import torture
from compat.torture.load import Plan, Recorder


@pytest.mark.parametrize("segment_bytes", [1 << 30, 1 << 20], ids=["one-segment", "many-segments"])
def test_d1_k1_k2_k3_k4_hold_after_kill_9_under_load(
    start_broker: Callable[..., KbrokerProcess | KafkaNode], segment_bytes: int
) -> None:
    """Kafka 4.3.1 takes no segments below 1 MiB."""
    broker = start_broker()
    plan = Plan("kill9", records=4_000, payload_bytes=600, topic_config={"segment.bytes": str(segment_bytes)})
    findings, killer = torture(broker, plan, Recorder(), kills=3)
    assert findings == []
    assert killer.kills == 3
