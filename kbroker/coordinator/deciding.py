"""Make the decisions of shards, one at a time per shard, and append their records to the log.

Theory of operation: a decision, the append of its records as one batch, and their replay happen without an await
between them, so that they are atomic and need no lock. If the append would block the event loop (a segment roll, a
sync, a large batch), a thread writes it while the task holds the partition's lock; the task takes that lock without
yielding after the decision. A task that finds the lock taken waits for it and decides afterwards. The response is sent
when every in-sync replica has the records.

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
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from kbroker.storage.plans import AppendPlan
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError

INLINE_WRITE_BYTES: Final = 128 * 1024
FOR_EVER_MS: Final = 1 << 40

logger = get_logger(__name__)


class Wait(Protocol):
    """How a request waits, as Context.wait of kbroker.handlers. False if the client has disconnected or the server
    stops.
    """

    def __call__(
        self, purgatory: Purgatory, *keys: object, until: Callable[[], bool], max_wait_ms: int
    ) -> Awaitable[bool]: ...


class Decide(Protocol):
    """A decision of a shard. All its arguments except the time are already bound."""

    def __call__(self, *, now_ms: int, timestamp_ms: int) -> GroupOutcome: ...


class Logs(Protocol):
    """What the coordinator needs from the owner of the logs."""

    def is_locked(self, held: Log) -> bool:
        """Whether a task holds the lock of the log, to append to it or change it in more than one step."""
        ...

    def locked(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Block multi-step appends, other changes such as truncation, and the removal of the log."""
        ...

    def kept(self, held: Log) -> AbstractAsyncContextManager[None]:
        """Block only the removal of the log."""
        ...

    async def write_log_starts(self) -> None:
        """Persist the log start offsets. Errors: KAFKA_STORAGE_ERROR."""
        ...


class Decisions:
    """The decisions of all shards of one broker.

    Note   on_deadline(now_ms, due_ms) is called with the next deadline of a shard; on_growth() when a log may have
           become too long
    Bound  one parked request per connection
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
        """The number of parked requests, for metrics."""
        return len(self._parked)

    async def decide(self, led: LedPartition, decide: Decide) -> Any:
        """Make a decision, append its records, and wait until they are committed. Returns the response, or Parked.

        Errors  those of LedPartition.require_active, if the state changed while this decision waited for the lock
        """
        held = led.partition.log
        if not self._logs.is_locked(held):
            return await self._decide(led, decide, holds_lock=False)
        async with self._logs.locked(held):
            led.require_active()
            return await self._decide(led, decide, holds_lock=True)

    async def answer(self, parked: Parked, request: Any, caller: Caller, wait: Wait) -> Any:
        """Wait for the answer to a parked request. NOT_COORDINATOR if the wait ends without an answer."""
        try:
            if await wait(
                self._purgatory, parked, until=lambda: self._parked[parked] is not None, max_wait_ms=FOR_EVER_MS
            ):
                return self._parked[parked]
            return refuse(request, ErrorCode.NOT_COORDINATOR, caller.api_version)
        finally:
            del self._parked[parked]

    def deliver(self, led: LedPartition) -> None:
        """Deliver the answers that a decision produced, and report the shard's next deadline."""
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
        """Append records that belong to no request, such as the tombstones of expired offsets, in as many batches as
        needed.

        The lock is held until the last batch, as in Kafka, so that no other decision comes between: a tombstone must
        not follow an offset that was committed after the tombstone was decided.
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
                    # The append failed. A group's tombstone must not be written without the tombstones of its offsets.
                    break

    async def _append(self, led: LedPartition, outcome: GroupOutcome, *, holds_lock: bool) -> Any:
        """Append the records of an outcome. Returns its response, or an error response if the append failed."""
        env, held = self._env, led.partition.log
        try:
            plan = led.plan(outcome.records, codec=self._codec, timestamp_ms=env.timestamp_ms())
            if not (plan.rolls or plan.syncs or plan.size > INLINE_WRITE_BYTES):
                held.write(plan)
                self._commit(led, outcome, plan)
            else:
                # Only this task can hold the lock here, so it gets the lock before any other task can decide.
                with trio.CancelScope(shield=True):
                    if holds_lock:
                        await self._append_off_the_loop(led, outcome, plan)
                    else:
                        async with self._logs.locked(held):
                            await self._append_off_the_loop(led, outcome, plan)
        except KafkaError as error:
            logger.warning("cannot append group records", partition=led.partition.name, why=error.message)
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
        """Wait for the in-sync replicas. A client that disconnects does not affect the records."""
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
    """The response to send if the records of an outcome were not committed."""
    if outcome.request is None or type(outcome.response) is Parked:
        return outcome.response
    return refuse(outcome.request, response_code(code), outcome.api_version)
