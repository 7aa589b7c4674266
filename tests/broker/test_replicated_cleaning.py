"""Each replica of a compacted topic cleans its log by itself, while leaders move and brokers die.

Replicas may differ in what they have cleaned. They must not differ in the last value of a key, and what an offset has
never changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from kbroker.storage.log import Log
from kbroker.testing.cluster import MemoryCluster, MemoryNode, memory_cluster
from kbroker.testing.disk_nodes import POWER_LOSSES, Loss
from kbroker.testing.draws import Draws
from kbroker.testing.model_reader import visible
from tests.handlers.asking import fetching, parts, producing, read_batches, wanted
from tests.storage.cleaning import contents, final_map
from tests.storage.logs import read_all
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from wire.record_batch import Record, build_batch

TOPIC = "t"
KEYS = 5
CLEANER = {
    "log.cleaner.backoff.ms": 500,
    "log.retention.check.interval.ms": 1_000,
    "log.initial.task.delay.ms": 100,
    "replica.lag.time.max.ms": 2_000,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "unclean.leader.election.interval.ms": 1_000,
}
POLICY = {
    "cleanup_policy": "compact",
    "segment_bytes": 1_000,
    "min_cleanable_dirty_ratio": 0.01,
    "min_insync_replicas": 2,
}


class Compacted:
    """A cluster with one compacted partition on three brokers, and what its clients have put there.

    Shape  sent maps an offset to its (key, value); None is a tombstone; committed has the last values of transactions;
           epochs maps a producer id to its epoch, which rises with each transaction
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.sent: dict[int, tuple[bytes, bytes | None]] = {}
        self.committed: dict[bytes, bytes | None] = {}
        self.epochs: dict[int, int] = {}

    async def put(self, count: int, *, keys: int = KEYS, value: bytes | None = b"v" * 40) -> None:
        """Produce `count` batches of one record, with keys in turn."""
        for _ in range(count):
            number = len(self.sent)
            key, content = b"key-%d" % (number % keys), value and value + b"%d" % number
            await self.put_one(key, content)

    async def put_one(self, key: bytes, value: bytes | None) -> int:
        record = Record(timestamp=self.cluster.clock.timestamp_ms(), key=key, value=value)
        (offset,) = await self.cluster.produce(TOPIC, record)
        self.sent[offset] = key, value
        return offset

    def last_values(self) -> dict[bytes, bytes]:
        values = dict(self.sent[offset] for offset in sorted(self.sent))
        return {key: value for key, value in values.items() if value is not None}

    def log(self, node: MemoryNode | int) -> Log:
        found = self.cluster.nodes[node if isinstance(node, int) else node.id].replica(TOPIC)
        assert found is not None
        return found.log

    def logs(self) -> list[Log]:
        return [self.log(node) for node in self.cluster.brokers]

    async def cleaned(self, *nodes: int) -> None:
        """Wait until these replicas, or all, have nothing to clean."""
        chosen = nodes or tuple(node.id for node in self.cluster.brokers)

        def are_clean() -> bool:
            replicas = [self.cluster.nodes[node].replica(TOPIC) for node in chosen]
            return all(
                one is not None and one.log.cleaned_offset == one.log.segments.active.base_offset for one in replicas
            )

        await self.cluster.until(are_clean)

    def look(self) -> None:
        """No replica that runs has another record at an offset than the one that was sent there."""
        for node in self.cluster.brokers:
            if node.is_serving and (replica := node.replica(TOPIC)) is not None:
                for offset, key, value in contents(replica.log):
                    assert self.sent.get(offset, (key, value)) == (key, value), f"offset {offset} of {node.host}"

    async def transact(self, numbers: Iterable[int]) -> None:
        """Write a transaction of two batches for each number, and commit two of three.

        The markers come from here, so the partition needs no coordinator.
        """
        for number in numbers:
            producer_id, is_commit = number % 4, number % 3 != 0
            epoch = self.epochs.get(producer_id, 0)
            for half in (0, 1):
                record = Record(
                    timestamp=self.cluster.clock.timestamp_ms(),
                    key=b"key-%d" % ((number + half) % KEYS),
                    value=b"%d-%d " % (number, half) + b"v" * 40,
                )
                batch = build_batch(
                    [record], producer_id=producer_id, producer_epoch=epoch, base_sequence=half, is_transactional=True
                )
                request = producing((TOPIC, 0, batch), transactional_id="x", timeout_ms=60_000)
                answer = await self._ask_leader(request, version=9)
                found = answer.responses[0].partition_responses[0]
                assert found.error_code == 0
                self.sent[found.base_offset] = record.key or b"", record.value
                if is_commit:
                    self.committed[record.key or b""] = record.value
            self.epochs[producer_id] = epoch + 1
            marker = WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch + 1,
                transaction_result=is_commit,
                topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])],
                coordinator_epoch=0,
                transaction_version=2,
            )
            answer = await self._ask_leader(WriteTxnMarkersRequest(markers=[marker]), version=2)
            assert answer.markers[0].topics[0].partitions[0].error_code == 0

    async def _ask_leader(self, request: object, *, version: int) -> Any:
        leader = self.cluster.leader(TOPIC)
        await self.cluster.until(lambda: (held := leader.replica(TOPIC)) is not None and held.is_leader)
        return await self.cluster.ask(leader, request, version=version)

    async def judge_committed(self) -> None:
        """Every replica gives the last committed value of each key, and no transaction is open."""
        await self.cluster.wait_healthy()
        ends = {log.log_end_offset for log in self.logs()}
        await self.cluster.until(lambda: len({log.log_end_offset for log in self.logs()}) == 1)
        self.look()
        for node in self.cluster.brokers:
            values: dict[bytes, bytes | None] = {}
            position, end = 0, max(ends)
            await self.cluster.until(lambda node=node, end=end: node.replica(TOPIC).known_high_watermark >= end)  # type: ignore[misc]
            while position < end:
                answer = await self.cluster.ask(
                    node, fetching(TOPIC, wanted(offset=position), read_committed=True), version=12
                )
                part = parts(answer)[0]
                assert (part.error_code, part.last_stable_offset) == (0, part.high_watermark)
                found = read_batches(part)
                for batch in visible(found, part.aborted_transactions):
                    if not batch.is_control:
                        values |= {record.key or b"": record.value for record in batch.records()}
                position = max(position, *(batch.next_offset for batch in found))
            assert values == self.committed

    async def judge(self) -> None:
        """All replicas end alike, give the last value of each key, and have no record elsewhere than it was sent."""
        await self.cluster.wait_healthy()
        await self.cluster.until(lambda: len({log.log_end_offset for log in self.logs()}) == 1)
        self.look()
        for log in self.logs():
            assert log.log_end_offset == max(self.sent) + 1
            assert final_map(log) == self.last_values()
        with trio.fail_after(60):
            read = {record.key: record.value for record in await self.cluster.records(TOPIC)}
        assert {key: value for key, value in read.items() if value is not None} == self.last_values()


@asynccontextmanager
async def compacted(
    *, seed: int = 0, settings: Mapping[str, object] | None = None, **configs: object
) -> AsyncIterator[Compacted]:
    async with memory_cluster(3, settings={**CLEANER, **(settings or {})}, seed=seed, has_tier=False) as cluster:
        await cluster.create_topic(TOPIC, replicas=[[1, 2, 3]], **{**POLICY, **configs})
        yield Compacted(cluster)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
async def test_a_reader_gets_the_last_values_whatever_dies(seed: int) -> None:
    draws = Draws("a replicated cleaner", seed)
    async with compacted(seed=seed) as topic:
        cluster = topic.cluster
        async with trio.open_nursery() as nursery:
            stopping = trio.Event()

            async def write() -> None:
                while not stopping.is_set():
                    own = Draws("records", seed, len(topic.sent))
                    key = b"key-%d" % own.below(KEYS)
                    await topic.put_one(key, None if own.chance(0.1) else own.bytes(40))
                    await trio.sleep(own.below(100) / 1000)

            nursery.start_soon(write)
            for turn in range(6):
                await trio.sleep(draws.between(200, 2_000) / 1000)
                topic.look()
                node = cluster.leader(TOPIC) if draws.chance(0.6) else cluster.nodes[draws.between(1, 3)]
                # A second loss of power at once would entitle the partition to lose records.
                await node.kill(loss=draws.choice(POWER_LOSSES) if turn % 3 == 0 else Loss.PROCESS_DEATH)
                await trio.sleep(draws.between(0, 4_000) / 1000)
                await node.start()
                await cluster.wait_healthy()
            stopping.set()
        await topic.judge()
        assert all(log.cleaned_offset for log in topic.logs())
        assert all(len(contents(log)) < len(topic.sent) / 2 for log in topic.logs())
        await topic.cleaned()
        await topic.judge()


async def test_replicas_that_have_cleaned_differently_give_the_same_values() -> None:
    async with compacted() as topic:
        cluster = topic.cluster
        await topic.put(40)
        await topic.cleaned()
        for node in (2, 3):  # they clean at once no more
            cluster.nodes[node].settings["log.cleaner.backoff.ms"] = 3_600_000
            await cluster.nodes[node].kill()
            await cluster.nodes[node].start()
        await cluster.wait_healthy()
        await topic.put(40)
        await topic.cleaned(1)
        few, many = len(contents(topic.log(1))), len(contents(topic.log(2)))
        assert few < many
        await topic.judge()
        await cluster.nodes[1].kill()
        await topic.put(3)
        await cluster.nodes[1].start()
        await topic.judge()


@pytest.mark.parametrize("loss", [Loss.PROCESS_DEATH, Loss.ONLY_SYNCED])
async def test_a_follower_behind_the_cleaning_fetches_across_the_holes(loss: Loss) -> None:
    async with compacted() as topic:
        cluster = topic.cluster
        await topic.put(10)
        behind = topic.log(3).log_end_offset
        await cluster.nodes[3].kill()
        await topic.put(80)
        await topic.cleaned(1, 2)
        held = {offset for offset, _, _ in contents(topic.log(1))}
        assert len(held) < 40
        await cluster.nodes[3].start()
        await topic.judge()
        fetched = {offset for offset, _, _ in contents(topic.log(3)) if offset >= behind}
        assert fetched == {offset for offset in held if offset >= behind}
        # A start recovers the log with its holes, and the broker leads with it.
        await cluster.nodes[3].kill(loss=loss)
        await cluster.nodes[3].start()
        await topic.judge()
        for node in (1, 2):
            await cluster.nodes[node].kill()
            await cluster.until(lambda: cluster.partition(TOPIC).leader == 3 or cluster.leader(TOPIC).is_serving)
            await cluster.nodes[node].start()
            await topic.put(10)
            await topic.judge()


async def test_tombstones_go_on_all_replicas_but_only_after_their_time() -> None:
    async with compacted(delete_retention_ms=60_000) as topic:
        cluster = topic.cluster
        await topic.put(20)
        await topic.put_one(b"key-0", None)
        first_ms = cluster.clock.timestamp_ms()
        await cluster.nodes[3].kill()
        await topic.put(40)
        gone = await topic.put_one(b"key-0", None)
        for number in range(20):  # the tombstone must leave the active segment
            await topic.put_one(b"key-%d" % (1 + number % 3), b"w" * 60)
        await topic.cleaned(1, 2)
        assert cluster.clock.timestamp_ms() - first_ms < 50_000
        await cluster.nodes[3].start()
        await topic.judge()
        await topic.cleaned()
        for log in topic.logs():
            assert (gone, b"key-0", None) in contents(log)
            assert b"key-0" not in final_map(log)
        await trio.sleep(70)
        for number in range(20):
            await topic.put_one(b"key-%d" % (1 + number % 3), b"x" * 60)
        await topic.cleaned()
        for log in topic.logs():
            assert not [offset for offset, key, _ in contents(log) if key == b"key-0"]
        await topic.judge()


@pytest.mark.long
async def test_replicas_agree_about_transactions_that_were_cleaned() -> None:
    """Broker 3 fetches what is left of them: batches and markers without records, and markers without batches."""
    settings = {"transaction.partition.verification.enable": "false"}
    async with compacted(settings=settings, delete_retention_ms=5_000) as topic:
        cluster = topic.cluster
        await topic.transact(range(20))
        await cluster.nodes[3].kill()
        await topic.transact(range(20, 60))
        for numbers in (range(60, 120, 4), range(120, 160, 4), range(160, 200, 4)):  # of one producer
            await topic.transact(numbers)
            await topic.cleaned(1, 2)
            await trio.sleep(10)
        markers = [batch for batch in read_all(topic.log(1)) if batch.is_control]
        assert {batch.record_count for batch in markers} == {0, 1}, "some are empty"
        await cluster.nodes[3].start()
        await topic.judge_committed()
        for loss in (Loss.PROCESS_DEATH, Loss.ONLY_SYNCED):
            await cluster.nodes[3].kill(loss=loss)
            await cluster.nodes[3].start()
            await topic.judge_committed()
        for node in (1, 2):
            await cluster.nodes[node].kill()
        await cluster.until(lambda: cluster.partition(TOPIC).leader == 3)
        for node in (1, 2):
            await cluster.nodes[node].start()
        await cluster.wait_healthy()
        await topic.transact(range(200, 240))
        await topic.cleaned()
        await topic.judge_committed()


async def test_a_truncation_after_cleaning_keeps_what_was_there_before() -> None:
    """Broker 1 goes on alone and cleans; then it ends, and broker 2, which lacks that, leads uncleanly."""
    async with compacted(min_insync_replicas=1, unclean_leader_election_enable="true") as topic:
        cluster = topic.cluster
        await topic.put(40)
        await topic.cleaned()
        shared = dict(topic.sent)
        for node in (2, 3):
            await cluster.nodes[node].kill()
        await cluster.until(lambda: cluster.partition(TOPIC).isr == (1,))
        await topic.put(60)
        await topic.cleaned(1)
        cleaned_offset = topic.log(1).cleaned_offset
        assert cleaned_offset is not None
        assert cleaned_offset > max(shared)
        await cluster.nodes[1].kill()
        for node in (2, 3):
            await cluster.nodes[node].start(waits=False)
        await cluster.until(lambda: cluster.partition(TOPIC).leader in (2, 3))
        topic.sent = shared
        await topic.put(5)
        await cluster.nodes[1].start()
        await topic.judge()
        await topic.put(60)
        await topic.judge()
        await topic.cleaned()
        await topic.judge()


async def test_deleted_records_stay_deleted_on_cleaned_replicas() -> None:
    async with compacted(cleanup_policy="compact,delete") as topic:
        cluster = topic.cluster
        await topic.put(60)
        await topic.cleaned()
        start = max(topic.sent) - 4
        part = DeleteRecordsPartition(partition_index=0, offset=start)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[part])], timeout_ms=10_000)
        answer = await cluster.ask(cluster.leader(TOPIC), request, version=2)
        assert answer.topics[0].partitions[0].error_code == 0
        for node in (1, 2, 3):
            await cluster.nodes[node].kill()
            await cluster.nodes[node].start()
            await cluster.wait_healthy()
        await topic.put(60)
        await topic.cleaned()
        assert all(log.log_start_offset >= start for log in topic.logs())
        assert all(offset >= start for log in topic.logs() for offset, _, _ in contents(log))
        await topic.judge()


async def test_records_are_read_to_an_end_that_has_no_record() -> None:
    """The last batch below the high watermark may have no records any more."""
    async with compacted(segment_ms=1_000) as topic:
        await topic.put(20)
        await topic.cleaned()
        await topic.judge()
