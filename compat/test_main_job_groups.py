"""The end-to-end job of `python -m compat.main_job_groups`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.brokers import KbrokerProcess
from compat.kafka import KafkaNode
from compat.kafka.libraries import libraries
from compat.main_job import LEAST_LINES
from compat.main_job_groups import run


def test_a_group_reads_a_real_log_despite_restarts(tmp_path: Path) -> None:
    if os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        pytest.skip("an external broker is not ours to kill")
    libraries()  # the directory of Kafka's schemas
    kafka = os.environ.get("KBROKER_COMPAT_BROKER") == "kafka"
    broker = KafkaNode(tmp_path) if kafka else KbrokerProcess(tmp_path)
    try:
        result = run(broker)
    finally:
        if broker.process is not None:
            broker.kill()
        print(broker.log_tail())  # pytest shows it if the test fails
    assert result.good, result
    assert result.lines >= LEAST_LINES
    assert result.looks > 20
