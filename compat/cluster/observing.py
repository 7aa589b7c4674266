"""Observes a running cluster for the checkers of `kbroker/testing/cluster_checker.py`: what its nodes answer to
clients at each moment, and what is on their disks at the end.

One thread asks each broker, so a paused broker delays only its own answers and these stay in order. An answer that
equals the node's last one is not recorded again until the next `heal`.
"""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import Any, Final

from compat.background import Background
from compat.cluster.nodes import METADATA_PARTITION, Node, ProcessCluster
from compat.oracle.raw import RawConnection
from compat.torture.load import Recorder
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT
from kbroker.testing.cluster_checker import METADATA
from kbroker.testing.disk_logs import note_log, truncation_reason
from kbroker.testing.history import Function, Type

EACH_S: Final = 0.2
ANSWER_S: Final = 2.0
TRUNCATION: Final = re.compile(
    r"truncating a partition.* partition=(\S+) from_offset=\d+ to_offset=(\d+) high_watermark=(-?\d+) why=(.*)"
)


class Observer(Background):
    """A context manager: it asks every broker about one topic until the end of the block."""

    def __init__(self, cluster: ProcessCluster, topic: str, partitions: int, recorder: Recorder) -> None:
        super().__init__(*(partial(self._watch, node) for node in cluster.brokers.values()))
        self._topic, self._partitions, self._recorder = topic, partitions, recorder
        self._last: dict[tuple[str, Function, str], tuple[Any, ...]] = {}

    def heal(self) -> None:
        """Note that the harness has ended all faults."""
        self._recorder.note("harness", Function.HEAL, Type.OK, "")
        self._last.clear()

    def _watch(self, node: Node) -> None:
        while not self.over.is_set():
            with contextlib.suppress(OSError, AssertionError):
                connection = RawConnection(node.address, timeout_s=ANSWER_S)
                try:
                    while not self.over.wait(EACH_S):
                        self._ask(f"broker-{node.node_id}", connection)
                finally:
                    connection.close()
            self.over.wait(EACH_S)

    def _ask(self, process: str, connection: RawConnection) -> None:
        latest = [{"PartitionIndex": index, "Timestamp": -1} for index in range(self._partitions)]
        asked = {"ReplicaId": -1, "Topics": [{"Name": self._topic, "Partitions": latest}]}
        for part in connection.call("ListOffsets", 6, asked)["Topics"][0]["Partitions"]:
            if not part["ErrorCode"]:
                key = f"{self._topic}-{part['PartitionIndex']}"
                self._note(process, Function.LEADS, key, epoch=part["LeaderEpoch"], offset=part["Offset"])
        named = {"Topics": [{"Name": self._topic}], "AllowAutoTopicCreation": False}
        for part in connection.call("Metadata", 7, named)["Topics"][0]["Partitions"]:
            out = sorted(set(part["ReplicaNodes"]) - set(part["IsrNodes"]))
            key = f"{self._topic}-{part['PartitionIndex']}"
            self._note(process, Function.ISR, key, value=",".join(map(str, out)), epoch=part["LeaderEpoch"])
        quorum = connection.call("DescribeQuorum", 0, {"Topics": [METADATA_PARTITION]})
        for part in [] if quorum["ErrorCode"] else quorum["Topics"][0]["Partitions"]:
            if not part["ErrorCode"] and part["LeaderId"] >= 0:
                self._note(
                    process, Function.CONTROLLER, METADATA, value=str(part["LeaderId"]), epoch=part["LeaderEpoch"],
                    offset=part["HighWatermark"],
                )  # fmt: skip

    def _note(self, process: str, function: Function, key: str, **fields: Any) -> None:
        answer = tuple(fields.values())
        if self._last.get((process, function, key)) != answer:
            self._last[process, function, key] = answer
            self._recorder.note(process, function, Type.OK, key, **fields)


def note_disks(cluster: ProcessCluster, topic: str, partitions: int, recorder: Recorder) -> None:
    """Record the logs and checkpoints of all nodes, and the truncations that kbroker brokers have logged.

    A node that runs may be writing to its metadata log; an incomplete last batch is left out.
    """
    for node in cluster.nodes:
        _note_log(node, METADATA, recorder)
    for node in cluster.brokers.values():
        for index in range(partitions):
            _note_log(node, f"{topic}-{index}", recorder)
        for partition, offset, known, why in TRUNCATION.findall(node.log()):
            if partition.startswith(f"{topic}-"):
                recorder.note(
                    f"broker-{node.node_id}", Function.TRUNCATE, Type.OK, partition, offset=int(offset), value=known,
                    error=truncation_reason(why),
                )  # fmt: skip


def _note_log(node: Node, key: str, recorder: Recorder) -> None:
    directory = node.data / key
    segments = [(int(path.stem), path.read_bytes()) for path in sorted(directory.glob("*.log"))]
    checkpoint = directory / EPOCH_CHECKPOINT
    text = checkpoint.read_text() if checkpoint.exists() else ""
    note_log(recorder.note, f"node-{node.node_id}", key, segments, text)
