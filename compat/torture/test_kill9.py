"""`kill -9` of the broker under test, in less than a minute; `make soak` runs longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compat.brokers import START_TIMEOUT_S, KbrokerProcess
from compat.kafka import KafkaNode
from compat.torture.kill9 import torture
from compat.torture.load import Plan, Recorder


@pytest.mark.long
@pytest.mark.parametrize("segment_bytes", [1 << 30, 1 << 20], ids=["one-segment", "many-segments"])
def test_d1_d13_k1_k2_k3_k4_hold_after_kill_9_under_load(
    start_broker: Callable[..., KbrokerProcess | KafkaNode], segment_bytes: int
) -> None:
    """Kafka 4.3.1 accepts no segments below 1 MiB."""
    broker = start_broker()
    plan = Plan(
        f"kill9-{segment_bytes}", records=3_000, payload_bytes=600, topic_config={"segment.bytes": str(segment_bytes)}
    )
    findings, killer = torture(broker, plan, Recorder(), kills=3)
    assert findings == []
    assert killer.kills == 3


class LosesTheTail(KbrokerProcess):
    """A canary: each restart finds its partitions a little shorter than the broker left them."""

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> float:
        for log in (self.directory / "data").glob("kill9-*/*.log"):
            with log.open("r+b") as file:
                file.truncate(max(0, log.stat().st_size - 200))
        return super().start(timeout_s=timeout_s)


def test_the_judge_detects_lost_log_tails(tmp_path: Path) -> None:
    broker = LosesTheTail(tmp_path)
    broker.start()
    recorder = Recorder()
    plan = Plan("kill9-canary", records=500, producers=2, readers=1)
    try:
        findings, _ = torture(broker, plan, recorder, kills=2, interrupted=0.0, timeout_s=60)
    finally:
        broker.kill()
    assert "lost" in {finding.kind for finding in findings} or recorder.complaints
    assert findings
