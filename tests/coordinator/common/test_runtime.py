"""The coordinator runtime serves any kind of shard: here one that counts votes."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.broker import Broker
from kbroker.coordinator.common.led import State
from kbroker.coordinator.common.ports import Decide, Decided, Parked
from kbroker.coordinator.common.runtime import CoordinatorRuntime, Kind
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image, PartitionImage
from kbroker.replication.partition import Partition
from kbroker.runtime.purgatory import Purgatory
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import create_topic, delete_topic
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record

TOPIC = "votes"
MINUTE_MS = 60_000
FOLLOWER = 2


@dataclass(frozen=True)
class Vote:
    """Answered with the number of votes for the candidate."""

    candidate: str


@dataclass(frozen=True)
class Await:
    """Answered when the candidate has this many votes."""

    candidate: str
    count: int


@dataclass(frozen=True)
class End:
    """Removes the votes for the candidate, and answers all that wait for more with the number so far."""

    candidate: str


class VoteShard:
    """Counts votes. All votes are forgotten a minute after the last one."""

    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count
        self.votes: dict[str, int] = {}
        self.failures: list[ErrorCode] = []
        self._waiting: dict[Parked, Await] = {}
        self._answers: list[tuple[Parked, Any]] = []
        self._due_ms: int | None = None

    def decide(self, request: Vote | Await | End, caller: object, *, now_ms: int, timestamp_ms: int) -> Decided:
        del caller, timestamp_ms
        votes = self.votes.get(request.candidate, 0)
        if isinstance(request, Vote):
            self._due_ms = now_ms + MINUTE_MS
            record = Record(key=request.candidate.encode(), value=str(votes + 1).encode())
            return Decided([record], votes + 1, lambda code: code)
        if isinstance(request, End):
            self._answers += [(parked, votes) for parked in self._waiting]
            self._waiting.clear()
            return Decided([Record(key=request.candidate.encode(), value=None)], votes, lambda code: code)
        if votes >= request.count:
            return Decided([], votes, lambda code: code)
        parked = Parked(request.candidate, 0)
        self._waiting[parked] = request
        return Decided([], parked, lambda code: code)

    def on_appended(self, decided: Decided, *, now_ms: int, timestamp_ms: int, base_offset: int) -> None:
        del now_ms, timestamp_ms
        for index, record in enumerate(decided.records):
            self.replay(record.key, record.value, offset=base_offset + index, producer_id=-1)
        for parked, asked in list(self._waiting.items()):
            if self.votes.get(asked.candidate, 0) >= asked.count:
                del self._waiting[parked]
                self._answers.append((parked, self.votes[asked.candidate]))

    def on_append_failed(self, decided: Decided, code: ErrorCode, *, now_ms: int, timestamp_ms: int) -> None:
        del decided, now_ms, timestamp_ms
        self.failures.append(code)

    def take_answers(self) -> Iterable[tuple[Parked, Any]]:
        answers, self._answers = self._answers, []
        return answers

    def next_deadline_ms(self) -> int | None:
        return self._due_ms

    def on_time(self, *, now_ms: int, timestamp_ms: int, aging_timestamp_ms: int) -> Decided:
        del timestamp_ms, aging_timestamp_ms
        if self._due_ms is None or now_ms < self._due_ms:
            return Decided([], None)
        self._due_ms = None
        return Decided([Record(key=candidate.encode(), value=None) for candidate in self.votes], None)

    def replay(self, key: bytes | None, value: bytes | None, *, offset: int, producer_id: int) -> None:
        assert (key is not None, offset >= 0, producer_id) == (True, True, -1)
        assert key is not None
        if value is None:
            self.votes.pop(key.decode(), None)
        else:
            self.votes[key.decode()] = int(value)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        raise AssertionError("votes are not transactional")

    def after_loading(self, image: Image) -> Iterable[Decide]:
        assert TOPIC in image.topics_by_name
        return [self._begin]

    def _begin(self, *, now_ms: int, timestamp_ms: int) -> Decided:
        del timestamp_ms
        self._due_ms = now_ms + MINUTE_MS
        return Decided([], None)

    def unload(self, *, now_ms: int, timestamp_ms: int) -> None:
        del now_ms, timestamp_ms
        self._answers += [(parked, ErrorCode.NOT_COORDINATOR) for parked in self._waiting]
        self._waiting.clear()

    def sizes(self) -> dict[str, int]:
        return {"candidates": len(self.votes)}


Votes = CoordinatorRuntime[VoteShard]


def domain(broker: MemoryBroker) -> Broker:
    assert broker.node.broker is not None
    return broker.node.broker


@asynccontextmanager
async def votes_on(broker: MemoryBroker) -> AsyncIterator[Votes]:
    """A runtime of vote shards on a running broker, in addition to the one for groups."""
    inner = domain(broker)
    kind = Kind(
        name="vote",
        topic=TOPIC,
        ages="votes",
        partition_count=1,
        codec=Codec.NONE,
        commit_timeout_ms=5_000,
        load_slice_bytes=100,
    )
    runtime: Votes = CoordinatorRuntime(
        broker.env, kind, VoteShard, replicas=inner.replicas, purgatory=inner.purgatory, logs=inner
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        await runtime.on_image(inner.image, Delta(Image(), inner.image))
        yield runtime
        nursery.cancel_scope.cancel()


async def wait(purgatory: Purgatory, *keys: object, until: Callable[[], bool], max_wait_ms: int) -> bool:
    return await purgatory.wait(*keys, until=until, max_wait_ms=max_wait_ms)


async def ask(runtime: Votes, request: Vote | Await | End) -> Any:
    return await runtime.ask(request.candidate, request, None, wait=wait)


async def outcome(runtime: Votes, request: Vote | Await | End) -> Any:
    """The response, or the code of the error."""
    try:
        return await ask(runtime, request)
    except KafkaError as error:
        return error.code


async def disk_with_votes(*candidates: str, **settings: object) -> SimulatedDisk:
    """The disk of a killed broker that has stored one vote after the other."""
    async with memory_broker(settings=settings) as broker:
        await create_topic(await broker.connect(), TOPIC, partitions=3)
        async with votes_on(broker) as runtime:
            for candidate in candidates:
                await ask(runtime, Vote(candidate))
        return broker.disk.crash(Loss.PROCESS_DEATH)


async def test_a_new_leader_loads_what_was_stored(autojump_clock: MockClock) -> None:
    async with memory_broker(await disk_with_votes("ada", "bob", "ada", "cleo")) as broker, votes_on(broker) as runtime:
        await wait_all_tasks_blocked()
        assert [led.state for led in runtime.led.values()] == [State.ACTIVE] * 3
        assert [await ask(runtime, Vote(candidate)) for candidate in ("ada", "bob", "cleo")] == [3, 2, 2]
        assert {led.shard.partition_count for led in runtime.led.values()} == {3}


async def test_a_loading_shard_refuses_requests(autojump_clock: MockClock) -> None:
    disk = await disk_with_votes("ada", "ada")
    async with memory_broker(disk, latency_ms=1000) as broker, votes_on(broker) as runtime:
        with pytest.raises(KafkaError) as raised:
            await ask(runtime, Vote("ada"))
        assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await trio.sleep(30)
        assert await ask(runtime, Vote("ada")) == 3


async def test_a_parked_request_is_answered_by_a_later_decision(autojump_clock: MockClock) -> None:
    async with memory_broker(await disk_with_votes()) as broker, votes_on(broker) as runtime:
        answers: list[Any] = []

        async def await_two() -> None:
            answers.append(await ask(runtime, Await("ada", 2)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(await_two)
            await wait_all_tasks_blocked()
            assert await ask(runtime, Vote("ada")) == 1
            await wait_all_tasks_blocked()
            assert (answers, runtime.parked_count) == ([], 1)
            assert await ask(runtime, Vote("ada")) == 2
        assert (answers, runtime.parked_count) == ([2], 0)


async def test_losing_a_partition_answers_parked_requests(autojump_clock: MockClock) -> None:
    async with memory_broker(await disk_with_votes()) as broker, votes_on(broker) as runtime:
        answers: list[Any] = []

        async def await_two() -> None:
            answers.append(await outcome(runtime, Await("ada", 2)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(await_two)
            await wait_all_tasks_blocked()
            before = domain(broker).image
            await delete_topic(await broker.connect(), TOPIC)
            after = domain(broker).image
            await runtime.on_image(after, Delta(before, after))
        assert answers == [ErrorCode.NOT_COORDINATOR]
        assert runtime.led == {}
        with pytest.raises(KafkaError) as raised:
            await ask(runtime, Vote("ada"))
        assert raised.value.code is ErrorCode.NOT_COORDINATOR


def start_epoch(partition: Partition, *, leader: int) -> None:
    """Start a leader epoch in which another replica is in sync, but never fetches: nothing is committed."""
    both, epoch = (partition.broker_id, FOLLOWER), partition.leader_epoch + 1
    partition.apply(PartitionImage(both, both, leader=leader, leader_epoch=epoch, partition_epoch=epoch))


@asynccontextmanager
async def uncommitted_votes(broker: MemoryBroker) -> AsyncIterator[tuple[Votes, Partition]]:
    """A runtime, and its partition of "ada", in which nothing is committed."""
    async with votes_on(broker) as runtime:
        partition = runtime.led[runtime.partition_of("ada")].partition
        start_epoch(partition, leader=partition.broker_id)
        await runtime.follow(domain(broker).image)
        yield runtime, partition


async def test_an_answer_that_was_not_committed_is_refused_when_the_partition_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker(await disk_with_votes()) as broker, uncommitted_votes(broker) as (runtime, partition):
        codes: list[Any] = []

        async def note(request: Vote | Await) -> None:
            codes.append(await outcome(runtime, request))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, Await("ada", 1))
            await wait_all_tasks_blocked()
            nursery.start_soon(note, Vote("ada"))
            await wait_all_tasks_blocked()
            assert (codes, partition.log.log_end_offset) == ([], 1)
            start_epoch(partition, leader=FOLLOWER)
            await runtime.follow(domain(broker).image)
        assert sorted(codes) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR]


async def test_no_answer_is_sent_if_the_partition_is_lost_during_the_append(autojump_clock: MockClock) -> None:
    """The decision has given the answer, but its record is not even written."""
    disk, settings = await disk_with_votes(), {"log.flush.interval.messages": 1}
    async with (
        memory_broker(disk, settings=settings, latency_ms=1000) as broker,
        uncommitted_votes(broker) as (runtime, partition),
    ):
        codes: dict[type, Any] = {}

        async def note(request: Await | End) -> None:
            codes[type(request)] = await outcome(runtime, request)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, Await("ada", 1))
            await wait_all_tasks_blocked()
            nursery.start_soon(note, End("ada"))
            await wait_all_tasks_blocked()
            assert (codes, partition.log.log_end_offset) == ({}, 0)
            start_epoch(partition, leader=FOLLOWER)
            await runtime.follow(domain(broker).image)
        assert codes == {Await: ErrorCode.NOT_COORDINATOR, End: ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_no_decision_waits_for_the_replicas_of_an_earlier_one(autojump_clock: MockClock) -> None:
    """Even if they had to wait for the lock of the log."""
    disk = await disk_with_votes()
    async with (
        memory_broker(disk) as broker,
        uncommitted_votes(broker) as (runtime, partition),
        trio.open_nursery() as nursery,
    ):
        async with domain(broker).locked(partition.log):
            for _ in range(3):
                nursery.start_soon(ask, runtime, Vote("ada"))
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert partition.log.log_end_offset == 3
        nursery.cancel_scope.cancel()


async def test_timers_do_not_wait_for_replicas(autojump_clock: MockClock) -> None:
    """A change of the metadata may be what ends the wait."""
    async with memory_broker(await disk_with_votes()) as broker, uncommitted_votes(broker) as (runtime, partition):
        began = trio.current_time()

        def vote(shard: VoteShard) -> Decide:
            def decide(*, now_ms: int, timestamp_ms: int) -> Decided:
                decided = shard.decide(Vote("ada"), None, now_ms=now_ms, timestamp_ms=timestamp_ms)
                return replace(decided, refuse=None)

            return decide

        for _ in range(3):
            await runtime.decide_everywhere(vote)
        assert (partition.log.log_end_offset, trio.current_time()) == (3, began)


async def test_a_partition_that_is_lost_during_a_round_decides_nothing(autojump_clock: MockClock) -> None:
    disk, settings = await disk_with_votes(), {"log.flush.interval.messages": 1}
    async with memory_broker(disk, settings=settings, latency_ms=1000) as broker, votes_on(broker) as runtime:
        decided: list[VoteShard] = []

        def vote(shard: VoteShard) -> Decide:
            def decide(*, now_ms: int, timestamp_ms: int) -> Decided:
                decided.append(shard)
                return shard.decide(Vote("ada"), None, now_ms=now_ms, timestamp_ms=timestamp_ms)

            return decide

        first, second, _ = runtime.active()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.decide_everywhere, vote)
            await wait_all_tasks_blocked()
            assert decided == [first.shard], "its record is being written"
            start_epoch(second.partition, leader=FOLLOWER)
            await runtime.follow(domain(broker).image)
        assert len(decided) == 2
        assert second.shard not in decided


async def test_a_failed_append_is_undone_and_refused(autojump_clock: MockClock) -> None:
    async with memory_broker(await disk_with_votes()) as broker, votes_on(broker) as runtime:
        index = runtime.partition_of("ada")
        broker.disk.inject(Fault(errno.ENOSPC, name="write", path=f"/data/{TOPIC}-{index}/*.log"))
        code = await ask(runtime, Vote("ada"))
        assert code is ErrorCode.KAFKA_STORAGE_ERROR
        assert runtime.led[index].shard.failures == [code]
        assert await ask(runtime, Vote("ada")) == 1


@pytest.mark.parametrize("max_bytes", [1_000_000, 300], ids=["one batch", "several batches"])
async def test_timers_fire_and_their_records_are_stored(max_bytes: int, autojump_clock: MockClock) -> None:
    settings = {"message.max.bytes": max_bytes}
    disk = await disk_with_votes(*(f"candidate-{number:03}" for number in range(60)), **settings)
    async with memory_broker(disk, settings=settings) as broker, votes_on(broker) as runtime:
        await trio.sleep(MINUTE_MS / 1000 - 10)
        assert sum(len(led.shard.votes) for led in runtime.led.values()) == 60
        await trio.sleep(20)
        disk = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(disk) as broker, votes_on(broker) as runtime:
        await wait_all_tasks_blocked()
        assert [led.shard.votes for led in runtime.active()] == [{}, {}, {}]


async def test_concurrent_requests_see_each_other_across_segment_rolls(autojump_clock: MockClock) -> None:
    async with memory_broker(settings={"log.segment.bytes": 2048}, latency_ms=40) as broker:
        await create_topic(await broker.connect(), TOPIC)
        async with votes_on(broker) as runtime:
            answers: list[int] = []

            async def vote_often() -> None:
                for _ in range(20):
                    answers.append(await ask(runtime, Vote("ada")))

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(vote_often)
            assert sorted(answers) == list(range(1, 101))
