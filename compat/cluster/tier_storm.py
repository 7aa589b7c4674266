"""A tiered topic on three brokers whose leaders are killed: `python -m compat.cluster.tier_storm --kills 20`.

The load of `compat.cluster.storm` writes and reads, also at random offsets that only the tier has. Then the cluster
must come back, and the history is judged. At the end the store must have the objects of the finished segments and no
others; each of its batches must be equal, byte for byte, to the batch of that offset on every broker that still has it;
and neither the tier nor a local log may have a gap.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from base64 import urlsafe_b64decode
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from minio import Minio

from compat.cluster.nodes import KBROKER, Node, ProcessCluster
from compat.cluster.storm import LOAD, SETTINGS, TOPIC, Stage, judge_clients, replace_leader, run_load_while
from compat.minio import BUCKET, MinioServer
from compat.tiered.records import base_offset, last_offset, whole_batches
from compat.tiered.remote_log import COPY_FINISHED, DELETE_FINISHED, RemoteLog
from compat.torture.load import Plan, Recorder, create_topic
from compat.waiting import until
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.testing.checkers import Finding

TIER: Final = {
    "remote.log.storage.system.enable": "true",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "500",
}
TOPIC_CONFIG: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": "20000",
    "local.retention.bytes": "60000",
    "min.insync.replicas": "2",
}
PATIENCE_S: Final = 120.0
_OBJECT: Final = re.compile(r".*/(?P<partition>\d+)/\d{20}-(?P<id>[A-Za-z0-9_-]{22})\.(?P<kind>.+)")


class Store(Protocol):
    """Where the tier is. Shape: settings are those of the brokers."""

    settings: dict[str, str]

    def objects(self) -> dict[str, bytes]:
        """The content of all objects, by their names."""
        ...


class DirectoryStore:
    """A directory that all brokers share."""

    def __init__(self, directory: Path) -> None:
        self.settings = {"rsm.config.dir": str(directory)}
        self._directory = directory

    def objects(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self._directory.rglob("*") if path.is_file()}


class BucketStore:
    """A bucket of a MinIO server."""

    def __init__(self, server: MinioServer) -> None:
        own = server.settings(prefix="storm")
        self.settings = {f"rsm.config.{key}": text for key, text in own.items()}
        self.settings["remote.log.storage.manager.class.name"] = "minio"
        address = f"127.0.0.1:{server.port}"
        self._client = Minio(address, server.access_key, server.secret_key, secure=False, region="us-east-1")
        self._client.make_bucket(BUCKET)

    def objects(self) -> dict[str, bytes]:
        found = {}
        for one in self._client.list_objects(BUCKET, prefix="storm/", recursive=True):
            assert one.object_name is not None
            answer = self._client.get_object(BUCKET, one.object_name)
            try:
                found[one.object_name] = answer.read()
            finally:
                answer.close()
                answer.release_conn()
        return found


@contextmanager
def store(kind: str, directory: Path) -> Iterator[Store]:
    """A new store: `directory` or `minio`."""
    if kind == "directory":
        yield DirectoryStore(directory / "tier")
        return
    server = MinioServer(directory / "minio")
    server.start()
    try:
        yield BucketStore(server)
    finally:
        server.kill()


def kill_leaders(stage: Stage, kills: int, partitions: int) -> None:
    """Kill the leader of one partition after the other, each time when all replicas are in sync."""
    for number in range(kills):
        replace_leader(stage, Node.kill, Node.start, partition=number % partitions)


def tier_storm(directory: Path, kind: str, kills: int, recorder: Recorder, *, load: Plan = LOAD) -> list[Finding]:
    """Run a cluster with this many kills, and judge it. Errors: AssertionError if the cluster does not come back."""
    with (
        store(kind, directory) as tier,
        ProcessCluster(directory, brokers=[KBROKER] * 3, settings={**SETTINGS, **TIER, **tier.settings}) as cluster,
    ):
        cluster.start()
        plan = replace(load, replicas=3, topic_config=TOPIC_CONFIG)
        create_topic(cluster.bootstrap_servers, plan)
        stage = Stage(cluster, None)
        stage.await_full()
        run_load_while(
            stage, plan, recorder, lambda: kill_leaders(stage, kills, plan.partitions), timeout_s=60 + 60 * kills
        )
        stage.await_full()
        findings = judge_clients(stage, plan, recorder)
        findings += judge_tier(cluster, tier, plan.partitions)
        assert recorder.acknowledged() > 100 * kills, f"only {recorder.acknowledged()} sends were acknowledged"
        return findings


# --- the tier ---------------------------------------------------------------------------------------------------------


def judge_tier(cluster: ProcessCluster, tier: Store, partitions: int) -> list[Finding]:
    """K9, when all copies have ended: objects, bytes and offsets."""
    log = RemoteLog(lambda: cluster.brokers[cluster.leader(REMOTE_LOG_METADATA_TOPIC)].address)
    states: dict[tuple[bytes, int, bytes], int] = {}

    def is_settled() -> bool:
        nonlocal states
        before, states = states, log.states()
        return before == states and set(states.values()) <= {COPY_FINISHED, DELETE_FINISHED}

    until(is_settled, each_s=3, patience_s=PATIENCE_S)
    for node in cluster.brokers.values():
        node.stop()
    finished = {(partition, uuid) for (_, partition, uuid), state in states.items() if state == COPY_FINISHED}
    objects: dict[tuple[int, bytes], dict[str, bytes]] = {}
    for name, data in tier.objects().items():
        parsed = _OBJECT.fullmatch(name)
        assert parsed is not None, name
        key = int(parsed["partition"]), urlsafe_b64decode(parsed["id"] + "==")
        objects.setdefault(key, {})[parsed["kind"]] = data
    findings = [_finding(key[0], "an orphan is left in the store") for key in sorted(objects.keys() - finished)]
    findings += [_finding(key[0], "the objects of a segment are missing") for key in sorted(finished - objects.keys())]
    for partition in range(partitions):
        remote = [objects[key]["log"] for key in sorted(finished & objects.keys()) if key[0] == partition]
        local = [cluster.log_bytes(broker, TOPIC, partition) for broker in cluster.brokers]
        findings += judge_bytes(partition, remote, local)
    return findings


def judge_bytes(partition: int, remote: list[bytes], local: list[bytes]) -> Iterator[Finding]:
    """K9: the tier begins at offset 0, each log within the tier or at its end, none of them has a gap, and the batches
    of an offset are equal.

    Shape  remote are the segments of the tier, local the logs of the brokers
    """
    known: dict[int, bytes] = {}
    tier_end = yield from _judge_log(partition, "the tier", remote, known, begins_by=0)
    assert len(remote) > 1, "hardly anything was copied"
    shared = {base_offset(batch) for data in local for batch in whole_batches(data)} & known.keys()
    assert shared, "nothing is both local and in the tier"
    for number, data in enumerate(local, 1):
        yield from _judge_log(partition, f"log {number}", [data], known, begins_by=tier_end)


def _judge_log(
    partition: int, name: str, segments: list[bytes], known: dict[int, bytes], *, begins_by: int
) -> Generator[Finding, None, int]:
    """Compare the batches with those that are known, and note them; returns the end of the log."""
    own: dict[int, bytes] = {}
    for batch in (batch for data in segments for batch in whole_batches(data)):
        own[base_offset(batch)] = batch
        if known.setdefault(base_offset(batch), batch) != batch:
            yield _finding(partition, f"{name} has another batch at offset {base_offset(batch)}")
    end = min([begins_by, *own])
    for offset in sorted(own):
        if offset != end:
            yield _finding(partition, f"{name} has no batch at offset {end}; the next one has {offset}")
        end = last_offset(own[offset]) + 1
    return end


def _finding(partition: int, what: str) -> Finding:
    return Finding("K9", "tier", f"{TOPIC}-{partition}", -1, what)


def main() -> int:
    """Run and print the findings."""
    parser = argparse.ArgumentParser(prog="python -m compat.cluster.tier_storm", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--store", choices=("directory", "minio"), default="directory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="kbroker-tier-storm-") as directory:
        load = replace(LOAD, seed=options.seed)
        findings = tier_storm(Path(directory), options.store, options.kills, recorder, load=load)
    for finding in findings[:20]:
        print(finding)
    print(f"{options.kills} kills: {len(findings)} findings, {recorder.acknowledged()} acknowledged")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
