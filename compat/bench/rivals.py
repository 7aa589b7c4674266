"""The two brokers of a run, and measurements of their processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from compat.brokers import CHECKOUT, KbrokerProcess, address_of, answers
from compat.kafka import KafkaNode
from compat.kafka.node import AS_INSTALLED
from compat.kafka.tools import run_tool
from compat.oracle.conftest import await_leaders
from compat.oracle.raw import connected
from compat.oracle.schema import encode_request
from compat.processes import cpu_seconds, resident_mib
from compat.waiting import MEASURE_S, until

# The options of kafka-run-class.sh and kafka-producer-perf-test.sh.
PERFORMANCE_TOOL = ("-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_topics = itertools.count()


class Rival:
    """One broker under measurement."""

    def __init__(self, broker: KbrokerProcess | KafkaNode, *, name: str = "") -> None:
        self.broker = broker
        self.name = name or broker.name

    @property
    def servers(self) -> str:
        """Its bootstrap servers."""
        return self.broker.bootstrap_servers

    def timed_start(self) -> float:
        """Start it. Returns the seconds from the start of the process to the first answer to ApiVersions."""
        began = time.perf_counter()
        self.broker.start()
        until(lambda: answers(address_of(self.servers)), each_s=0.001)
        return time.perf_counter() - began

    def resident_mib(self) -> float:
        """The resident memory of its process and the child processes."""
        return resident_mib(self.broker.pid)

    def cpu_seconds(self) -> float:
        """User and system time so far of all its threads and child processes."""
        return cpu_seconds(self.broker.pid)

    def topic(self, stem: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic and wait for its leaders."""
        name = f"{stem}-{next(_topics)}"
        settings = [{"Name": key, "Value": value} for key, value in (configs or {}).items()]
        wanted = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": settings}
        with connected(self.servers, timeout_s=120) as connection:
            connection.send(_create(wanted))
            connection.answer()
        await_leaders(self.servers, name, partitions)
        return name

    def delete(self, *topics: str) -> None:
        """Delete topics, so that the disk does not fill up."""
        with connected(self.servers) as connection:
            connection.call("DeleteTopics", 4, {"TopicNames": list(topics), "TimeoutMs": 30_000})

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set settings of a topic."""
        changes = [{"Name": key, "ConfigOperation": 0, "Value": value} for key, value in configs.items()]
        resource = {"ResourceType": 2, "ResourceName": topic, "Configs": changes}
        with connected(self.servers) as connection:
            answer = connection.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
        assert answer["Responses"][0]["ErrorCode"] == 0, answer

    def measure(self, name: str, topic: str, **arguments: object) -> dict[str, float]:
        """Run one measurement of `worker` in its own process."""
        try:
            return measure(name, self.servers, topic, **arguments)
        except RuntimeError as error:
            raise RuntimeError(f"on {self.name}: {error}\n{self.broker.log_tail()}") from error

    def producer_performance(self, topic: str, *, records: int) -> float:
        """Records per second of Kafka's ProducerPerformance with records of 1 KiB."""
        done = run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", self.servers, "--topic", topic, "--num-records", str(records)),
            *("--record-size", "1024", "--throughput", "-1"),
            timeout_s=MEASURE_S,
            options=PERFORMANCE_TOOL,
        )
        found = re.findall(rf"^{records} records sent, ([\d.]+) records/sec", done.stdout, re.MULTILINE)
        if done.returncode != 0 or not found:
            raise RuntimeError(f"ProducerPerformance on {self.name} failed:\n{done.stdout}{done.stderr}")
        return float(found[-1])


def measure(name: str, servers: str, topic: str, **arguments: object) -> dict[str, float]:
    """Run one measurement of `worker` in its own process. Errors: RuntimeError."""
    job = json.dumps({"measure": name, "servers": servers, "topic": topic, **arguments})
    command = [sys.executable, "-m", "compat.bench.worker", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name}: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _create(topic: dict[str, object]) -> bytes:
    return encode_request("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 120_000})


@contextlib.contextmanager
def rivals(
    directory: Path,
    *,
    which: set[str],
    tier: Mapping[str, str] | None = None,
    kbroker: Mapping[str, str] | None = None,
) -> Iterator[list[Rival]]:
    """The requested ones of {"kafka", "kbroker", "pure"}, not started yet. All of them are stopped at the end even
    after an error, because a running broker distorts the next measurement. With `tier`, its settings, each has a tier;
    `kbroker` has settings of kbroker alone. "pure" is kbroker without its compiled modules, from a copy of the sources.
    """
    result = []
    if "kafka" in which:
        place = None if tier is None else directory / "kafka-tier"
        result.append(
            Rival(KafkaNode(directory / "kafka", options=AS_INSTALLED, release="4.3", overrides=tier, tier=place))
        )
    if "kbroker" in which:
        place = None if tier is None else directory / "kbroker-tier"
        overrides = [f"{key}={value}" for key, value in {**(tier or {}), **(kbroker or {})}.items()]
        result.append(Rival(KbrokerProcess(directory / "kbroker", overrides=overrides, tier=place)))
    if "pure" in which:
        sources = directory / "sources"
        for package in ("kbroker", "wire"):
            ignored = shutil.ignore_patterns("*.so")
            shutil.copytree(CHECKOUT / package, sources / package, ignore=ignored, dirs_exist_ok=True)
        result.append(Rival(KbrokerProcess(directory / "pure", checkout=sources), name="pure"))
    try:
        yield result
    finally:
        for rival in result:
            if rival.broker.process is not None:
                rival.broker.kill()
