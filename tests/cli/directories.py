"""Sound data directories of a broker, and ways to damage them."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.broker_process import BrokerProcess
from wire.record_batch import RecordBatch

if TYPE_CHECKING:
    from tests.cli.conftest import Done

TOPIC = "orders"
FIRST = "00000000000000000000"
SETTINGS = ["--override", "metadata.log.max.record.bytes.between.snapshots=200"]

State = dict[str, tuple[int, int, bytes]]


class Sound(NamedTuple):
    """Sound directories: after a clean shutdown, and of a killed broker."""

    stopped: Path
    killed: Path


def fill(broker: BrokerProcess) -> None:
    """Partition 0 over several segments, idempotent; 1 with every codec; committed offsets; a topic to be deleted."""
    servers = f"{broker.host}:{broker.port}"
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        configs = {"segment.bytes": "1048576", "retention.ms": "-1", "index.interval.bytes": "4096"}
        admin.create_topics({TOPIC: {"num_partitions": 2, "replication_factor": 1, "configs": configs}})
        admin.create_topics({"gone": {"num_partitions": 1, "replication_factor": 1}})
        with closing(KafkaProducer(bootstrap_servers=servers, batch_size=8_000)) as producer:
            for number in range(2_400):
                producer.send(TOPIC, b"%d" % number * 250, key=b"k%d" % number, partition=0)
        for codec in (None, "gzip", "snappy", "lz4", "zstd"):
            with closing(KafkaProducer(bootstrap_servers=servers, compression_type=codec)) as producer:
                for number in range(50):
                    producer.send(TOPIC, b"even " * 40, headers=[("n", b"%d" % number)], partition=1)
        with closing(KafkaConsumer(bootstrap_servers=servers, group_id="readers")) as consumer:
            consumer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(7, "", -1)})


def make_sound(root: Path) -> Sound:
    """Made by a broker that ran twice, so that there are two leader epochs."""
    live = root / "live"
    overrides = [*SETTINGS, "--override", "offsets.topic.num.partitions=2"]
    with BrokerProcess(live, *overrides) as broker:
        fill(broker)
        assert broker.stop()[0] in {0, 143}
    with BrokerProcess(live, *overrides) as broker:
        with closing(KafkaProducer(bootstrap_servers=f"{broker.host}:{broker.port}")) as producer:
            for number in range(20):
                producer.send(TOPIC, b"again %d" % number, partition=number % 2).get(20)
        with closing(KafkaAdminClient(bootstrap_servers=f"{broker.host}:{broker.port}")) as admin:
            admin.delete_topics(["gone"])
        assert broker.stop()[0] in {0, 143}
    shutil.copytree(live, root / "stopped")
    with BrokerProcess(live, *overrides) as broker:
        producer = KafkaProducer(bootstrap_servers=f"{broker.host}:{broker.port}")
        for number in range(20):
            producer.send(TOPIC, b"last %d" % number, partition=number % 2).get(20)
        producer.close(timeout=1)
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait(20)
    assert len(list((root / "stopped" / f"{TOPIC}-0").glob("*.log"))) >= 3
    assert list((root / "stopped" / "__cluster_metadata-0").glob("*.checkpoint"))
    return Sound(root / "stopped", live)


def state_of(directory: Path) -> State:
    """The properties of the files that must not change."""
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


def findings(done: Done) -> list[str]:
    """The lines that are not notes."""
    return [line for line in done.lines if ": note: " not in line]


def partition(directory: Path, index: int = 0) -> Path:
    return directory / f"{TOPIC}-{index}"


def logs(directory: Path) -> list[Path]:
    return sorted(partition(directory).glob("*.log"))


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        changed = file.read(1)[0] ^ mask
        file.seek(position)
        file.write(bytes([changed]))


def starts(path: Path) -> list[int]:
    """The byte positions of a log's batches."""
    data, position, found = path.read_bytes(), 0, []
    while position < len(data):
        found.append(position)
        position += RecordBatch(data, position).size
    return found
