"""A model reader: it is assigned partitions, and reads each from its start, from the leader or from a follower.

With `from_replica` it reads from followers, like a client with a preferred read replica. After each error it
changes between follower and leader.

Source  Fetcher and FetchSessionHandler of Apache Kafka 4.3.1; KIP-392
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import trio

from kbroker.testing.draws import Draws
from kbroker.testing.history import Function, Type, value_of
from kbroker.testing.model_router import BACKOFF_MS, Partition, Router, Unreachable, pause
from kbroker.testing.recorder import History
from wire.errors import ErrorCode, code_of
from wire.messages.fetch import AbortedTransaction, FetchPartition, FetchRequest, FetchTopic
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.record_batch import RecordBatch, batches

UNCOMMITTED, COMMITTED = 0, 1
"""Isolation levels."""
EARLIEST: Final = -2
LATEST: Final = -1
FETCH_VERSION: Final = 12
OFFSETS_VERSION: Final = 6
WAIT_MS: Final = 500
MAX_BYTES: Final = 64 * 1024
END_WITHIN_S: Final = 30
"""A reader that does not reach the end in this time after the run has found what K11 forbids."""
_TRIES: Final = 100
_ABORT: Final = 0
_RANDOM_READS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPlan:
    """What a reader does.

    Shape  reads_committed: with isolation level read_committed
    Units  pause_ms between two requests for a partition
    """

    name: str
    topic: str
    partitions: tuple[int, ...]
    from_replica: bool = False
    pause_ms: int = 0
    reads_committed: bool = False


def fetch_request(
    partition: Partition, offset: int, *, wait_ms: int = WAIT_MS, max_bytes: int = MAX_BYTES, leader_epoch: int = -1,
    isolation_level: int = UNCOMMITTED,
) -> FetchRequest:  # fmt: skip
    """A Fetch of one partition."""
    part = FetchPartition(
        partition=partition[1],
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=partition[0], partitions=[part])],
    )


def records_of(batch: RecordBatch, position: int) -> Iterator[tuple[int, str]]:
    """Offset and name of each record from a position on; none of a control batch."""
    if not batch.is_control:
        for offset, _, _, value, headers in batch.records():
            if offset >= position:
                # The name of a tombstone is in its header.
                yield offset, value_of(value or (headers[0][1] if headers else None) or b"")


def visible(found: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction] | None) -> Iterator[RecordBatch]:
    """The batches without those of aborted transactions, as a consumer finds them out."""
    left = sorted(aborted or (), key=lambda one: one.first_offset)
    ids: set[int] = set()
    for batch in found:
        while left and left[0].first_offset <= batch.last_offset:
            ids.add(left.pop(0).producer_id)
        if batch.is_control and is_abort(batch):
            ids.discard(batch.producer_id)
        if not (batch.is_transactional and batch.producer_id in ids):
            yield batch


def is_abort(batch: RecordBatch) -> bool:
    """Whether a control batch is the marker of an aborted transaction. The cleaner may have removed the marker."""
    return any(int.from_bytes((record.key or b"")[2:4], "big") == _ABORT for record in batch.records())


async def run_reader(router: Router, plan: ReaderPlan, history: History, *, stopping: trio.Event) -> None:
    """Read until the run stops, and then to the end of each partition."""
    if not plan.reads_committed:
        history.uncommitted.add(plan.name)
    async with trio.open_nursery() as nursery:
        for index in plan.partitions:
            own = Router(router.cluster, router.host)
            nursery.start_soon(_Lane(own, plan, (plan.topic, index), history, stopping).run)


class _Lane:
    """The reads of one partition."""

    def __init__(
        self, router: Router, plan: ReaderPlan, partition: Partition, history: History, stopping: trio.Event
    ) -> None:
        self._router = router
        self._plan = plan
        self._partition = partition
        self._key = f"{partition[0]}-{partition[1]}"
        self._history = history
        self._stopping = stopping
        self._position = 0
        self._prefers_follower = plan.from_replica

    async def run(self) -> None:
        self._history.note(self._plan.name, Function.ASSIGN, Type.OK, self._key, offset=0)
        while not self._stopping.is_set():
            try:
                await self._read(await self._source())
                await pause(self._stopping, self._plan.pause_ms)
            except Unreachable:
                self._prefers_follower = self._plan.from_replica and not self._prefers_follower
                await self._router.forget(self._partition)
                await pause(self._stopping, BACKOFF_MS)
        await self._read_to_the_end()
        self._router.close()

    async def _read_to_the_end(self) -> None:
        with trio.move_on_after(END_WITHIN_S):
            while True:
                try:
                    if await self._read(await self._router.leader(self._partition), wait_ms=0) <= self._position:
                        self._history.note(self._plan.name, Function.POLL, Type.INFO, self._key, offset=self._position)
                        return
                except Unreachable:
                    await self._router.forget(self._partition)
                    await trio.sleep(BACKOFF_MS / 1000)
        if self._plan.reads_committed and self._history.may_hang(self._key):
            return
        text = f"{self._plan.name} does not reach the end within {END_WITHIN_S} s after the last send"
        self._history.complain("K11", "unseen", self._key, self._position, text)

    async def _source(self) -> int:
        leader = await self._router.leader(self._partition)
        place = self._router.places[self._partition]
        others = [each for each in place.replicas if each != leader and each in place.isr]
        return others[self._position % len(others)] if self._prefers_follower and others else leader

    async def _read(self, node: int, *, wait_ms: int = WAIT_MS) -> int:
        """Read once. Returns the high watermark. Errors: Unreachable."""
        place = self._router.places[self._partition]
        level = COMMITTED if self._plan.reads_committed else UNCOMMITTED
        request = fetch_request(
            self._partition, self._position, wait_ms=wait_ms, leader_epoch=place.leader_epoch, isolation_level=level
        )
        answer = await self._router.ask(node, request, version=FETCH_VERSION)
        if answer.error_code:
            raise Unreachable(code_of(answer.error_code).name)
        found = answer.responses[0].partitions[0]
        if code_of(found.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE and node == place.leader:
            await self._begin_elsewhere(node)
        self._take(found)
        high_watermark: int = found.high_watermark
        if self._plan.reads_committed and node == place.leader and not self._history.is_lossy(self._key):
            self._history.answered(
                f"broker-{node}", Function.STABLE, self._key, epoch=place.leader_epoch,
                offset=found.last_stable_offset, value=str(high_watermark),
            )  # fmt: skip
        return high_watermark

    async def _begin_elsewhere(self, node: int) -> None:
        """Go on at the log start if the records at the position were deleted. Errors: Unreachable."""
        start, end = [
            await offset_at(self._router, node, self._partition, timestamp) for timestamp in (EARLIEST, LATEST)
        ]
        if self._history.is_lossy(self._key):
            self._position = min(max(start, self._position), end)
        elif start > self._position:
            self._position = start
        else:
            # This reader has received all records before this offset.
            text = f"broker {node} has {start} to {end}, and answers {self._plan.name} with OFFSET_OUT_OF_RANGE"
            self._history.complain("K3", "out-of-range", self._key, self._position, text)
        self._history.note(self._plan.name, Function.ASSIGN, Type.OK, self._key, offset=self._position)

    def _take(self, found: Any) -> None:
        if found.error_code:
            raise Unreachable(code_of(found.error_code).name)
        read = list(batches(found.records or b""))
        if not all(self._history.received(self._plan.name, self._key, batch) for batch in read):
            raise Unreachable(ErrorCode.CORRUPT_MESSAGE.name)
        for batch in visible(read, found.aborted_transactions):
            for offset, value in records_of(batch, self._position):
                self._history.note(self._plan.name, Function.POLL, Type.OK, self._key, value=value, offset=offset)
        self._position = max([self._position, *(batch.next_offset for batch in read)])


async def offset_at(router: Router, node: int, partition: Partition, timestamp: int) -> int:
    """What ListOffsets answers. Errors: Unreachable."""
    asked = ListOffsetsPartition(partition_index=partition[1], timestamp=timestamp)
    topic = ListOffsetsTopic(name=partition[0], partitions=[asked])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])
    found = (await router.ask(node, request, version=OFFSETS_VERSION)).topics[0].partitions[0]
    if found.error_code:
        raise Unreachable(code_of(found.error_code).name)
    offset: int = found.offset
    return offset


async def read_replica(router: Router, partition: Partition, node: int, end: int, *, history: History) -> None:
    """Read one replica from its log start to the end that all are said to have, and note its `final` lines.

    Errors  Unreachable
    """
    key, process, start = f"{partition[0]}-{partition[1]}", f"broker-{node}", log_start_of(router, partition, node)
    position = start
    while position < end:
        records = await _read_at(router, partition, node, position)
        if not records:
            now = log_start_of(router, partition, node)
            if position == start < now:  # deleted before the first read
                start = position = now
                continue
            text = f"{process} does not give the records from there to {end}"
            history.complain("K1", "unreadable", key, position, text)
            break
        for batch in batches(records):
            is_readable = history.received(process, key, batch)
            found = list(records_of(batch, position) if is_readable else ())
            for offset, value in found:
                history.note(process, Function.FINAL, Type.OK, key, value=value, offset=offset)
            if batch.is_control:
                history.note(process, Function.FINAL, Type.INFO, key, offset=batch.base_offset, error="control")
            if history.is_compacted(key):
                for offset in sorted({*range(position, batch.next_offset)} - {offset for offset, _ in found}):
                    history.note(process, Function.FINAL, Type.INFO, key, offset=offset, error="compacted")
            position = max(position, batch.next_offset)
    history.note(process, Function.BOUNDS, Type.OK, key, offset=position, value=str(start))


def log_start_of(router: Router, partition: Partition, node: int) -> int:
    """The log start offset of a replica."""
    replica = router.cluster.nodes[node].replica(*partition)
    return 0 if replica is None else replica.log.log_start_offset


async def read_committed(router: Router, partition: Partition, node: int, end: int, *, history: History) -> None:
    """Read one replica to its end as a read_committed reader. Errors: Unreachable."""
    key, process, position = f"{partition[0]}-{partition[1]}", f"judge-{node}", log_start_of(router, partition, node)
    history.note(process, Function.ASSIGN, Type.OK, key, offset=position)
    for _ in range(_TRIES):
        if position >= end:
            break
        request = fetch_request(partition, position, isolation_level=COMMITTED)
        answer = await router.ask(node, request, version=FETCH_VERSION)
        found = answer.responses[0].partitions[0] if not answer.error_code else None
        read = list(batches(found.records or b"")) if found is not None and not found.error_code else []
        readable = [batch for batch in read if history.received(process, key, batch)]
        for batch in visible(readable, found.aborted_transactions) if found is not None else ():
            for offset, value in records_of(batch, position):
                history.note(process, Function.POLL, Type.OK, key, value=value, offset=offset)
        position = max([position, log_start_of(router, partition, node), *(batch.next_offset for batch in read)])
        if not read:
            await trio.sleep(BACKOFF_MS / 1000)
    history.note(process, Function.POLL, Type.INFO, key, offset=position)


async def read_at_random(
    router: Router, partition: Partition, node: int, end: int, *, draws: Draws, history: History
) -> None:
    """Read one replica at some offsets: each answer begins with the batch that has the offset, or with the next one if
    the cleaner has removed it.

    Errors  Unreachable
    """
    key, process = f"{partition[0]}-{partition[1]}", f"broker-{node}"
    start = log_start_of(router, partition, node)
    for offset in [draws.between(start, end - 1) for _ in range(min(end - start, _RANDOM_READS))]:
        if records := await _read_at(router, partition, node, offset):
            batch = next(batches(records))
            history.received(process, key, batch)
            if offset > batch.last_offset or (offset < batch.base_offset and not history.is_compacted(key)):
                text = f"{process} gives the batch {batch.base_offset}..{batch.last_offset} for it"
                history.complain("K2", "other-batch", key, offset, text)


async def _read_at(router: Router, partition: Partition, node: int, offset: int) -> Any:
    """The records of a Fetch from an offset that the replica has; None if it never gives them, or no longer has it."""
    for _ in range(_TRIES):
        answer = await router.ask(node, fetch_request(partition, offset), version=FETCH_VERSION)
        found = answer.responses[0].partitions[0] if not answer.error_code else None
        if found is not None and not found.error_code and found.records:
            return found.records
        await trio.sleep(BACKOFF_MS / 1000)
        if log_start_of(router, partition, node) > offset:
            break
    return None
