"""Data directories of a broker with a tier, and helpers that wait for the tier."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from glob import glob
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

from kbroker.cli import main
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.runtime.env import RealEnv
from kbroker.runtime.free_ports import free_ports
from tests.broker_process import BrokerProcess
from wire.record_batch import Record, batches, build_batch

COLD, WARM, SMALL, QUICK, GONE, PLAIN = "cold", "warm", "small", "quick", "gone", "plain"
RECORDS = 3_000
SETTINGS = (
    "--profile", "test",
    "--override", "remote.log.manager.task.interval.ms=100",
    "--override", "log.retention.check.interval.ms=100",
    "--override", "log.segment.delete.delay.ms=0",
)  # fmt: skip
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
NOTHING_LOCAL = "local.retention.bytes=0"
TOPICS = {
    # All records are only in the tier, in two leader epochs. A second partition is empty.
    COLD: TIERED,
    # All but the last five records are copied, and all records are local.
    WARM: TIERED,
    # Three records in one segment, copied and local.
    SMALL: TIERED,
    # Copied, and then expired.
    QUICK: {**TIERED, "local.retention.bytes": "0", "retention.bytes": "0"},
    GONE: TIERED,
    PLAIN: {"segment.bytes": "1048576", "retention.ms": "-1", "retention.bytes": "104857600"},
}


class Site(NamedTuple):
    """The directories of a broker's data and tier."""

    data: Path

    @property
    def tier(self) -> Path:
        return self.data.with_name(self.data.name + "-tier")

    def copy(self, root: Path) -> Site:
        """A copy, which tests may damage."""
        copied = Site(root / "data")
        shutil.copytree(self.data, copied.data)
        shutil.copytree(self.tier, copied.tier)
        return copied

    def objects(self, topic: str, kind: str) -> list[Path]:
        """The files of one kind that the tier has of a topic, by their offsets."""
        # Unlike Path.glob, this continues if a directory is removed during the walk.
        return sorted(map(Path, glob(f"{self.tier}/{topic}-*/*/*.{kind}")))


def append_to_metadata(site: Site, *values: bytes) -> None:
    """Append records to the metadata topic while no broker runs. A broker refuses records that it could not read."""
    (log,) = (path for path in site.data.glob(f"{REMOTE_LOG_METADATA_TOPIC}-*/*.log") if path.stat().st_size)
    last = list(batches(log.read_bytes()))[-1]
    with log.open("ab") as file:
        for offset, value in enumerate(values, last.next_offset):
            record = Record(-1, last.max_timestamp, None, value)
            file.write(build_batch([record], base_offset=offset, partition_leader_epoch=last.partition_leader_epoch))


class Served(NamedTuple):
    """A broker on a site, and its pages."""

    site: Site
    address: str
    http: str

    def state(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Each partition in /state."""
        state = json.loads(self.page("/state"))
        return {(each["topic"], each["partition"]): each for each in state["partitions"]}

    def page(self, path: str) -> bytes:
        host, _, port = self.http.rpartition(":")
        connection = HTTPConnection(host, int(port), timeout=20)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def metrics(self) -> dict[tuple[str, str | None], float]:
        """Kafka's metrics of topics, by name and topic; None is for all topics."""
        prefix, of_all = "kafka_server_brokertopicmetrics_", "kbroker_all_topics_"
        return {
            (sample.name.removeprefix(prefix).removeprefix(of_all), sample.labels.get("topic")): sample.value
            for family in text_string_to_metric_families(self.page("/metrics").decode())
            for sample in family.samples
            if sample.name.startswith((prefix, of_all))
        }

    def until(self, what: str, condition: Callable[[], bool], *, seconds: float = 30) -> None:
        """Poll until the condition holds."""
        env = RealEnv()
        deadline = env.now_ms() + seconds * 1000
        while not condition():
            assert env.now_ms() < deadline, f"{what} within {seconds} s"


class TieredBroker:
    """`kbroker serve` on a site. Use as a context manager."""

    def __init__(self, site: Site, *arguments: str) -> None:
        self._http = f"127.0.0.1:{free_ports(1)[0]}"
        self._site = site
        self.process = BrokerProcess(site.data, *SETTINGS, "--http", self._http, *arguments)

    def __enter__(self) -> Served:
        self.process.__enter__()
        return Served(self._site, f"{self.process.host}:{self.process.port}", self._http)

    def __exit__(self, *_: object) -> None:
        code = self.process.stop()[0]
        assert code == 0, self.process.stop_and_read_errors()
        self.process.__exit__()


def value_of(number: int) -> bytes:
    return b"%d " % number * 180


def fill(served: Served, topic: str, *, first: int = 0, count: int = RECORDS, partition: int = 0) -> None:
    """Write records, in batches of about 16 KB."""
    with closing(KafkaProducer(bootstrap_servers=served.address)) as producer:
        for number in range(first, first + count):
            producer.send(
                topic, value_of(number), key=b"k%d" % number, partition=partition, timestamp_ms=1_000 + number
            )


def make_site(root: Path) -> Site:
    """Made by a broker that ran twice, so that there are two leader epochs."""
    site = Site(root / "data")
    with TieredBroker(site) as served:
        with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
            admin.create_topics(
                {
                    name: {"num_partitions": 2 if name == COLD else 1, "replication_factor": 1, "configs": configs}
                    for name, configs in TOPICS.items()
                }
            )
            for topic in TOPICS:
                fill(served, topic, count=3 if topic == SMALL else RECORDS)
            # Not before: retention closes the active segment at each look then, and the slower the machine writes, the
            # smaller the segments would be.
            assert (
                main(["config", "--alter", "-b", served.address, "--topic", COLD, "--add-config", NOTHING_LOCAL]) == 0
            )
            for topic in (COLD, WARM, SMALL, QUICK, GONE):
                assert main(["tier", "flush", "-b", served.address, "--topic", topic, "--format", "json"]) == 0
            admin.delete_topics([GONE])
        served.until("the deleted topic leaves the tier", lambda: not site.objects(GONE, "log"))
        served.until("expired segments leave the tier", lambda: not site.objects(QUICK, "log"))
    with TieredBroker(site) as served:
        fill(served, COLD, first=RECORDS, count=600)
        assert main(["tier", "flush", "-b", served.address, "--topic", COLD, "--format", "json"]) == 0
        fill(served, WARM, first=RECORDS, count=5)
        served.until(
            "copied segments leave the disk",
            lambda: served.state()[COLD, 0]["local_log_start_offset"] == RECORDS + 600,
        )
    return site
