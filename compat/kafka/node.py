"""One combined node of Apache Kafka 4.3.1 on two loopback ports, with the settings of a new installation."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat.brokers import StartFailed, await_answer, end, free_port
from compat.kafka.jvm import QUICK_START, java_command, java_environment
from compat.kafka.libraries import KAFKA_VERSION
from compat.kafka.tools import run_tool

CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
# The options of kafka-server-start.sh: for measuring.
AS_INSTALLED = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
# Starts sooner and leaves the cores to the tests: for comparing answers.
FOR_COMPARING = (*QUICK_START[:-1], "-Xmx512m")

_INTERNAL_TOPICS = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_WITHOUT_LINGERING = {"controller.quorum.append.linger.ms": "0"}
"""Each change of the metadata would wait 25 ms for others."""
# The directory tier of Kafka's own tests. Without a class path: with its own class loader it would end the broker.
_TIER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
}


def tier_settings(directory: Path) -> dict[str, str]:
    """The settings that enable tiered storage, with segments below `directory`, which is created if necessary."""
    directory.mkdir(parents=True, exist_ok=True)
    return {**_TIER, "rsm.config.dir": str(directory)}


class KafkaNode:
    """Apache Kafka as broker and controller in one process.

    It is formatted with the features that kbroker gives to a new directory (`release` and group.version), because they
    change answers: with eligible leader replicas, for example, a cluster sets min.insync.replicas as a dynamic default.
    The data directory survives `kill` and `stop`; `start` may be called again and keeps the ports.
    With `tier`, a directory, tiered storage is enabled and keeps segments there.
    """

    name = f"Apache Kafka {KAFKA_VERSION}"

    def __init__(
        self,
        directory: Path,
        *,
        overrides: Mapping[str, str] | None = None,
        options: Sequence[str] = FOR_COMPARING,
        release: str = "3.9",
        tier: Path | None = None,
    ) -> None:
        self.directory = directory
        self.log_directory: Path | None = directory / "data"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._controller_port = free_port()
        self._overrides = dict(overrides or {}) if tier is None else tier_settings(tier) | dict(overrides or {})
        self._options = options
        self._release = release
        self._log = directory / "log.txt"

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the client listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def bootstrap_controllers(self) -> str:
        """`host:port` of the controller listener."""
        return f"127.0.0.1:{self._controller_port}"

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        assert self.process is not None, "not started"
        return self.process.pid

    def _properties(self) -> Path:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.log_directory),
            **_INTERNAL_TOPICS,
            **({} if self._options == AS_INSTALLED else _WITHOUT_LINGERING),
            **self._overrides,
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def format(self) -> None:
        """Format the log directory if necessary; Kafka does not start without."""
        assert self.log_directory is not None
        if (self.log_directory / "meta.properties").exists():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        version = ["--release-version", self._release, "--feature", "group.version=1"]
        done = run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties()), *version)
        if done.returncode != 0:
            raise StartFailed(f"cannot format: {done.stdout}{done.stderr}")

    def start(self, *, timeout_s: float = 60) -> float:
        """Start the node and wait until it answers ApiVersions. Returns the seconds until then (without formatting).

        Errors: StartFailed with the end of its log.
        """
        self.format()
        began = time.monotonic()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                java_command("kafka.Kafka", str(self._properties()), options=self._options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=java_environment(),
            )
        try:
            await_answer(("127.0.0.1", self.port), self.process, timeout_s=timeout_s)
        except StartFailed as error:
            end(self.process)
            raise StartFailed(f"{error}\n{self.log_tail()}") from None
        return time.monotonic() - began

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None, "not started"
        end(self.process, signal_number=signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: a controlled shutdown. Returns the exit status."""
        return 0 if self.process is None else end(self.process, timeout_s=30)

    def discard(self) -> None:
        """Kill the node and remove all its files."""
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log_tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""
