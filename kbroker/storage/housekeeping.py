"""Background tasks for the logs of one directory: flush, retention, removal of deleted files, free space.

The owner of the partitions writes the checkpoints (`Broker.keep_checkpoint`), one writer at a time.

This module has only the loops; each step is a method of `Log` or `LogDirectory`. Disk work runs in threads. A step that
changes segments holds the partition's lock, as does an append that runs in a thread.

A loop survives a KafkaError, because an error of one log does not affect the others. It passes the error to `report`.
The directory's state shows whether the broker can continue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol, TypeVar, TypeVarTuple

from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.ports import Clock
from kbroker.storage.log import Log
from kbroker.storage.log_directory import LogDirectory
from kbroker.storage.plans import FlushPlan
from kbroker.storage.retention import RetentionPlan
from wire.errors import KafkaError

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


LOGS_A_TURN: Final = 256
"""After this many logs a loop lets other tasks run, even if no log needed work."""


class TaskEnv(Clock, Protocol):
    """The clock, sleep and thread pool that the loops need."""

    async def sleep_ms(self, delay_ms: int) -> None: ...

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result: ...


class Locks(Protocol):
    """Locks on the state of a log."""

    def locked(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Prevent multi-step changes such as appends and truncations, and the removal of the log."""
        ...

    def kept(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Prevent only the truncation of the log, and its removal, after which another log may get its name. Appends
        continue. Who needs both takes `locked` first.
        """
        ...


class Partitions(Locks, Protocol):
    """The owner of the partitions, as retention sees it."""

    def high_watermark(self, log: Log) -> int:
        """The committed end of the log: nothing at or above it may be deleted."""
        ...

    def highest_offset_in_remote_storage(self, log: Log) -> int | None:
        """The last offset in the tier, -1 for none; None if unknown, and then no local segment may be deleted."""
        ...

    async def write_log_starts(self) -> None:
        """Make the start offsets of logs durable. Errors: KAFKA_STORAGE_ERROR."""
        ...


async def flush_logs(
    env: TaskEnv, directory: LogDirectory, partitions: Locks, *, interval_ms: int, report: Callable[[str], None]
) -> None:
    """Sync segments that a roll has closed, and logs whose last flush was flush.ms ago."""

    async def flush(log: Log) -> None:
        due = env.now_ms() - log.last_flush_ms >= log.config.flush_ms
        plan = log.plan_flush(below_active=not due)
        if plan is not None:
            await flush_log(env, partitions, log, plan)
        if due:
            log.last_flush_ms = env.now_ms()

    await _visit_logs(env, directory, flush, interval_ms=interval_ms, report=report)


async def _visit_logs(
    env: TaskEnv,
    directory: LogDirectory,
    visit: Callable[[Log], Awaitable[None]],
    *,
    interval_ms: int,
    report: Callable[[str], None],
) -> None:
    """Call `visit` for each open log of a working directory, again and again."""
    while True:
        await env.sleep_ms(interval_ms)
        for number, log in enumerate(directory.open_logs()):
            if number % LOGS_A_TURN == LOGS_A_TURN - 1:
                await env.sleep_ms(0)
            if log.is_closed or directory.state.failure is not None:
                continue
            try:
                await visit(log)
            except KafkaError as error:
                report(error.message)


async def flush_log(env: TaskEnv, partitions: Locks, log: Log, plan: FlushPlan) -> None:
    """Carry out a flush plan. Errors: KAFKA_STORAGE_ERROR."""
    if plan.writes_epochs:
        # A synced append and a truncation write the same file.
        async with partitions.locked(log):
            if not log.is_closed:
                await env.run_blocking(log.write_epochs)
    async with partitions.kept(log):
        if not log.is_closed:  # the log may have been removed while this task waited
            await env.run_blocking(log.write_flush, plan)
            log.commit_flush(plan)


async def apply_retention(
    env: TaskEnv, directory: LogDirectory, partitions: Partitions, *, interval_ms: int, report: Callable[[str], None]
) -> None:
    """Delete segments by log_start_offset, size and time, and remove idle producers.

    Uses the time of a `CautiousClock`, so that setting the wall clock ahead does not delete segments.
    """
    visit = partial(apply_retention_once, env, partitions, clock=CautiousClock(env, report=report))
    await _visit_logs(env, directory, visit, interval_ms=interval_ms, report=report)


async def apply_retention_once(env: TaskEnv, partitions: Partitions, log: Log, clock: CautiousClock) -> None:
    """Apply retention once to one log. Errors: KAFKA_STORAGE_ERROR.

    Appends wait only while segments are removed from the log, which writes at most the leader epochs. Before that, the
    timestamps that the decision needs are read into memory; after it, the files are renamed.
    """
    if log.may_need_retention:
        async with partitions.kept(log):
            needed = not log.is_closed and await _plan_retention(env, partitions, log, clock.timestamp_ms())
    else:
        needed = None
    if needed or log.producers:
        async with partitions.locked(log):
            if log.is_closed:
                return
            timestamp_ms = clock.timestamp_ms()
            # Hold the lock: a thread that rolls a segment writes all producers to a snapshot.
            log.producers.expire(timestamp_ms, log.config.producer_id_expiration_ms)
            plan = await _plan_retention(env, partitions, log, timestamp_ms) if needed else None
            if plan:
                await env.run_blocking(partial(log.retire, plan, timestamp_ms=env.timestamp_ms()))
    if log.retired:
        async with partitions.kept(log):
            if log.is_closed:
                return
            # The segment names of a tiered log do not give its start. Without this entry a restart would look in the
            # tier for records that were never there, or would miss records that are there.
            if log.config.remote_storage_enable and log.persisted_log_start_offset != log.log_start_offset:
                await partitions.write_log_starts()
            await env.run_blocking(log.remove_retired, env.now_ms())


async def _plan_retention(env: TaskEnv, partitions: Partitions, log: Log, timestamp_ms: int) -> RetentionPlan | None:
    """None while the contents of the tier are unknown."""
    remote = partitions.highest_offset_in_remote_storage(log) if log.config.is_copied_to_tier else None
    if log.config.is_copied_to_tier and remote is None:
        return None
    high_watermark = partitions.high_watermark(log)
    return await env.run_blocking(
        partial(
            log.plan_retention,
            high_watermark=high_watermark,
            timestamp_ms=timestamp_ms,
            highest_offset_in_remote_storage=remote,
        )
    )


async def remove_deleted(
    env: TaskEnv, directory: LogDirectory, *, interval_ms: int, report: Callable[[str], None]
) -> None:
    """Unlink segments and partitions whose deletion delay is over."""
    while True:
        await env.sleep_ms(interval_ms)
        if directory.state.failure is not None:
            continue
        now_ms = env.now_ms()
        try:
            for log in directory.open_logs():
                if log.files.doomed:
                    await env.run_blocking(log.unlink_doomed, now_ms)
            await env.run_blocking(directory.remove_doomed, now_ms)
        except KafkaError as error:
            report(error.message)


async def watch_space(
    env: TaskEnv, directory: LogDirectory, *, floor_bytes: int, interval_ms: int, report: Callable[[str], None]
) -> None:
    """Refuse appends while the disk is nearly full, and report when that starts and ends.

    Between two checks appends are counted, so that even a fast producer cannot use up the reserved space.
    """
    while True:
        was_short = directory.state.is_short_of_space
        try:
            free = await env.run_blocking(directory.check_space, floor_bytes)
        except KafkaError as error:
            report(error.message)
        else:
            if directory.state.is_short_of_space != was_short:
                verb = "accepts records again" if was_short else "accepts no more records"
                report(f"{directory.path} {verb}: {free} bytes are free")
        await env.sleep_ms(interval_ms)
