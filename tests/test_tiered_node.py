"""A tiered topic on a real broker process, from the user's commands to a stock client's reads."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, serve_and_fail
from wire.messages.fetch import FetchRequest

with warnings.catch_warnings():
    # kafka-python reads its schemas with a deprecated function.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import KafkaConnectionError

QUICK = (
    "--override",
    "remote.log.manager.task.interval.ms=100",
    "--override",
    "log.retention.check.interval.ms=100",
    "--override",
    "log.segment.delete.delay.ms=0",
)
RECORDS, VALUE_BYTES, SEGMENT_BYTES = 5_000, 1_000, 1 << 20
WAIT_S = 30


def until(broker: BrokerProcess, condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; the broker continues to work, and answers."""
    deadline = time.monotonic() + WAIT_S
    with broker.client() as client:
        while not condition():
            assert time.monotonic() < deadline
            # Held by the broker for a moment, since there is nothing to give.
            client.ask(FetchRequest(max_wait_ms=20, min_bytes=1, topics=[]), version=11)


def value(number: int) -> bytes:
    return b"%08d" % number * (VALUE_BYTES // 8)


def address(broker: BrokerProcess) -> str:
    return f"{broker.host}:{broker.port}"


def create_topic(broker: BrokerProcess, name: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=address(broker))) as admin:
        configs = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"}
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1, topic_configs=configs)])


def delete_topic(broker: BrokerProcess, name: str, *, may_die: bool = False) -> None:
    """A broker may be made to die by the deletion, possibly before it answers."""
    with (
        closing(KafkaAdminClient(bootstrap_servers=address(broker))) as admin,
        suppress(*[KafkaConnectionError] * may_die),
    ):
        admin.delete_topics([name])


def produce(broker: BrokerProcess, topic: str, start: int, end: int) -> None:
    with closing(KafkaProducer(bootstrap_servers=address(broker), acks="all")) as producer:
        sent = [producer.send(topic, value(number)) for number in range(start, end)]
        assert [one.get(timeout=WAIT_S).offset for one in sent] == list(range(start, end))


def consume(broker: BrokerProcess, topic: str, count: int) -> None:
    """Read from offset 0 and compare every record."""
    with closing(
        KafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="none", consumer_timeout_ms=WAIT_S * 1000)
    ) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        for number in range(count):
            record = next(consumer)
            assert (record.offset, record.value) == (number, value(number))


def local_bytes(directory: Path, topic: str) -> int:
    found = 0
    for path in (directory / f"{topic}-0").glob("*.log"):
        with suppress(FileNotFoundError):  # retention was faster
            found += path.stat().st_size
    return found


def remote_files(directory: Path) -> list[str]:
    # os.walk continues if a directory is removed during the walk.
    return [name for _, _, names in os.walk(f"{directory}-tier") for name in names]


@pytest.mark.long
def test_all_records_are_readable_with_one_local_segment(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with BrokerProcess(directory, *QUICK) as broker:
        create_topic(broker, "orders")
        produce(broker, "orders", 0, RECORDS)
        until(broker, lambda: local_bytes(directory, "orders") < SEGMENT_BYTES)
        consume(broker, "orders", RECORDS)
        broker.stop(signal.SIGKILL)
    with BrokerProcess(directory, *QUICK) as broker:
        consume(broker, "orders", RECORDS)
        produce(broker, "orders", RECORDS, 2 * RECORDS)
        until(broker, lambda: local_bytes(directory, "orders") < SEGMENT_BYTES)
        assert broker.stop()[0] == 0
    with BrokerProcess(directory, *QUICK) as broker:
        consume(broker, "orders", 2 * RECORDS)
        delete_topic(broker, "orders")
        until(broker, lambda: not remote_files(directory))


def test_a_topic_deleted_just_before_a_kill_leaves_no_objects(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with BrokerProcess(directory, *QUICK) as broker:
        create_topic(broker, "orders")
        produce(broker, "orders", 0, RECORDS)
        until(broker, lambda: local_bytes(directory, "orders") < SEGMENT_BYTES)
        delete_topic(broker, "orders")
        broker.stop(signal.SIGKILL)
    with BrokerProcess(directory, *QUICK) as broker:
        until(broker, lambda: not remote_files(directory))


@pytest.mark.long
def test_a_log_keeps_its_start_without_tier_metadata(tmp_path: Path) -> None:
    """Not only after the next start, which logs it: also with new segments in the tier, and after the start after
    that.
    """
    directory = tmp_path / "data"
    partition = TopicPartition("orders", 0)
    with BrokerProcess(directory, *QUICK) as broker:
        create_topic(broker, "orders")
        produce(broker, "orders", 0, RECORDS)
        until(broker, lambda: local_bytes(directory, "orders") < SEGMENT_BYTES)
        assert broker.stop()[0] == 0
    copied = set(remote_files(directory))
    lost = [path for path in directory.iterdir() if path.name.startswith("__remote_log_metadata-")]
    assert lost
    for path in lost:
        shutil.rmtree(path)
    for begun in (1, 2):
        with BrokerProcess(directory, *QUICK) as broker:
            produce(broker, "orders", begun * RECORDS, (begun + 1) * RECORDS)
            until(broker, lambda: local_bytes(directory, "orders") < SEGMENT_BYTES)
            with closing(KafkaConsumer(bootstrap_servers=address(broker))) as consumer:
                assert consumer.beginning_offsets([partition]) == {partition: 0}, begun
            assert broker.stop()[0] == 0
    with (
        BrokerProcess(directory, *QUICK) as broker,
        closing(KafkaConsumer(bootstrap_servers=address(broker), consumer_timeout_ms=WAIT_S * 1000)) as consumer,
    ):
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        consumer.assign([partition])
        for number in range(RECORDS, 3 * RECORDS):
            if number == RECORDS:
                consumer.seek(partition, number)
            record = next(consumer)
            assert (record.offset, record.value) == (number, value(number))
    assert copied < set(remote_files(directory)), "nothing of it is deleted"


def test_a_stop_does_not_wait_for_a_missing_tier(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with BrokerProcess(directory, *QUICK) as broker:
        create_topic(broker, "orders")
        produce(broker, "orders", 0, RECORDS)
        until(broker, lambda: local_bytes(directory, "orders") < SEGMENT_BYTES)
        tier = tmp_path / "data-tier"
        tier.rename(tmp_path / "gone")
        tier.write_text("no directory any more")
        produce(broker, "orders", RECORDS, 2 * RECORDS)
        code, seconds = broker.stop()
    assert code == 0
    assert seconds < 5


@pytest.mark.long
def test_a_stop_does_not_wait_for_a_hanging_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIO_ACCESS_KEY", "somebody")
    monkeypatch.setenv("MINIO_SECRET_KEY", "something")
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        settings = {
            "remote.log.storage.manager.class.name": "minio",
            "rsm.config.endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "rsm.config.bucket": "b",
        }
        overrides = [part for key, text in settings.items() for part in ("--override", f"{key}={text}")]
        with BrokerProcess(tmp_path / "data", *QUICK, *overrides) as broker:
            create_topic(broker, "orders")
            produce(broker, "orders", 0, RECORDS)
            connection, _ = silent.accept()
            assert connection.recv(1), "a copy has begun"
            code, seconds = broker.stop()
            connection.close()
    assert code == 0
    assert seconds < 10
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_start_without_the_tier_of_topics_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *QUICK) as broker:
        create_topic(broker, "orders")
        broker.stop()
    off = ("--override", "remote.log.storage.system.enable=false")
    code, errors = serve_and_fail(tmp_path / "data", *off)
    assert code == 1
    assert re.search(r"delete all topics with the property remote.storage.enable=true before .*: orders", errors)
    assert "Traceback" not in errors


def test_a_wrong_store_setting_is_reported_without_secrets(tmp_path: Path) -> None:
    settings = {
        "remote.log.storage.manager.class.name": "minio",
        "rsm.config.endpoint": "http://127.0.0.1:1",
        "rsm.config.bucket": "b",
        "rsm.config.access.key": "swordfish",
        "rsm.config.secret.kye": "swordfish",
    }
    overrides = [part for key, text in settings.items() for part in ("--override", f"{key}={text}")]
    code, errors = serve_and_fail(tmp_path / "data", *overrides)
    assert code == 1
    assert "rsm.config.secret.kye; did you mean rsm.config.secret.key?" in errors
    assert "swordfish" not in errors
