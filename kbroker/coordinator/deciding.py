"""Making decisions of shards, one at a time for each, and bringing what they record into the log.

Theory of operation: a decision, the append of its records as one batch, and their replay happen between two awaits, so
that nothing comes between and no lock is needed. What would hold up the event loop (the roll of a segment, a sync, a
large batch) is written in a thread while the partition's lock is held from the decision on; who finds the lock taken
stands in line and decides when its turn has come. The response leaves when every in-sync replica has the records.

Source: decisions 1 and 4 of ARCHITECTURE.md; CoordinatorRuntime of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Protocol

import trio

from kbroker.coordinator.led import LedPartition, State
from kbroker.coordinator.refusals import response_code
from kbroker.coordinator.shard import Caller, GroupOutcome, Parked, refuse
from kbroker.runtime.log import logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from kbroker.storage.plans import AppendPlan
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError

INLINE_WRITE_BYTES: Final = 128 * 1024
FOR_EVER_MS: Final = 1 << 40

log = logger(__name__)


class Wait(Protocol):
    """How a request waits, as Context.wait of kbroker.handlers; False when the client has gone or the server stops."""

    def __call__(
        self, purgatory: Purgatory, *keys: object, until: Callable[[], bool], max_wait_ms: int
    ) -> Awaitable[bool]: ...


class Decide(Protocol):
    """A decision of a shard that needs nothing more than to know what time it is."""

    def __call__(self, *, now_ms: int, timestamp_ms: int) -> GroupOutcome: ...


class Logs(Protocol):
    """What the coordinator needs of those who own the logs."""

    def is_locked(self, held: Log) -> bool:
        """Whether somebody appends to the log, or changes it otherwise, in more than one step."""
        ...

    def locked(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Hold off appends that take more than one step, truncations and the like, and the removal of the log."""
        ...

    def kept(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Hold off the removal of the log alone."""
        ...

    async def write_log_starts(self) -> None:
        """Write down where the logs begin. Errors: KAFKA_STORAGE_ERROR."""
        ...


class Decisions:
    """Decisions of the shards of one broker.

    Note   on_deadline(now_ms, due_ms) is told when a shard wants to be asked next; on_growth() when a log may have
           become too long
    Bound  one parked request for each connection
    """

    def __init__(
        self,
        env: Env,
        *,
        purgatory: Purgatory,
        logs: Logs,
        codec: Codec,
        commit_timeout_ms: int,
        on_deadline: Callable[[int, int], None],
        on_growth: Callable[[], None],
    ) -> None:
        self._env = env
        self._purgatory = purgatory
        self._logs = logs
        self._codec = codec
        self._commit_timeout_ms = commit_timeout_ms
        self._on_deadline = on_deadline
        self._on_growth = on_growth
        self._parked: dict[Parked, Any] = {}

    @property
    def parked_count(self) -> int:
        """How many requests wait for others, for metrics."""
        return len(self._parked)

    async def decide(self, led: LedPartition, decide: Decide) -> Any:
        """Make a decision, append what it records, and wait until that is committed; its response, or Parked.

        Errors  those of LedPartition.require_active, where that changed while this one stood in line
        """
        held = led.partition.log
        if not self._logs.is_locked(held):
            return await self._decide(led, decide, holds_lock=False)
        async with self._logs.locked(held):
            led.require_active()
            return await self._decide(led, decide, holds_lock=True)

    async def answer(self, parked: Parked, request: Any, caller: Caller, wait: Wait) -> Any:
        """The answer to a request that waits; to look for the coordinator anew when the waiting ended without one."""
        try:
            if await wait(
                self._purgatory, parked, until=lambda: self._parked[parked] is not None, max_wait_ms=FOR_EVER_MS
            ):
                return self._parked[parked]
            return refuse(request, ErrorCode.NOT_COORDINATOR, caller.api_version)
        finally:
            del self._parked[parked]

    def deliver(self, led: LedPartition) -> None:
        """Hand over the answers that a decision brought, and tell when the shard wants to be asked next."""
        for parked, answer in led.shard.take_answers():
            if parked in self._parked:
                self._parked[parked] = answer
                self._purgatory.wake(parked)
        due_ms = led.shard.next_deadline_ms()
        if due_ms is not None:
            self._on_deadline(self._env.now_ms(), due_ms)

    async def _decide(self, led: LedPartition, decide: Decide, *, holds_lock: bool) -> Any:
        outcome = decide(now_ms=self._env.now_ms(), timestamp_ms=self._env.timestamp_ms())
        response = outcome.response
        if type(response) is Parked:
            self._parked[response] = None
        if outcome.request is None and len(outcome.records) > 1:
            await self._append_in_parts(led, outcome, holds_lock=holds_lock)
        elif outcome.records:
            response = await self._append(led, outcome, holds_lock=holds_lock)
        self.deliver(led)
        return response

    async def _append_in_parts(self, led: LedPartition, outcome: GroupOutcome, *, holds_lock: bool) -> None:
        """Append what nobody asked for, such as the tombstones of all that expired, however much it is.

        It goes in as many batches as it takes, as in Kafka, and nobody decides between them: a tombstone must not come
        behind an offset that is committed after it was decided.
        """
        held = led.partition.log
        parts = outcome.parts(min(INLINE_WRITE_BYTES, held.config.max_message_bytes))
        if len(parts) == 1:
            await self._append(led, outcome, holds_lock=holds_lock)
            return
        async with nullcontext() if holds_lock else self._logs.locked(held):
            for part in parts:
                end_offset = held.log_end_offset
                await self._append(led, part, holds_lock=True)
                if held.log_end_offset == end_offset:
                    # It failed. A group's own tombstone must not be written without those of its offsets.
                    break

    async def _append(self, led: LedPartition, outcome: GroupOutcome, *, holds_lock: bool) -> Any:
        """Append the records of an outcome; its response, or the one that says that it failed."""
        env, held = self._env, led.partition.log
        try:
            plan = led.plan(outcome.records, codec=self._codec, timestamp_ms=env.timestamp_ms())
            if not (plan.rolls or plan.syncs or plan.size > INLINE_WRITE_BYTES):
                held.write(plan)
                self._commit(led, outcome, plan)
            else:
                # Nobody holds the lock unless this task does, so that it is taken before anybody else can decide.
                with trio.CancelScope(shield=True):
                    if holds_lock:
                        await self._append_off_the_loop(led, outcome, plan)
                    else:
                        async with self._logs.locked(held):
                            await self._append_off_the_loop(led, outcome, plan)
        except KafkaError as error:
            log.warning("cannot append to the offsets of groups", partition=led.partition.name, why=error.message)
            if led.state is not State.ACTIVE:
                return _refused(outcome, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return led.shard.on_append_failed(outcome, error.code, now_ms=env.now_ms(), timestamp_ms=env.timestamp_ms())
        if led.outcome(plan.next_offset) is ErrorCode.NONE:
            return outcome.response
        return await self._wait_until_committed(led, outcome, plan)

    async def _append_off_the_loop(self, led: LedPartition, outcome: GroupOutcome, plan: AppendPlan) -> None:
        await self._env.run_blocking(led.partition.log.write, plan)
        self._commit(led, outcome, plan)

    def _commit(self, led: LedPartition, outcome: GroupOutcome, plan: AppendPlan) -> None:
        led.commit(plan, outcome.records)
        if led.state is State.ACTIVE:
            led.shard.on_appended(
                outcome,
                now_ms=self._env.now_ms(),
                timestamp_ms=self._env.timestamp_ms(),
                base_offset=plan.first_offset,
            )
        self._purgatory.wake(led.partition.key)
        if led.wants_rewriting:
            self._on_growth()

    async def _wait_until_committed(self, led: LedPartition, outcome: GroupOutcome, plan: AppendPlan) -> Any:
        """Wait for the in-sync replicas; a client that goes away changes nothing about what was received."""
        await self._purgatory.wait(
            led.partition.key,
            until=lambda: led.outcome(plan.next_offset) is not None,
            max_wait_ms=self._commit_timeout_ms,
        )
        code = led.outcome(plan.next_offset)
        if code is ErrorCode.NONE:
            return outcome.response
        return _refused(outcome, ErrorCode.REQUEST_TIMED_OUT if code is None else code)


def _refused(outcome: GroupOutcome, code: ErrorCode) -> Any:
    """What is said instead of a response whose records were not committed."""
    if outcome.request is None or type(outcome.response) is Parked:
        return outcome.response
    return refuse(outcome.request, response_code(code), outcome.api_version)
