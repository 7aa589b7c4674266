"""Model clients and the judgement of a simulated run: a cluster that keeps its promises gives no findings after real
work, and planted damage is found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from kbroker.testing.checkers import Finding
from kbroker.testing.cluster import DATA, MemoryCluster, memory_cluster
from kbroker.testing.determinism import run
from kbroker.testing.group_checker import NONE_COMMITTED
from kbroker.testing.history import Event, Function, Type
from kbroker.testing.invariants import Invariants
from kbroker.testing.judging import become_healthy, read_everything, verdict
from kbroker.testing.model_clients import (
    DeleterPlan,
    GroupPlan,
    ProducerPlan,
    ReaderPlan,
    Workload,
    observe,
    run_workload,
)
from kbroker.testing.plan import TopicPlan
from kbroker.testing.recorder import History
from kbroker.testing.store import TIER
from wire.messages.offset_commit import OffsetCommitRequest

pytestmark = pytest.mark.long

TOPIC, PARTITIONS = "t", (0, 1)
WORK_S = 5
PATIENCE_MS = 30_000
WORKLOAD = Workload(
    producers=(
        ProducerPlan(name="producer-1", topic=TOPIC, partitions=PARTITIONS, in_flight=3, pause_ms=50),
        ProducerPlan(name="producer-2", topic=TOPIC, partitions=(0,), is_idempotent=False, compression="gzip"),
        ProducerPlan(name="producer-3", topic=TOPIC, partitions=(1,), acks=1, is_idempotent=False),
    ),
    readers=(
        ReaderPlan(name="reader-1", topic=TOPIC, partitions=PARTITIONS),
        ReaderPlan(name="reader-2", topic=TOPIC, partitions=PARTITIONS, from_replica=True),
    ),
    groups=(
        GroupPlan(
            name="group-1",
            members=2,
            topic=TOPIC,
            partitions=len(PARTITIONS),
            leaves=True,
            commits_late=True,
            watchers=1,
        ),
        GroupPlan(name="group-2", members=2, topic=TOPIC, partitions=len(PARTITIONS), is_standalone=True),
    ),
)
DELETING = replace(
    WORKLOAD,
    deleters=(DeleterPlan(name="deleter", topic=TOPIC, partitions=PARTITIONS, every_ms=500, rest=5),),
)
TIERED = {
    "remote_storage_enable": "true",
    "segment_bytes": 2_000,
    "local_retention_bytes": 1,
    "index_interval_bytes": 200,
}
SETTINGS = {
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
}
Step = Callable[[MemoryCluster], Awaitable[object]]


async def nothing(_: MemoryCluster) -> None:
    """Change nothing."""


def history_of(
    fault: Step = nothing, damage: Step = nothing, *, workload: Workload = WORKLOAD, history: History | None = None
) -> History:
    """Work with a fault in the middle, heal, and read everything; the damage is done after the last record."""
    history = History() if history is None else history
    placed = ((1, 2, 3), (2, 3, 1))
    topic = TopicPlan(TOPIC, placed, {"min_insync_replicas": 2, **TIERED})

    async def main() -> None:
        async with memory_cluster(3, settings=SETTINGS, seed=9) as cluster:
            await cluster.create_topic(TOPIC, replicas=placed, **topic.configs)
            stopping = trio.Event()
            async with trio.open_nursery() as watching:
                partitions = [(TOPIC, index) for index in PARTITIONS]
                watching.start_soon(observe, cluster, history, partitions)
                watching.start_soon(Invariants(cluster, history).watch, partitions)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(work, cluster, workload, history, stopping)
                    await trio.sleep(WORK_S)
                    await fault(cluster)
                    cluster.heal()
                    history.heal()
                    await become_healthy(cluster, history, [TOPIC], PATIENCE_MS)
                    stopping.set()
                await damage(cluster)
                await read_everything(cluster, history, [topic])
                watching.cancel_scope.cancel()

    run(main, seed=9)
    return history


async def work(cluster: MemoryCluster, workload: Workload, history: History, stopping: trio.Event) -> None:
    await run_workload(cluster, workload, history, seed=9, stopping=stopping)


@pytest.fixture(scope="module")
def quiet() -> History:
    return history_of()


def judged(history: History) -> list[Finding]:
    return verdict(history, patience_ms=PATIENCE_MS)


def checks(found: list[Finding]) -> set[tuple[str, str]]:
    return {(one.check, one.kind) for one in found}


def with_events(history: History, events: list[Event]) -> History:
    changed = History()
    changed.events, changed.unordered = events, history.unordered
    return changed


def test_a_quiet_run_does_real_work_without_findings(quiet: History) -> None:
    assert judged(quiet) == []
    for function in (Function.SEND, Function.POLL, Function.COMMIT, Function.COMMITTED):
        assert quiet.counts[function, Type.OK] > 20, function
    assert quiet.counts[Function.OWN, Type.OK]
    assert {event.process for event in quiet.events if event.function is Function.FINAL} == {
        f"broker-{each}" for each in (1, 2, 3)
    }


def test_groups_delete_offsets_watch_commits_and_commit_late(quiet: History) -> None:
    commits = [e for e in quiet.events if e.function is Function.COMMIT]
    deletions = [e for e in commits if e.type is Type.OK and e.offset == NONE_COMMITTED]
    assert len(deletions) > 3
    assert {e.value for e in deletions} == {"group-2"}
    newest, late = 0, []
    for event in quiet.events:
        if event.value == "group-1" and event.function in (Function.OWN, Function.COMMIT):
            assert event.epoch is not None
            newest = max(newest, event.epoch)
            if event.epoch < newest and event.type is not Type.INVOKE:
                late.append(event.type)
    assert late
    assert set(late) == {Type.FAIL}
    open_commits: set[str] = set()
    watched = 0
    for event in quiet.events:
        if event.function is Function.COMMIT and event.value == "group-1":
            (open_commits.add if event.type is Type.INVOKE else open_commits.discard)(event.process)
        watched += event.process == "group-1-2" and event.type is Type.INVOKE and bool(open_commits)
    assert watched > 10


def test_every_record_reaches_every_reader(quiet: History) -> None:
    sent = {(event.key, event.value) for event in quiet.events if event.function is Function.SEND}
    for reader in WORKLOAD.readers:
        polls = [
            event
            for event in quiet.events
            if event.process == reader.name and (event.function, event.type) == (Function.POLL, Type.OK)
        ]
        assert {(event.key, event.value) for event in polls} == sent


def test_r1_a_killed_leader_costs_no_record() -> None:
    """K1, K2, K3, K4, K6, K7, K8, K9, K10 and K11."""
    killed_at_ms = 0

    async def kill(cluster: MemoryCluster) -> None:
        nonlocal killed_at_ms
        killed_at_ms = History.now()
        leader = cluster.leader(TOPIC)
        await leader.kill()
        await cluster.until(lambda: cluster.partition(TOPIC).leader not in (-1, leader.id))
        await trio.sleep(WORK_S)
        await leader.start()

    history = history_of(kill)
    assert judged(history) == []
    acked = [e for e in history.events if e.function is Function.SEND and e.type is Type.OK]
    assert min(sum(e.at_ms < killed_at_ms for e in acked), sum(e.at_ms > killed_at_ms for e in acked)) > 100


def test_deleted_records_stay_deleted() -> None:
    """K1."""
    history = history_of(workload=DELETING)
    assert judged(history) == []
    starts = {event.key: int(event.value or 0) for event in history.events if event.function is Function.BOUNDS}
    assert all(0 < history.confirmed[key] <= start for key, start in starts.items())
    assert starts.keys() == {f"{TOPIC}-{index}" for index in PARTITIONS}


def test_deletions_that_nobody_wanted_and_those_that_are_undone_are_found() -> None:
    history = History()

    async def misremember(_: MemoryCluster) -> None:
        history.deleted[f"{TOPIC}-0"] = 0
        history.confirmed[f"{TOPIC}-1"] += 1_000

    found = judged(history_of(damage=misremember, workload=DELETING, history=history))
    assert {(one.kind, one.key) for one in found if one.check == "K1"} == {
        ("deleted-early", f"{TOPIC}-0"),
        ("not-deleted", f"{TOPIC}-1"),
    }


def test_a_broker_that_forgets_producers_is_found() -> None:
    """Batches that are sent once more are refused, as if they came too early or too late."""

    async def forget(cluster: MemoryCluster) -> None:
        for _ in range(20):
            for node in cluster.brokers:
                for index in PARTITIONS:
                    replica = node.replica(TOPIC, index)
                    assert replica is not None
                    replica.log.producers.clear(replica.log.log_end_offset)
            await trio.sleep(0.5)

    assert ("K4", "not-recognized") in checks(judged(history_of(forget)))


def test_a_repeated_commit_may_take_effect_later() -> None:
    """Kafka cannot recognize a commit that the network delivers again; it sets the offset back."""
    hosts = ("group-1-0", "group-1-1", "group-2-0", "group-2-1")

    async def repeat(cluster: MemoryCluster) -> None:
        for host in hosts:
            cluster.network.repeat(host, OffsetCommitRequest, after_ms=1_500, times=2)
        await trio.sleep(WORK_S)
        assert {host: cluster.network.repeated[host] for host in hosts} == dict.fromkeys(hosts, 2)

    assert judged(history_of(repeat)) == []


def test_an_acknowledged_record_that_no_replica_has_is_found(quiet: History) -> None:
    acked = next(e for e in quiet.events if e.function is Function.SEND and e.type is Type.OK)
    left = [e for e in quiet.events if e.function is not Function.FINAL or e.value != acked.value]
    assert ("K1", "lost") in checks(judged(with_events(quiet, left)))


@pytest.mark.parametrize("acks", [-1, 1])
def test_only_records_of_acks_all_must_outlive_their_leader(quiet: History, acks: int) -> None:
    """The history says that a leader acknowledged a record; the next leader has another record at its offset."""
    key = next(e.key for e in quiet.events if e.function is Function.SEND and e.process == "producer-3")
    last = [e for e in quiet.events if e.function is Function.SEND and e.type is Type.OK and e.key == key][-1]
    lost = replace(last, process="lost", value="lost", acks=acks)
    led = replace(next(e for e in quiet.events if e.function is Function.LEADS and e.key == key), epoch=-1)
    events = [replace(lost, type=Type.INVOKE, offset=None), lost, led, *quiet.events]
    found = checks(judged(with_events(quiet, events)))
    assert ("K1" in {check for check, _ in found}) is (acks == -1)
    assert ("K2" in {check for check, _ in found}) is (acks == -1)


def test_a_changed_byte_of_a_replica_is_found() -> None:
    async def change(cluster: MemoryCluster) -> None:
        node = next(node for node in cluster.brokers if node is not cluster.leader(TOPIC))
        paths = node.disk.image(f"{DATA}/{TOPIC}-0")
        path = max(path for path, data in paths.items() if path.endswith(".log") and data)
        file = node.disk.open(path)
        size = file.size()
        (byte,) = file.pread(1, size - 1)
        file.pwrite(bytes([byte ^ 1]), size - 1)

    found = checks(judged(history_of(damage=change)))
    assert ("K12", "bad-crc") in found
    assert found & {("K6", "committed-differs"), ("K7", "log-mismatch")}


def test_damage_in_the_log_of_an_internal_topic_is_found() -> None:
    async def append(cluster: MemoryCluster) -> None:
        disk = cluster.nodes[1].disk
        path = next(
            p for p, data in disk.image(DATA).items() if "__consumer_offsets" in p and p.endswith(".log") and data
        )
        file = disk.open(path)
        file.pwrite(bytes(100), file.size())

    assert ("K12", "damaged-log") in checks(judged(history_of(damage=append)))


def test_a_changed_object_of_the_tier_is_found() -> None:
    async def change(cluster: MemoryCluster) -> None:
        path = min(path for path in cluster.store.objects() if path.startswith(TIER) and path.endswith(".log"))
        file = cluster.store.disk.open(path)
        (byte,) = file.pread(1, 100)
        file.pwrite(bytes([byte ^ 1]), 100)

    assert ("K9", "tier") in checks(judged(history_of(damage=change)))


def test_k16_a_seed_decides_every_line_of_the_history(quiet: History) -> None:
    assert history_of().events == quiet.events
