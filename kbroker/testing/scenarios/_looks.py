"""What the replicas of a partition and the tier hold at one moment, read from the nodes, their disks and the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kbroker.replication.partition import Partition
from kbroker.storage.checkpoint import parse_lines
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT
from kbroker.testing.cluster import DATA, MemoryCluster, MemoryNode
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata
from wire.record_batch import batches
from wire.types import uuid_to_text

LETTERS: Final = "ABCDEFGH"
_LOG: Final = ".log"


def letter(node_id: int) -> str | None:
    """The name of a broker in the stories: broker 1 is A."""
    return LETTERS[node_id - 1] if 0 < node_id <= len(LETTERS) else None


def replica_look(cluster: MemoryCluster, node: MemoryNode, topic: str, *, hosts: Mapping[str, str]) -> dict[str, Any]:
    """One replica: what it believes and what its disk holds; hosts gives the names of the other ones."""
    replica = node.replica(topic)
    directory = f"{DATA}/{topic}-0"
    files = node.disk.image(directory) if _has(node, directory) else {}
    look: dict[str, Any] = {
        "name": letter(node.id),
        "broker": node.id,
        "state": "stopped",
        "leader_epoch": None,
        "isr": None,
        "log_start_offset": None,
        "local_log_start_offset": None,
        "log_end_offset": None,
        "high_watermark": None,
        "highest_offset_in_tier": None,
        "epochs": _epochs(files.get(f"{directory}/{EPOCH_CHECKPOINT}")),
        "records": _records(files),
        "does_not_hear": [
            name for host, name in hosts.items() if host != node.host and cluster.network.link(host, node.host).is_cut
        ],
    }
    if node.is_running:
        look["state"] = "starting" if replica is None and look["records"] else "no replica"
    if replica is not None:
        look.update(_live(replica))
        look["records"] = [one for one in look["records"] if one["offset"] >= look["local_log_start_offset"]]
    return look


def _has(node: MemoryNode, directory: str) -> bool:
    return directory in node.disk.image(DATA)


def _live(replica: Partition) -> dict[str, Any]:
    log, is_leader = replica.log, replica.progress is not None
    return {
        "state": "leader" if is_leader else "follower" if replica.is_follower else "no replica",
        "leader_epoch": replica.leader_epoch,
        "isr": [letter(each) for each in sorted(replica.isr)] if is_leader else None,
        "log_start_offset": log.log_start_offset,
        "local_log_start_offset": log.local_log_start_offset,
        "log_end_offset": log.log_end_offset,
        "high_watermark": replica.known_high_watermark,
        "highest_offset_in_tier": None if replica.remote is None else replica.remote.highest_offset_in_remote_storage,
        "epochs": [list(one) for one in log.leader_epochs.entries],
    }


def _epochs(checkpoint: bytes | None) -> list[list[int]]:
    return [list(map(int, words)) for words in parse_lines((checkpoint or b"").decode(), 2)]


def _records(files: Mapping[str, bytes | None]) -> list[dict[str, Any]]:
    """The records of a replica's segments."""
    found = []
    for path in sorted(path for path in files if path.endswith(_LOG)):
        found += values_of(files[path] or b"")
    return found


def values_of(data: bytes) -> list[dict[str, Any]]:
    """The records of a segment."""
    return [
        {"offset": one.offset, "value": (one.value or b"").decode().rstrip(), "epoch": batch.partition_leader_epoch}
        for batch in batches(data)
        for one in batch.records()
    ]


def tier_look(cluster: MemoryCluster, segments: list[RemoteLogSegmentMetadata]) -> list[dict[str, Any]]:
    """The segments of a partition that the metadata topic lists, with the records that the store has."""
    objects = {path: data for path, data in cluster.store.objects().items() if path.endswith(_LOG)}
    found = []
    for one in sorted(segments, key=lambda one: (one.start_offset, one.segment_leader_epochs)):
        key = uuid_to_text(one.remote_log_segment_id.id)
        data = next((data for path, data in objects.items() if path.endswith(f"-{key}{_LOG}")), b"")
        found.append(
            {
                "id": key[:4],
                "start_offset": one.start_offset,
                "end_offset": one.end_offset,
                "epochs": [list(entry) for entry in one.segment_leader_epochs],
                "state": one.state.name,
                "is_finished": one.state is FINISHED,
                "copied_by": letter(one.broker_id),
                "records": values_of(data),
            }
        )
    return found
