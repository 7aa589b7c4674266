"""Judges a cluster after a simulated run: waits until it is healthy, reads all replicas, disks and the tier, and runs
the checkers on the history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import trio

from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT
from kbroker.testing.checkers import Allowances, Finding, check_history
from kbroker.testing.cluster import DATA, MemoryCluster, MemoryNode
from kbroker.testing.cluster_checker import METADATA, check_cluster
from kbroker.testing.disk_logs import note_log, truncation_reason
from kbroker.testing.draws import Draws
from kbroker.testing.event_lines import EventLine
from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import BadHistory, Event, Function, Type
from kbroker.testing.model_reader import read_at_random, read_replica
from kbroker.testing.model_router import Partition, Router, Unreachable
from kbroker.testing.recorder import History
from kbroker.testing.store import TIER
from kbroker.testing.tier_checker import (
    TierState,
    complaints_about,
    complaints_about_bytes,
    complaints_about_objects,
)
from kbroker.tiered.layout import SEGMENT, parse_object_name
from kbroker.tiered.tools import id_of

SETTLED_WITHIN_MS: Final = 60_000
_WORK_S: Final = 3
"""Clients work this long with a healthy cluster."""
_POLL_S: Final = 0.1
_TRUNCATES: Final = "truncating a partition"


async def become_healthy(cluster: MemoryCluster, topics: Sequence[str], within_ms: int) -> None:
    """Wait until all nodes serve and all ISRs are full, and give the clients some time then. The checkers find out what
    did not become healthy in time.
    """
    with trio.move_on_after(within_ms / 1000):
        while not _is_whole(cluster, topics):  # noqa: ASYNC110 - it depends on many nodes
            await trio.sleep(_POLL_S)
    await trio.sleep(_WORK_S)


def _is_whole(cluster: MemoryCluster, topics: Sequence[str]) -> bool:
    return all(node.is_serving for node in cluster.nodes.values()) and all(
        len(partition.isr) == len(partition.replicas)
        for name in topics
        for partition in cluster.image.topics_by_name[name].partitions.values()
    )


async def read_everything(cluster: MemoryCluster, history: History, topics: Sequence[str]) -> None:
    """Read each replica to its end, after the clients have stopped, and the tier. Stop all nodes and read the disks."""
    router = Router(cluster, "judge")
    placed = {
        (name, index): partition.replicas
        for name in topics
        for index, partition in cluster.image.topics_by_name[name].partitions.items()
    }
    for partition, replicas in placed.items():
        await _read_partition(cluster, router, partition, replicas, history)
    router.close()
    for line in cluster.events.lines:
        if line.event.startswith(_TRUNCATES):
            _note_truncation(line, topics, history)
    for node in (*cluster.brokers, cluster.controller):  # it writes its checkpoints at its end
        await node.stop()
    for node in cluster.nodes.values():
        _note_disk(node, METADATA, history)
        for (name, index), replicas in placed.items():
            if node.id in replicas:
                _note_disk(node, f"{name}-{index}", history)


async def _read_partition(
    cluster: MemoryCluster, router: Router, partition: Partition, replicas: Sequence[int], history: History
) -> None:
    end = 0

    def settled() -> bool:
        nonlocal end
        logs = [replica.log for node in replicas if (replica := cluster.nodes[node].replica(*partition)) is not None]
        end = max((log.log_end_offset for log in logs), default=0)
        return len(logs) == len(replicas) and all(log.log_end_offset == end for log in logs)

    with trio.move_on_after(SETTLED_WITHIN_MS / 1000) as scope:
        while not settled():  # noqa: ASYNC110 - it depends on many nodes
            await trio.sleep(_POLL_S)
    if scope.cancelled_caught:
        ends = {
            node: replica.log.log_end_offset
            for node in replicas
            if (replica := cluster.nodes[node].replica(*partition))
        }
        history.complain("K11", "not-settled", f"{partition[0]}-{partition[1]}", end, f"the replicas end at {ends}")
        return
    for node in replicas:
        try:
            await read_replica(router, partition, node, end, history=history)
            draws = Draws("reads at random", cluster.seed, *partition, node)
            await read_at_random(router, partition, node, end, draws=draws, history=history)
        except Unreachable as error:
            history.complain("K11", "not-readable", f"{partition[0]}-{partition[1]}", 0, f"broker {node}: {error}")
    for node in replicas:
        replica = cluster.nodes[node].replica(*partition)
        if replica is not None and replica.log.log_start_offset > 0:
            # Clients never send DeleteRecords, and no run is as long as the retention time.
            text = f"broker {node} has deleted the records before it, which no retention allows"
            history.complain("K1", "deleted-early", replica.name, replica.log.log_start_offset, text)
    _judge_tier(cluster, partition, history)


def _judge_tier(cluster: MemoryCluster, partition: Partition, history: History) -> None:
    """K9, on the leader's log, the metadata that it has, and the objects."""
    try:
        leader = cluster.leader(*partition)
    except KeyError:
        return
    replica = leader.replica(*partition)
    if replica is None or replica.remote is None:
        return
    manager = leader.broker.tier.manager
    assert manager is not None, "the partition is tiered"
    known = manager.tools.metadata.list_remote_log_segments(id_of(replica))
    objects: dict[UUID, bytes] = {}
    for path, data in cluster.store.objects().items():
        name = parse_object_name(path.removeprefix(f"{TIER}/"))
        if name is None or name.kind != SEGMENT:
            continue
        if name.topic_id == id_of(replica).topic_id and name.partition == partition[1]:
            objects[name.segment_id] = data
    log, key = replica.log, f"{partition[0]}-{partition[1]}"
    state = TierState.of(
        log,
        last_stable_offset=log.log_end_offset,
        highest_remote=replica.remote.highest_offset_in_remote_storage,
        segments=known,
    )
    for text in (
        *complaints_about(state),
        *complaints_about_bytes(known, objects, history.batches[key], log.leader_epochs.entries),
        *complaints_about_objects(list(objects), known),
    ):
        history.complain("K9", "tier", key, -1, text)


def _note_truncation(line: EventLine, topics: Sequence[str], history: History) -> None:
    name = str(line.fields["partition"])
    if name.rpartition("-")[0] in topics:
        why = str(line.fields["why"])
        history.note(
            f"broker-{line.node}",
            Function.TRUNCATE,
            Type.OK,
            name,
            offset=int(line.fields["to_offset"]),
            value=str(line.fields["high_watermark"]),
            error=truncation_reason(why),
        )


def _note_disk(node: MemoryNode, key: str, history: History) -> None:
    """The batches and the leader epochs on a disk."""
    directory = f"{DATA}/{key}"
    files = node.disk.image(directory)
    segments = [
        (int(path.removeprefix(f"{directory}/").removesuffix(".log")), files[path] or b"")
        for path in sorted(files)
        if path.endswith(".log")
    ]
    checkpoint = (files.get(f"{directory}/{EPOCH_CHECKPOINT}") or b"").decode()
    note_log(history.note, f"node-{node.id}", key, segments, checkpoint)


def _without_lost_promises(events: Sequence[Event]) -> Iterator[Event]:
    """The events, with the outcome of a send with acks=1 unknown if its partition has had several leaders."""
    epochs: dict[str, set[int | None]] = defaultdict(set)
    for event in events:
        if event.function is Function.LEADS:
            epochs[event.key].add(event.epoch)
    for event in events:
        is_ack = event.function is Function.SEND and event.type is Type.OK and event.acks == 1
        if is_ack and len(epochs[event.key]) > 1:
            yield replace(event, type=Type.INFO, offset=None)
        else:
            yield event


def verdict(history: History, *, patience_ms: int) -> list[Finding]:
    """All findings."""
    found = list(history.complaints)
    try:
        promised = list(_without_lost_promises(history.events))
        found += check_history(promised, Allowances(unordered=frozenset(history.unordered)))
        found += check_cluster(history.events, patience_ms=patience_ms)
        found += check_groups(history.events)
    except BadHistory as error:
        found.append(Finding("run", "bad-history", "", -1, str(error)))
    return found
