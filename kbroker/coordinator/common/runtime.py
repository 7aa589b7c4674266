"""The coordinator runtime: the shards of one internal topic, one for each of its partitions that this broker leads.

Theory of operation. A key, such as a group id, hashes to a partition, and the partition's leader coordinates the key.
When this broker becomes the leader, the runtime loads the partition into a new shard; requests are answered with
COORDINATOR_LOAD_IN_PROGRESS until that is done. When the broker loses the leadership, the runtime drops the shard and
answers waiting requests with NOT_COORDINATOR. One task loads shards, and one task runs the timers of all shards.

A shard makes one decision at a time. A decision, the append of its records as one batch, and their replay happen
without an await between them, so that they are atomic and need no lock. If the append would block the event loop (a
segment roll, a sync, a large batch), a thread writes it while the task holds the partition's lock; the task takes that
lock without yielding after the decision. A task that finds the lock taken waits for it and decides afterwards. The
response is sent when every in-sync replica has the records. A parked request waits in the task of its connection until
the shard has its answer.

Source: decisions 1 and 4 of ARCHITECTURE.md; CoordinatorRuntime of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, Generic, NamedTuple
from uuid import UUID

import trio

from kbroker.coordinator.common.led import LedPartition, State
from kbroker.coordinator.common.loading import Loading
from kbroker.coordinator.common.ports import Decide, Decided, Job, Logs, Parked, Producer, S, Wait, partition_for
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.replication.replicas import Replicas
from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.plans import INLINE_WRITE_BYTES, UNKNOWN_SPACE, AppendPlan
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError

FOR_EVER_MS: Final = 1 << 40
REMEMBERED_KEYS: Final = 10_000
REMEMBERED_LENGTH: Final = 256
STALL_MS: Final = 500
ROUNDS_AFTER_A_STALL: Final = 3
JOBS_AT_ONCE: Final = 2  # Kafka's group.coordinator.background.threads

logger = get_logger(__name__)


class Kind(NamedTuple):
    """What a runtime serves, and how it writes.

    Shape  log lines contain name (in the singular) and ages (what expires by wall time); partition_count applies while
           the topic does not exist
    Units  the shards do not write while the disk has less than lowest_free_bytes of free space
    """

    name: str
    topic: str
    ages: str
    partition_count: int
    codec: Codec
    commit_timeout_ms: int
    load_slice_bytes: int
    lowest_free_bytes: int = UNKNOWN_SPACE


class _Made(NamedTuple):
    """A decision and its response.

    Note  the response depends only on records before end_offset; None for an error, which depends on no record
    """

    decided: Decided
    response: Any
    end_offset: int | None


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this broker.

    Shape  led maps the indexes of the partitions that this broker leads to their state; new_shard makes a shard,
           given the number of partitions
    Bound  one parked request for each connection
    """

    def __init__(
        self,
        env: Env,
        kind: Kind,
        new_shard: Callable[[int], S],
        *,
        replicas: Replicas,
        purgatory: Purgatory,
        logs: Logs,
        on_decided: Callable[[LedPartition[S]], None] | None = None,
    ) -> None:
        self.kind = kind
        self.led: dict[int, LedPartition[S]] = {}
        self.partition_count = kind.partition_count
        self._env = env
        self._new_shard = new_shard
        self._on_decided = on_decided
        self._replicas = replicas
        self._purgatory = purgatory
        self._logs = logs
        self._parked: dict[Parked, tuple[Any, int] | None] = {}
        self._hash = lru_cache(REMEMBERED_KEYS)(partition_for)
        self._topic_id: UUID | None = None
        self._has_followed = False
        self._image = Image()
        self._to_load: list[LedPartition[S]] = []
        self._load_wanted = trio.Event()
        self._sleep = trio.CancelScope()
        self._due_ms: int | None = None
        # The shards bound the jobs: each key has at most one of a kind.
        self._jobs_to_do, self._jobs = trio.open_memory_channel[tuple[LedPartition[S], Job]](math.inf)

    @property
    def parked_count(self) -> int:
        """The number of parked requests."""
        return len(self._parked)

    def active(self) -> list[LedPartition[S]]:
        """The partitions whose shards are loaded."""
        return [led for led in self.led.values() if led.state is State.ACTIVE]

    def partition_of(self, key: str) -> int:
        """The partition that holds a key."""
        find = self._hash if len(key) <= REMEMBERED_LENGTH else partition_for
        return find(key, self.partition_count)

    def find(self, key: str) -> LedPartition[S]:
        """The partition that holds a key; its shard can answer requests.

        Errors  NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS
        """
        led = self.led.get(self.partition_of(key))
        if led is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate the {self.kind.name} {key}")
        led.require_active()
        return led

    # Decisions

    async def ask(
        self, key: str, request: Any, caller: Any, *, wait: Wait | None = None, producer: Producer | None = None
    ) -> Any:
        """The response of a shard to a request, once it is valid. `wait` is necessary if requests may be parked.

        Whatever the response shows is committed then, so that no later coordinator contradicts it. With a producer the
        records of the decision are part of its transaction.

        Errors  NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS
        """
        led = self.find(key)
        decide: Decide = partial(led.shard.decide, request, caller)
        if producer is not None:
            decide = partial(_decide_for, producer, decide)
        decided, response, end_offset = await self._make(led, decide)
        is_refusable = bool(decided.records)
        if type(response) is Parked:
            is_refusable = False
            assert wait is not None, f"a {self.kind.name} cannot wait"
            response, end_offset = await self._answer(response, wait)
        code = ErrorCode.NONE if end_offset is None else await self._await_outcome(led, end_offset)
        if code is ErrorCode.NONE:
            return response
        if is_refusable:
            return decided.refused(ErrorCode.REQUEST_TIMED_OUT if code is None else code)
        raise KafkaError(ErrorCode.NOT_COORDINATOR, f"the state of {key} is not replicated")

    async def decide(self, led: LedPartition[S], decide: Decide) -> None:
        """Make a decision that answers no request, and append its records. It does not wait until they are committed:
        timers and changes of metadata would wait for a partition that lacks replicas. It does nothing if the shard was
        unloaded while the caller waited for others.

        Errors  as _make
        """
        if led.state is State.ACTIVE:
            await self._make(led, decide)

    async def _make(self, led: LedPartition[S], decide: Decide) -> _Made:
        """Make a decision and append its records.

        Errors  those of LedPartition.require_active, if the state changed while this decision waited for the lock
        """
        held = led.partition.log
        if not self._logs.is_locked(held):
            return await self._decide(led, decide, holds_lock=False)
        async with self._logs.locked(held):
            led.require_active()
            return await self._decide(led, decide, holds_lock=True)

    async def await_committed(self, read: Iterable[LedPartition[S]], *, wait: Wait) -> list[LedPartition[S]]:
        """Wait until all that these shards contain now is committed, so that no later coordinator contradicts an answer
        that shows it. Returns at once if it already is.

        All partitions together wait at most for the time for a commit. Returns those that are not committed then; as in
        Kafka, their clients look for the coordinator again (NOT_COORDINATOR), because this broker may be cut off.
        """
        ends = {led: led.partition.log.log_end_offset for led in read}

        def is_settled() -> bool:
            return all(led.outcome(end) is not None for led, end in ends.items())

        keys = (led.partition.key for led in ends)
        await wait(self._purgatory, *keys, until=is_settled, max_wait_ms=self.kind.commit_timeout_ms)
        return [led for led, end in ends.items() if led.outcome(end) is not ErrorCode.NONE]

    async def _await_outcome(self, led: LedPartition[S], next_offset: int) -> ErrorCode | None:
        """The outcome of an append, or None after the time for a commit."""
        code = led.outcome(next_offset)
        if code is None:
            # A client that disconnects does not affect the records.
            await self._purgatory.wait(
                led.partition.key,
                until=lambda: led.outcome(next_offset) is not None,
                max_wait_ms=self.kind.commit_timeout_ms,
            )
            code = led.outcome(next_offset)
        return code

    async def decide_everywhere(self, decide: Callable[[S], Decide]) -> None:
        """Make a decision in every active shard."""
        for led in self.active():
            with suppress(KafkaError):  # the leadership was lost while waiting for the lock
                await self.decide(led, decide(led.shard))

    async def _answer(self, parked: Parked, wait: Wait) -> tuple[Any, int]:
        """The answer, and the end of the log when it was given."""
        try:
            if await wait(
                self._purgatory, parked, until=lambda: self._parked[parked] is not None, max_wait_ms=FOR_EVER_MS
            ):
                answer = self._parked[parked]
                assert answer is not None, "the wait ended with an answer"
                return answer
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "the wait ended without an answer")
        finally:
            del self._parked[parked]

    async def _decide(self, led: LedPartition[S], decide: Decide, *, holds_lock: bool) -> _Made:
        decided = decide(now_ms=self._env.now_ms(), timestamp_ms=self._env.timestamp_ms())
        made = _Made(decided, decided.response, led.partition.log.log_end_offset)
        if type(decided.response) is Parked:
            self._parked[decided.response] = None
        if decided.refuse is None and len(decided.records) > 1:
            await self._append_in_parts(led, decided, holds_lock=holds_lock)
        elif decided.records:
            made = await self._append(led, decided, holds_lock=holds_lock)
        if made.end_offset is not None:
            for job in decided.jobs:
                self._jobs_to_do.send_nowait((led, job))
        self._deliver(led)
        return made

    def _deliver(self, led: LedPartition[S]) -> None:
        """Deliver the answers that a decision produced, and note the shard's next deadline."""
        end_offset = led.partition.log.log_end_offset
        for parked, answer in led.shard.take_answers():
            if parked in self._parked:
                self._parked[parked] = answer, end_offset
                self._purgatory.wake(parked)
        self._note_deadline(led.shard.next_deadline_ms(), self._env.now_ms())
        if self._on_decided is not None and led.state is State.ACTIVE:
            self._on_decided(led)

    async def _append_in_parts(self, led: LedPartition[S], decided: Decided, *, holds_lock: bool) -> None:
        """Append records that belong to no request, such as the tombstones of expired offsets, in as many batches as
        needed.

        The lock is held until the last batch, as in Kafka, so that no other decision comes between: a tombstone must
        not follow an offset that was committed after the tombstone was decided.
        """
        held = led.partition.log
        parts = decided.parts(min(INLINE_WRITE_BYTES, held.config.max_message_bytes))
        if len(parts) == 1:
            await self._append(led, decided, holds_lock=holds_lock)
            return
        async with nullcontext() if holds_lock else self._logs.locked(held):
            for part in parts:
                end_offset = held.log_end_offset
                await self._append(led, part, holds_lock=True)
                if held.log_end_offset == end_offset:
                    # The append failed. A group's tombstone must not be written without the tombstones of its offsets.
                    break

    async def _append(self, led: LedPartition[S], decided: Decided, *, holds_lock: bool) -> _Made:
        """Append the records of a decision. The response is an error if that failed."""
        env, held = self._env, led.partition.log
        try:
            plan = led.plan(
                decided.records, codec=self.kind.codec, timestamp_ms=env.timestamp_ms(), producer=decided.producer
            )
            if not (plan.rolls or plan.syncs or plan.size > INLINE_WRITE_BYTES):
                held.write(plan)
                self._commit(led, decided, plan)
            else:
                # No other task holds the lock here, so this task gets it before another task can decide.
                with trio.CancelScope(shield=True):
                    async with nullcontext() if holds_lock else self._logs.locked(held):
                        await env.run_blocking(held.write, plan)
                        self._commit(led, decided, plan)
        except KafkaError as error:
            logger.warning(f"cannot append {self.kind.name} records", partition=led.partition.name, why=error.message)
            if led.state is not State.ACTIVE:
                return _Made(decided, decided.refused(ErrorCode.NOT_LEADER_OR_FOLLOWER), None)
            led.shard.on_append_failed(decided, error.code, now_ms=env.now_ms(), timestamp_ms=env.timestamp_ms())
            return _Made(decided, decided.refused(error.code), None)
        return _Made(decided, decided.response, plan.next_offset)

    def _commit(self, led: LedPartition[S], decided: Decided, plan: AppendPlan) -> None:
        led.commit(plan)
        if led.state is State.ACTIVE:
            now_ms, timestamp_ms = self._env.now_ms(), self._env.timestamp_ms()
            led.shard.on_appended(decided, now_ms=now_ms, timestamp_ms=timestamp_ms, base_offset=plan.first_offset)
        self._purgatory.wake(led.partition.key)

    def on_marker(self, index: int, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker that was just appended to a partition of the topic.

        The caller appends it under the partition's lock or without an await, and calls this before it awaits anything
        else; the marker and its effects are then atomic, as a decision is. A partition that is being loaded reads the
        marker from its log.
        """
        led = self.led.get(index)
        if led is not None and led.state is State.ACTIVE:
            led.shard.replay_marker(producer_id, committed=committed)
            self._note_deadline(led.shard.next_deadline_ms(), self._env.now_ms())

    # Timers

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load shards and run their timers, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._load_shards)
            nursery.start_soon(self._keep_time)
            for _ in range(JOBS_AT_ONCE):
                nursery.start_soon(self._do_jobs)
            task_status.started()

    async def _do_jobs(self) -> None:
        async for led, job in self._jobs:
            try:
                result = await self._env.run_blocking(job.run)
            except Exception:
                logger.exception("fault in a job", partition=led.partition.name)
                continue
            with suppress(KafkaError):  # the leadership was lost while waiting for the lock
                await self.decide(led, job.decide(result))

    def _note_deadline(self, due_ms: int | None, now_ms: int) -> None:
        if due_ms is not None and (self._due_ms is None or due_ms < self._due_ms):
            self._due_ms = due_ms
            self._sleep.deadline = trio.current_time() + max(0, due_ms - now_ms) / 1000

    def _late_ms(self) -> int:
        """How late the earliest timer is."""
        return 0 if self._due_ms is None else self._env.now_ms() - self._due_ms

    async def _keep_time(self) -> None:
        clock = CautiousClock(self._env, report=partial(logger.info, of=self.kind.ages))
        while True:
            self._due_ms, now_ms = None, self._env.now_ms()
            with trio.CancelScope() as self._sleep:
                for led in self.active():
                    self._note_deadline(led.shard.next_deadline_ms(), now_ms)
                await trio.sleep_forever()
            if self._late_ms() > STALL_MS:
                # The process was stalled. Let the requests that arrived in the meantime run first: they may be
                # heartbeats.
                for _ in range(ROUNDS_AFTER_A_STALL):
                    await trio.lowlevel.checkpoint()
            for led in self.active():
                due_ms = led.shard.next_deadline_ms()
                if due_ms is not None and due_ms <= self._env.now_ms():
                    with suppress(KafkaError):  # the leadership was lost while waiting for the lock
                        on_time = partial(led.shard.on_time, aging_timestamp_ms=clock.timestamp_ms())
                        await self.decide(led, on_time)

    # Loading and unloading

    async def on_image(self, image: Image, delta: Delta) -> None:
        """Load new partitions and unload lost ones, if the topic has changed."""
        self._image = image
        topic = image.topics_by_name.get(self.kind.topic)
        if topic is delta.before.topics_by_name.get(self.kind.topic) and self._has_followed:
            return
        self._has_followed = True
        topic_id = None if topic is None else topic.id
        if topic_id != self._topic_id:
            # Keep the partition count that the topic had first: a new count would separate keys from their records.
            self._topic_id = topic_id
            self.partition_count = self.kind.partition_count if topic is None else len(topic.partitions)
        await self.follow(image)

    async def follow(self, image: Image) -> None:
        """Load the partitions that this broker leads now, and unload those that it no longer leads."""
        self._image = image
        topic = image.topics_by_name.get(self.kind.topic)
        led_now = {
            index: partition
            for index in (() if topic is None else topic.partitions)
            if (partition := self._replicas.partitions.get((self.kind.topic, index))) is not None
            and partition.is_leader
        }
        for index, led in list(self.led.items()):
            if led.partition is not led_now.get(index) or not led.is_led:
                del self.led[index]
                self._unload(led)
        for index, partition in led_now.items():
            if index in self.led:
                continue
            partition.log.lowest_free_bytes = self.kind.lowest_free_bytes
            shard = self._new_shard(self.partition_count)
            led = LedPartition(partition, shard)
            self.led[index] = led
            if partition.log.log_start_offset == partition.log.log_end_offset:
                await self._activate(led)
            else:
                self._to_load.append(led)
                self._load_wanted.set()

    async def _load_shards(self) -> None:
        while True:
            if not self._to_load:
                self._load_wanted = trio.Event()
                await self._load_wanted.wait()
            led = self._to_load.pop(0)
            if led.state is State.LOADING and await self._load(led):
                await self._activate(led)

    async def _load(self, led: LedPartition[S]) -> bool:
        """Read a partition into its shard. False if that failed, or if this broker no longer leads the partition."""
        began_ms, kind, name = self._env.now_ms(), self.kind.name, led.partition.name
        loading = Loading(led, slice_bytes=self.kind.load_slice_bytes)
        try:
            while not loading.is_complete:
                # The log must not be removed during the read: its path could be reused for another topic.
                async with self._logs.kept(led.partition.log):
                    if led.state is not State.LOADING:
                        return False
                    await self._env.run_blocking(loading.step)
        except KafkaError as error:
            if led.state is State.LOADING:
                led.state = State.FAILED
                logger.error(f"cannot load {kind}s", partition=name, offset=loading.next_offset, why=str(error))
            return False
        if led.unreadable_records:
            count, first = led.unreadable_records, led.first_unreadable
            logger.warning(f"skipped unreadable {kind} records", partition=name, count=count, first=first)
        took_ms = self._env.now_ms() - began_ms
        sizes = led.shard.sizes()
        logger.info(f"loaded {kind}s", partition=name, **sizes, records=loading.record_count, took_ms=took_ms)
        return led.state is State.LOADING

    async def _activate(self, led: LedPartition[S]) -> None:
        # Metadata may have changed during loading, or just before a crash. The shard looks at the newest image now,
        # before any client can ask it to store something that belongs to the new state.
        decisions = led.shard.after_loading(self._image)
        led.state = State.ACTIVE
        with suppress(KafkaError):  # the leadership was lost while waiting for the lock
            for decide in decisions:
                await self.decide(led, decide)

    def _unload(self, led: LedPartition[S]) -> None:
        was_active, led.state = led.state is State.ACTIVE, State.UNLOADED
        if was_active:
            led.shard.unload(now_ms=self._env.now_ms(), timestamp_ms=self._env.timestamp_ms())
            self._deliver(led)
        self._purgatory.wake(led.partition.key)


def _decide_for(producer: Producer, decide: Decide, *, now_ms: int, timestamp_ms: int) -> Decided:
    """A decision whose records are part of a transaction."""
    return replace(decide(now_ms=now_ms, timestamp_ms=timestamp_ms), producer=producer)
