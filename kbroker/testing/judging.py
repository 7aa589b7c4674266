"""Judges a cluster after a simulated run: waits until it is healthy, reads all replicas, disks and the tier, and runs
the checkers on the history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import trio

from kbroker.metadata.names import GROUP_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.storage.checkpoint import LOG_START_CHECKPOINT, parse_lines
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT
from kbroker.testing.checkers import Allowances, Finding, check_history
from kbroker.testing.cluster import DATA, MemoryCluster, MemoryNode
from kbroker.testing.cluster_checker import METADATA, check_cluster
from kbroker.testing.disk_logs import note_log, truncation_reason
from kbroker.testing.draws import Draws
from kbroker.testing.event_lines import EventLine
from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import BadHistory, Event, Function, Type
from kbroker.testing.model_reader import read_at_random, read_committed, read_replica
from kbroker.testing.model_router import Partition, Router, Unreachable
from kbroker.testing.plan import TopicPlan
from kbroker.testing.recorder import History
from kbroker.testing.store import TIER
from kbroker.testing.tier_checker import (
    TierState,
    complaints_about,
    complaints_about_bytes,
    complaints_about_objects,
)
from kbroker.testing.transaction_checker import check_transactions
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata
from kbroker.tiered.layout import SEGMENT, parse_object_name
from kbroker.tiered.tools import id_of
from wire.errors import code_of
from wire.messages.list_transactions import ListTransactionsRequest
from wire.record_batch import batches

SETTLED_WITHIN_MS: Final = 60_000
_WORK_S: Final = 3
"""Clients work this long with a healthy cluster."""
_POLL_S: Final = 0.1
_OF_RECORDS: Final = frozenset({"K1", "K2", "K3", "K4", "K6"})
"""What a partition that may lose records does not promise."""
_OF_COORDINATORS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})
_ENDED: Final = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_OF_GROUPS: Final = (Function.COMMIT, Function.COMMITTED, Function.OWN)
_LIST_VERSION: Final = 0
_TRUNCATES: Final = "truncating a partition"


async def become_healthy(cluster: MemoryCluster, history: History, topics: Sequence[str], within_ms: int) -> None:
    """Wait until all nodes serve, all ISRs are full, a client has seen that, and each partition has acknowledged a new
    record, and give the clients some time then. The checkers find out what did not become healthy in time.
    """
    seen, sent, written = len(history.events), set[str | None](), set[str]()
    full: dict[str, int | None] = {}
    with trio.move_on_after(within_ms / 1000):
        while not _is_whole(cluster, topics, written, full):
            await trio.sleep(_POLL_S)
            for event in history.events[seen:]:
                if event.function is Function.SEND and event.type is Type.INVOKE:
                    sent.add(event.value)
                elif event.function is Function.SEND and event.type is Type.OK and event.value in sent:
                    written.add(event.key)
                elif event.function is Function.ISR and not event.value:
                    full[event.key] = event.epoch
            seen = len(history.events)
    await trio.sleep(_WORK_S)


def _is_whole(
    cluster: MemoryCluster, topics: Sequence[str], written: Container[str], full: Mapping[str, int | None]
) -> bool:
    known = cluster.image.topics_by_name
    return all(node.is_serving for node in cluster.nodes.values()) and all(
        name in known
        and all(
            len(partition.isr) == len(partition.replicas)
            and f"{name}-{index}" in written
            and full.get(f"{name}-{index}") == partition.leader_epoch
            for index, partition in known[name].partitions.items()
        )
        for name in topics
    )


async def read_everything(cluster: MemoryCluster, history: History, topics: Sequence[TopicPlan]) -> None:
    """Read each replica to its end, after the clients have stopped, and the tier. Stop all nodes and read the disks."""
    router = Router(cluster, "judge")
    for topic in list(topics):
        if topic.name not in cluster.image.topics_by_name:
            history.complain("K8", "topic-gone", topic.name, -1, "the metadata do not have this topic any more")
            topics = [each for each in topics if each is not topic]
    placed = {
        (topic.name, index): partition.replicas
        for topic in topics
        for index, partition in cluster.image.topics_by_name[topic.name].partitions.items()
    }
    await _await_transactions(cluster, router, history)
    names = {topic.name: topic for topic in topics}
    for line in cluster.events.lines:
        if line.event.startswith(_TRUNCATES):
            _note_truncation(line, names, history)
    for partition, replicas in placed.items():
        await _read_partition(cluster, router, partition, replicas, history)
        _judge_starts(cluster, names[partition[0]], partition, replicas, history)
        await _judge_tier(cluster, partition, history)
    router.close()
    for node in (*cluster.brokers, cluster.controller):  # it writes its checkpoints at its end
        await node.stop()
    for node in cluster.nodes.values():
        _note_disk(node, METADATA, history)
        for name, known in cluster.image.topics_by_name.items():
            for index, each in known.partitions.items():
                if node.id in each.replicas:
                    _note_disk(node, f"{name}-{index}", history)


async def _await_transactions(cluster: MemoryCluster, router: Router, history: History) -> None:
    """K11: no transaction stays open. Coordinators abort those that have timed out."""
    left: dict[int, list[str]] = {}
    with trio.move_on_after(SETTLED_WITHIN_MS / 1000):
        while True:
            for node in cluster.brokers:
                try:
                    left[node.id] = await _unfinished(router, node.id)
                except Unreachable as error:
                    left[node.id] = [str(error)]
            if not any(left.values()):
                return
            await trio.sleep(10 * _POLL_S)
    history.complain("K11", "hanging", TRANSACTION_STATE_TOPIC, -1, f"these transactions are not complete: {left}")


async def _unfinished(router: Router, node: int) -> list[str]:
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    answer = await router.ask(node, request, version=_LIST_VERSION)
    if answer.error_code:
        raise Unreachable(code_of(answer.error_code).name)
    return [
        f"{one.transactional_id} {one.transaction_state}"
        for one in answer.transaction_states
        if one.transaction_state not in _ENDED
    ]


async def _read_partition(
    cluster: MemoryCluster, router: Router, partition: Partition, replicas: Sequence[int], history: History
) -> None:
    end = 0
    key = f"{partition[0]}-{partition[1]}"
    may_hang = history.may_hang(key)
    if history.is_lossy(key):
        history.batches[key].clear()

    def settled() -> bool:
        nonlocal end
        logs = [replica.log for node in replicas if (replica := cluster.nodes[node].replica(*partition)) is not None]
        end = max((log.log_end_offset for log in logs), default=0)
        return len(logs) == len(replicas) and all(
            log.log_end_offset == end and (may_hang or log.producers.first_unstable_offset is None) for log in logs
        )

    with trio.move_on_after(SETTLED_WITHIN_MS / 1000) as scope:
        while not settled():  # noqa: ASYNC110 - it depends on many nodes
            await trio.sleep(_POLL_S)
    if scope.cancelled_caught:
        held = [replica for node in replicas if (replica := cluster.nodes[node].replica(*partition)) is not None]
        ends = [(one.log.log_end_offset, one.log.producers.first_unstable_offset) for one in held]
        text = f"the replicas end at these offsets, with open transactions from the second ones on: {ends}"
        history.complain("K11", "not-settled", key, end, text)
        return
    for node in replicas:
        try:
            await read_replica(router, partition, node, end, history=history)
            if history.counts[Function.INIT, Type.OK] and not may_hang:
                await read_committed(router, partition, node, end, history=history)
            draws = Draws("reads at random", cluster.seed, *partition, node)
            await read_at_random(router, partition, node, end, draws=draws, history=history)
        except Unreachable as error:
            history.complain("K11", "not-readable", key, 0, f"broker {node}: {error}")


def _judge_starts(
    cluster: MemoryCluster, topic: TopicPlan, partition: Partition, replicas: Sequence[int], history: History
) -> None:
    """Whether records were deleted that a deletion, or retention by bytes, covers, and no others."""
    key = f"{partition[0]}-{partition[1]}"
    if history.is_lossy(key):
        return
    is_cut = any(event.function is Function.TRUNCATE and event.key == key for event in history.events)
    for node in replicas:
        replica = cluster.nodes[node].replica(*partition)
        start = 0 if replica is None else replica.log.log_start_offset
        if start < history.confirmed[key]:
            text = (
                f"broker {node} begins there; a leader has confirmed that all before {history.confirmed[key]} is gone"
            )
            history.complain("K1", "not-deleted", key, start, text)
        if start <= history.deleted[key]:
            continue
        kept = sum(len(data) for base, data in history.batches[key].items() if base >= start)
        # A leader may count records that it loses later.
        if not topic.is_limited or (kept < topic.configs["retention_bytes"] and not is_cut):
            text = f"broker {node} has deleted the records before it, and {kept} bytes are left: it was not asked to"
            history.complain("K1", "deleted-early", key, start, text)


async def _judge_tier(cluster: MemoryCluster, partition: Partition, history: History) -> None:
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
    metadata = manager.tools.metadata

    def unfinished() -> list[RemoteLogSegmentMetadata]:
        found = metadata.list_remote_log_segments(id_of(replica))
        return [one for one in found if one.state is not FINISHED and one.broker_id in replica.replicas]

    with trio.move_on_after(SETTLED_WITHIN_MS / 1000):
        while unfinished():  # noqa: ASYNC110 - its broker ends or deletes it
            await trio.sleep(_POLL_S)
    known = metadata.list_remote_log_segments(id_of(replica))
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
        *complaints_about_bytes(
            [one for one in known if one.start_offset >= log.log_start_offset],
            objects,
            history.batches[key],
            log.leader_epochs.entries,
        ),
        *complaints_about_objects(list(objects), known),
    ):
        history.complain("K9", "tier", key, -1, text)
    for one in unfinished():
        text = (
            f"broker {one.broker_id} leaves its copy of {one.start_offset}..{one.end_offset} in the state {one.state}"
        )
        history.complain("K9", "leftover", key, one.start_offset, text)


def _note_truncation(line: EventLine, topics: Container[str], history: History) -> None:
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
    starts = (node.disk.image(DATA).get(f"{DATA}/{LOG_START_CHECKPOINT}") or b"").decode()
    start = next((int(offset) for topic, index, offset in parse_lines(starts, 3) if f"{topic}-{index}" == key), 0)
    segments = [
        (int(path.removeprefix(f"{directory}/").removesuffix(".log")), files[path] or b"")
        for path in sorted(files)
        if path.endswith(".log")
    ]
    for _, data in segments:
        read = list(batches(data))
        if (size := sum(batch.size for batch in read)) < len(data) or not all(batch.crc_is_valid() for batch in read):
            text = f"node {node.id} has a file of {len(data)} bytes, and {size} bytes of batches that may be invalid"
            history.complain("K12", "damaged-log", key, read[0].base_offset if read else -1, text)
    checkpoint = (files.get(f"{directory}/{EPOCH_CHECKPOINT}") or b"").decode()
    note_log(history.note, f"node-{node.id}", key, segments, checkpoint, log_start_offset=start)


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
    found = [one for one in history.complaints if one.check not in _OF_RECORDS or one.key not in history.excused]
    topics = {key.rpartition("-")[0] for key in history.excused}
    try:
        promised = list(_without_lost_promises(history.events))
        kept = [event for event in promised if not history.is_lossy(event.key)]
        allowed = Allowances(
            unordered=frozenset(history.unordered),
            uncommitted=frozenset(history.uncommitted),
            consumer_groups=frozenset(history.consumer_groups),
        )
        found += check_history(kept, allowed)
        found += [
            one
            for one in check_cluster(history.events, patience_ms=patience_ms)
            if not (history.is_lossy(one.key) and (one.check == "K6" or one.kind == "unseen"))
        ]
        if not topics & _OF_COORDINATORS:
            found += check_transactions(kept, allowed)
            of_groups = [event for event in promised if event.function in _OF_GROUPS or not history.is_lossy(event.key)]
            found += check_groups(of_groups, allowed)
    except BadHistory as error:
        found.append(Finding("run", "bad-history", "", -1, str(error)))
    return [one for one in found if one.check != "K9" or REMOTE_LOG_METADATA_TOPIC not in topics]
