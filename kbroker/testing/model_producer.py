"""A model producer: one task for each partition, which sends rounds of batches ahead and repeats them until they are
acknowledged.

Theory of operation: a round is up to `in_flight` batches that are sent one after the other without waiting. Then their
answers are received. Batches that failed with an error that may pass are sent again in order, one at a time, with the
sequences that they had. After a time without success their outcome stays unknown, and an idempotent producer continues
with a new producer id. It also gets one if the broker does not know its sequences any more, as Java's does.

An idempotent producer also does on purpose what the network does to others. In some rounds a later batch is sent
first, and must be refused. After some rounds, and after each change of the leader, those of the last
five batches that were acknowledged are sent once more, as if their answers were lost: the broker must recognize them.

Source  Sender and TransactionManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import trio

from kbroker.client.operations import produce_request
from kbroker.storage.producer_state import REMEMBERED_BATCHES
from kbroker.testing.draws import Draws
from kbroker.testing.env import WALL_START_MS
from kbroker.testing.history import Function, Type, value_of
from kbroker.testing.model_reader import log_start_of
from kbroker.testing.model_router import BACKOFF_MS, MAX_BACKOFF_MS, Router, Unreachable, pause
from kbroker.testing.recorder import History
from wire.batch_header import NO_PRODUCER_ID, NO_SEQUENCE
from wire.compression import Codec
from wire.errors import ErrorCode, code_of
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.record_batch import Record, build_batch

DELIVERY_MS: Final = 120_000
LAST_MS: Final = 30_000
"""How long batches are repeated after the run has stopped."""
PRODUCE_VERSION: Final = 9
INIT_VERSION: Final = 4
_FORGOTTEN: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    """What a producer does.

    Shape  acks is -1 or 1, and -1 for an idempotent producer; in_flight is 1 to 5; keys is the number of keys of each
           partition, 0 if records have none; tombstones is the probability of a record without a value
    Units  pause_ms between two rounds; max_records in a batch; value_bytes the largest value; tombstone_ms is the
           topic's delete.retention.ms
    """

    name: str
    topic: str
    partitions: tuple[int, ...]
    acks: int = -1
    is_idempotent: bool = True
    in_flight: int = 1
    pause_ms: int = 200
    max_records: int = 5
    value_bytes: int = 100
    compression: str = "none"
    keys: int = 0
    tombstones: float = 0
    tombstone_ms: int = 0

    def __post_init__(self) -> None:
        assert self.acks == -1 or not self.is_idempotent, "an idempotent producer waits for all replicas"


@dataclass(slots=True, eq=False)
class _Batch:
    """Shape: lines are the fields of each record's lines in the history."""

    records: list[Record]
    values: list[str]
    lines: list[dict[str, Any]]
    sequence: int = NO_SEQUENCE
    times_sent: int = 0
    is_acknowledged: bool = False
    base_offset: int = -1


async def run_producer(
    router: Router, plan: ProducerPlan, history: History, *, seed: int, stopping: trio.Event
) -> None:
    """Send until the run stops."""
    if not plan.is_idempotent:
        history.unordered.append(plan.name)
    async with trio.open_nursery() as nursery:
        for index in plan.partitions:
            lane = _Lane(Router(router.cluster, router.host), plan, index, history, seed=seed, stopping=stopping)
            nursery.start_soon(lane.run)


class _Lane:
    """The sends of a producer to one partition, with a producer id of their own."""

    def __init__(
        self, router: Router, plan: ProducerPlan, index: int, history: History, *, seed: int, stopping: trio.Event
    ) -> None:
        self._router = router
        self._plan = plan
        self._partition = plan.topic, index
        self._key = f"{plan.topic}-{index}"
        self._history = history
        self._seed = seed
        self._stopping = stopping
        self._sent = self._rounds = 0
        self._producer = (NO_PRODUCER_ID, -1)
        self._sequence = 0
        self._has_gap = False  # a batch was refused for good, so the later ones need other sequences
        self._last: list[_Batch] = []  # of the present producer id, with an outcome, by sequence
        self._last_epoch = -1  # the leader epoch in which they were last sent again
        self._codec = Codec[plan.compression.upper()]

    async def run(self) -> None:
        """Send rounds until the run stops."""
        await pause(
            self._stopping, Draws(self._seed, self._plan.name, self._key, "start").below(self._plan.pause_ms + 1)
        )
        while not self._stopping.is_set():
            self._rounds += 1
            draws = Draws(self._seed, self._plan.name, self._key, self._rounds)
            if self._plan.is_idempotent and self._producer[0] == NO_PRODUCER_ID and not await self._init():
                continue
            waiting = [self._batch(draws) for _ in range(draws.between(1, self._plan.in_flight))]
            is_known = any(batch.is_acknowledged for batch in self._last)
            sent_first = draws.below(len(waiting)) if is_known and draws.chance(0.1) else 0
            await self._send_ahead(waiting, sent_first)
            await self._repeat(waiting)
            if self._last and self._producer[0] != NO_PRODUCER_ID:
                await self._send_again(always=draws.chance(0.05))
            await pause(self._stopping, self._plan.pause_ms)
        self._router.close()

    async def _init(self) -> bool:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        try:
            answer = await self._router.any(request, version=INIT_VERSION)
        except Unreachable:
            answer = None
        if answer is None or answer.error_code:
            await pause(self._stopping, BACKOFF_MS)
            return False
        self._producer, self._sequence = (answer.producer_id, answer.producer_epoch), 0
        self._last.clear()
        return True

    def _batch(self, draws: Draws) -> _Batch:
        """A new batch, whose records are invoked now."""
        batch = _Batch([], [], [])
        for _ in range(draws.between(1, self._plan.max_records)):
            self._sent += 1
            name = f"{self._plan.name}-{self._partition[1]}-{self._sent}|".encode()
            payload = name + draws.bytes(draws.below(self._plan.value_bytes + 1))
            batch.records.append(self._record(payload, draws))
            batch.values.append(value_of(payload))
            key, is_tombstone = batch.records[-1].key, batch.records[-1].value is None
            batch.lines.append(
                {
                    "acks": self._plan.acks,
                    "record_key": None if key is None else key.decode(),
                    "tombstone_ms": self._plan.tombstone_ms if is_tombstone else None,
                }
            )
        self._number(batch)
        for value, line in zip(batch.values, batch.lines, strict=True):
            self._history.note(self._plan.name, Function.SEND, Type.INVOKE, self._key, value=value, **line)
        return batch

    def _record(self, payload: bytes, draws: Draws) -> Record:
        if not self._plan.keys:
            return Record(timestamp=self._timestamp_ms(), value=payload)
        key = b"key-%d" % draws.below(self._plan.keys)
        if draws.chance(self._plan.tombstones):
            return Record(timestamp=self._timestamp_ms(), key=key, value=None, headers=(("name", payload),))
        return Record(timestamp=self._timestamp_ms(), key=key, value=payload)

    def _timestamp_ms(self) -> int:
        """The clients have a clock that never jumps."""
        return WALL_START_MS + self._history.now()

    def _number(self, batch: _Batch) -> None:
        if self._plan.is_idempotent:
            batch.sequence = self._sequence
            self._sequence += len(batch.records)

    async def _send(self, node: int, batch: _Batch) -> None:
        data = build_batch(
            batch.records, codec=self._codec, producer_id=self._producer[0], producer_epoch=self._producer[1],
            base_sequence=batch.sequence,
        )  # fmt: skip
        request = produce_request({self._partition: data}, acks=self._plan.acks, timeout_ms=8_000)
        batch.times_sent += 1
        await self._router.send(node, request, version=PRODUCE_VERSION)

    async def _send_ahead(self, waiting: list[_Batch], sent_first: int) -> None:
        """Send the batches of a round at once and receive their answers; what is acknowledged is removed."""
        sent: list[_Batch] = []
        try:
            node = await self._router.leader(self._partition)
            for batch in (waiting[sent_first], *waiting[:sent_first], *waiting[sent_first + 1 :]):
                await self._send(node, batch)
                sent.append(batch)
            for batch in sent:
                self._accept(batch, await self._router.receive(node), waiting)
        except Unreachable:
            return

    def _accept(self, batch: _Batch, answer: object, waiting: list[_Batch]) -> ErrorCode:
        """Complete a batch if the answer is final."""
        found = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
        code = code_of(found.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._complete(batch, Type.OK, base_offset=found.base_offset)
            waiting.remove(batch)
            batch.is_acknowledged, batch.base_offset = True, found.base_offset
        elif not code.retriable and code not in _FORGOTTEN:
            if code is not ErrorCode.INVALID_TIMESTAMP:  # the answer of a broker whose clock is a day late
                text = f"{self._plan.name} sends a batch that is refused for good: {code.name}"
                self._history.complain("K1", "refused", self._key, -1, text)
            # An earlier request for it may have been served.
            self._complete(batch, Type.FAIL if batch.times_sent == 1 else Type.INFO, error=code.name)
            waiting.remove(batch)
            self._has_gap = True
        return code

    def _complete(self, batch: _Batch, kind: Type, *, base_offset: int = -1, error: str | None = None) -> None:
        if self._plan.is_idempotent:
            self._last = sorted((*self._last, batch), key=lambda one: one.sequence)[-REMEMBERED_BATCHES:]
        for number, (value, line) in enumerate(zip(batch.values, batch.lines, strict=True)):
            offset = None if kind is not Type.OK else base_offset + number if base_offset >= 0 else -1
            self._history.note(
                self._plan.name, Function.SEND, kind, self._key, value=value, offset=offset, error=error, **line
            )

    async def _repeat(self, waiting: list[_Batch]) -> None:
        """Send the batches that are left, in order, until they are acknowledged or the time is up."""
        began, backoff_ms = self._history.now(), BACKOFF_MS
        while waiting:
            if self._history.now() - began > (LAST_MS if self._stopping.is_set() else DELIVERY_MS):
                for batch in waiting:
                    self._complete(batch, Type.INFO if batch.times_sent else Type.FAIL, error="timed out")
                self._producer = (NO_PRODUCER_ID, -1)
                return
            batch = waiting[0]
            try:
                await self._router.forget(self._partition)
                node = await self._router.leader(self._partition)
                await self._send(node, batch)
                code = self._accept(batch, await self._router.receive(node), waiting)
            except Unreachable:
                code = ErrorCode.NETWORK_EXCEPTION
            if batch not in waiting:
                backoff_ms = BACKOFF_MS
                continue
            if code in _FORGOTTEN:
                await self._begin_again(waiting, code)
                continue
            await trio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)

    async def _begin_again(self, waiting: list[_Batch], code: ErrorCode) -> None:
        """Number the batches from 0 with a new producer id, as the broker does not know the sequences before them."""
        if not self._has_gap and not self._history.is_lossy(self._key):
            text = f"{self._plan.name} sends the next batch in order, and is refused: {code.name}"
            self._history.complain("K4", "sequence-refused", self._key, -1, text)
        if await self._init():
            self._has_gap = False
            for batch in waiting:
                self._number(batch)

    async def _send_again(self, *, always: bool) -> None:
        """Send the last batches again, oldest first, `always` or if another leadership has begun since."""
        try:
            node = await self._router.leader(self._partition)
            epoch = self._router.places[self._partition].leader_epoch
            if epoch == self._last_epoch and not always:
                return
            for batch in [batch for batch in self._last if batch.is_acknowledged]:
                await self._send(node, batch)
                found = (await self._router.receive(node)).responses[0].partition_responses[0]
                # A replica that began after them, because they are deleted, does not know them, as in Kafka.
                if batch.base_offset >= log_start_of(self._router, self._partition, node):
                    self._judge_repetition(batch, code_of(found.error_code), found.base_offset)
            self._last_epoch = epoch
        except Unreachable:
            return

    def _judge_repetition(self, batch: _Batch, code: ErrorCode, base_offset: int) -> None:
        text = f"{self._plan.name} sends the acknowledged batch at {batch.base_offset} again, and the answer is"
        if self._history.is_lossy(self._key):
            return
        if code is ErrorCode.NONE and batch.base_offset not in (-1, base_offset):
            self._history.complain("K4", "repeated", self._key, base_offset, f"{text} this offset")
        elif code in _FORGOTTEN:
            self._history.complain("K4", "not-recognized", self._key, batch.base_offset, f"{text} {code.name}")
