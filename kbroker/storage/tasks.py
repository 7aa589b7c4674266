"""What is done for ever for the logs of one directory: flush, retention, removal of what was deleted, free space.

Checkpoints are written by who owns the partitions (`Broker.keep_checkpoint`), one writer at a time.

Loops only; each step is a method of `Log` or `LogDirectory`. Disk work leaves the event loop. A step that changes
segments holds the partition's lock, which an append that has left the loop holds too.

A loop survives a KafkaError, since one log's trouble is not the others': it is told to `report`, and the directory's
state says whether the broker can go on.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""After so many logs a loop lets other tasks run, even if no log had anything to do."""


class TaskEnv(Clock, Protocol):
    """What the loops need of the world."""

    async def sleep_ms(self, delay_ms: int) -> None: ...

    async def run_blocking(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result: ...


class Locks(Protocol):
    """How long a log stays as it is."""

    def locked(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Hold off appends, truncations and the like that take more than one step, and the removal of the log."""
        ...

    def kept(self, log: Log) -> AbstractAsyncContextManager[object]:
        """Hold off the removal of the log alone: its name may soon be another log's. Appends go on."""
        ...


class Partitions(Locks, Protocol):
    """What the loops need of those who own the logs."""

    def high_watermark(self, log: Log) -> int:
        """Up to where the log is committed: nothing at or above it may be deleted."""
        ...


class TieredPartitions(Partitions, Protocol):
    """The same with what retention asks of a log that is copied to the tier."""

    def highest_offset_in_remote_storage(self, log: Log) -> int | None:
        """Up to where the tier has it, -1 for nothing; None while that is not known, and nothing local may go."""
        ...

    async def write_log_starts(self) -> None:
        """Make durable where logs begin. Errors: KAFKA_STORAGE_ERROR."""
        ...


async def flush_logs(
    env: TaskEnv,
    directory: LogDirectory,
    partitions: Partitions,
    *,
    interval_ms: int,
    report: Callable[[str], None],
) -> None:
    """Sync what a roll has closed, and logs that were last synced flush.ms ago."""
    while True:
        await env.sleep_ms(interval_ms)
        for number, log in enumerate(directory.open_logs()):
            if number % LOGS_A_TURN == LOGS_A_TURN - 1:
                await env.sleep_ms(0)
            if log.is_closed or directory.state.failure is not None:
                continue
            due = env.now_ms() - log.last_flush_ms >= log.config.flush_ms
            try:
                plan = log.plan_flush(below_active=not due)
                if plan is not None:
                    await flush_log(env, partitions, log, plan)
                if due:
                    log.last_flush_ms = env.now_ms()
            except KafkaError as error:
                report(error.message)


async def flush_log(env: TaskEnv, partitions: Locks, log: Log, plan: FlushPlan) -> None:
    """Make durable what a flush was planned for. Errors: KAFKA_STORAGE_ERROR."""
    if plan.writes_epochs:
        # A synced append and a truncation write the same file.
        async with partitions.locked(log):
            if not log.is_closed:
                await env.run_blocking(log.write_epochs)
    async with partitions.kept(log):
        if not log.is_closed:  # it may have been removed while this stood in line
            await env.run_blocking(log.write_flush, plan)
            log.commit_flush(plan)


async def apply_retention(
    env: TaskEnv,
    directory: LogDirectory,
    partitions: TieredPartitions,
    *,
    interval_ms: int,
    report: Callable[[str], None],
) -> None:
    """Delete segments by log_start_offset, size and time, and forget producers that were silent for long.

    Time is what a `CautiousClock` says it is: nothing goes just because the wall clock was set ahead.
    """
    clock = CautiousClock(env, report=report)
    while True:
        await env.sleep_ms(interval_ms)
        for number, log in enumerate(directory.open_logs()):
            if number % LOGS_A_TURN == LOGS_A_TURN - 1:
                await env.sleep_ms(0)
            if log.is_closed or directory.state.failure is not None:
                continue
            try:
                await apply_retention_once(env, partitions, log, clock)
            except KafkaError as error:
                report(error.message)


async def apply_retention_once(env: TaskEnv, partitions: TieredPartitions, log: Log, clock: CautiousClock) -> None:
    """The same once for one log. Errors: KAFKA_STORAGE_ERROR.

    Appends wait only while segments are taken out of the log, which touches no file. Before that, what the decision
    needs is read into memory; after it, the files are renamed.
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
            # Not while a thread rolls a segment: it writes all producers down.
            log.producers.expire(timestamp_ms, log.config.producer_id_expiration_ms)
            plan = await _plan_retention(env, partitions, log, timestamp_ms) if needed else None
            if plan:
                tiered = log.config.is_copied_to_tier
                await env.run_blocking(partial(log.retire, plan, timestamp_ms=env.timestamp_ms(), tiered=tiered))
    if log.retired:
        async with partitions.kept(log):
            if log.is_closed:
                return
            # The names of a tiered log's segments do not say where it begins: a restart would look in the tier for what
            # was never there, or would not know what is there.
            if log.config.remote_storage_enable and log.persisted_log_start_offset != log.log_start_offset:
                await partitions.write_log_starts()
            await env.run_blocking(log.remove_retired, env.now_ms())


async def _plan_retention(
    env: TaskEnv, partitions: TieredPartitions, log: Log, timestamp_ms: int
) -> RetentionPlan | None:
    """None while it is not known what the tier has of a log."""
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
                if log.doomed_files:
                    await env.run_blocking(log.unlink_doomed, now_ms)
            await env.run_blocking(directory.remove_doomed, now_ms)
        except KafkaError as error:
            report(error.message)


async def watch_space(
    env: TaskEnv, directory: LogDirectory, *, floor_bytes: int, interval_ms: int, report: Callable[[str], None]
) -> None:
    """Refuse appends while the disk is nearly full, and say so when that begins and ends.

    Between two looks appends are counted, so that no producer is fast enough to use up the last of the space.
    """
    while True:
        was_short = directory.state.is_short_of_space
        try:
            free = await env.run_blocking(directory.check_space, floor_bytes)
        except KafkaError as error:
            report(error.message)
        else:
            if directory.state.is_short_of_space != was_short:
                verb = "takes records again" if was_short else "takes no more records"
                report(f"{directory.path} {verb}: {free} bytes are free")
        await env.sleep_ms(interval_ms)
