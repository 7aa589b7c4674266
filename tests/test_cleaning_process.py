"""The worker process that cleans logs for a real broker: its work, and the effect when it or the broker dies."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.test_copy_process import has_ended, workers_of
from tests.test_tiered_node import WAIT_S, address, local_bytes, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic

QUICK = ("--override", "log.cleaner.backoff.ms=100", "--override", "log.segment.delete.delay.ms=0")
# A pass takes seconds then. It pauses for some of them after each step, and only the next step finds a dead worker.
SLOWLY = ("--override", "log.cleaner.io.max.bytes.per.second=200000")
KEYS, RECORDS, VALUE_BYTES, SEGMENT_BYTES = 50, 3_000, 1_000, 1 << 20


def fill(broker: BrokerProcess) -> None:
    configs = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01"}
    with closing(KafkaAdminClient(bootstrap_servers=address(broker))) as admin:
        admin.create_topics([NewTopic("t", num_partitions=1, replication_factor=1, topic_configs=configs)])
    with closing(KafkaProducer(bootstrap_servers=address(broker), acks="all")) as producer:
        sent = [
            producer.send("t", key=b"%d" % (n % KEYS), value=b"%08d" % n * (VALUE_BYTES // 8)) for n in range(RECORDS)
        ]
        for one in sent:
            one.get(timeout=WAIT_S)


def check(broker: BrokerProcess) -> None:
    """A consumer ends with the last value of each key."""
    with closing(
        KafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="none", consumer_timeout_ms=WAIT_S * 1000)
    ) as consumer:
        partition = TopicPartition("t", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        values = {}
        for record in consumer:
            values[record.key] = record.value[:8]
            if record.offset == RECORDS - 1:
                break
    assert values == {b"%d" % (n % KEYS): b"%08d" % n for n in range(RECORDS - KEYS, RECORDS)}


def is_clean(broker: BrokerProcess) -> bool:
    return local_bytes(broker.directory, "t") < 2 * SEGMENT_BYTES


def worker_of(broker: BrokerProcess, *, after: int = 0) -> int:
    """The broker's only child process, once there is one that is not `after`."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = workers_of(broker)
        return len(found) == 1 and found != [after]

    until(broker, is_there)
    return found[0]


@pytest.mark.long
def test_a_process_cleans_and_ends(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *QUICK) as broker:
        fill(broker)
        until(broker, lambda: is_clean(broker))
        check(broker)
        until(broker, lambda: not workers_of(broker))
        code, _ = broker.stop()
        assert code == 0
        errors = broker.stop_and_read_errors()
    assert "cleaned a log topic=t" in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_killed_cleaner_or_broker_loses_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with BrokerProcess(directory, *QUICK, *SLOWLY) as broker:
        fill(broker)
        worker = worker_of(broker)
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        worker_of(broker, after=worker)
        check(broker)
        pidfd = os.pidfd_open(worker_of(broker))
        broker.stop(signal.SIGKILL)
        assert has_ended(pidfd)
    with BrokerProcess(directory, *QUICK) as broker:
        until(broker, lambda: is_clean(broker))
        check(broker)
