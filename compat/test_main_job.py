"""The end-to-end job of `python -m compat.main_job`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.brokers import KbrokerProcess
from compat.kafka import KafkaNode
from compat.kafka.libraries import executable
from compat.main_job import LEAST_LINES, run


def test_d1_a_real_log_survives_kill_9_exactly_once(tmp_path: Path) -> None:
    executable("kcat", hint="install kcat 1.7.1")
    if os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        pytest.skip("an external broker is not ours to kill")
    kafka = os.environ.get("KBROKER_COMPAT_BROKER") == "kafka"
    broker = KafkaNode(tmp_path) if kafka else KbrokerProcess(tmp_path)
    try:
        result = run(broker, kills=2)
    finally:
        if broker.process is not None:
            broker.kill()
        print(broker.log_tail())  # pytest shows it if the test fails
    assert result.good, result
    assert result.lines >= LEAST_LINES
