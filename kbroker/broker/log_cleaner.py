"""Compacts logs in the background: chooses the dirtiest log, runs a pass over it, and replaces its segments.

`kbroker.storage.cleaning` decides and `cleaning_pass` reads and writes, in a worker process, because it would hold the
interpreter lock for most of the time. This module waits, throttles and reports. Appends to a log wait only while
segments are replaced, which renames files and syncs their directory.

A pass locks nothing while it reads. If the log is truncated, deleted or loses segments to retention in the meantime, or
its policy changes, the pass ends at its next step and its files are removed. A log that is damaged, or whose passes
keep failing, is uncleanable until the next start: that is reported once, in a metric and on /health. After a full disk
and other errors that may pass, the log is tried again, after longer and longer pauses.

The logs of coordinators roll early, so that little of them is in the active segment, which is never cleaned.

Followers clean their logs themselves. So replicas may differ in what they have cleaned, but not in the last record of a
key, and each offset has the same record on all of them.

Source  LogCleaner, LogCleanerManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from kbroker.metadata.names import is_internal
from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.ports import Disk
from kbroker.runtime.worker import Worker, WorkerFailed
from kbroker.storage import cleaning_pass
from kbroker.storage.cleaning import Cleanable, Throttle, dirtiest
from kbroker.storage.cleaning_files import remove_unfinished
from kbroker.storage.cleaning_logs import assess_log, dirty_bytes, plan_pass, replace, sources_of
from kbroker.storage.cleaning_map import entries_for
from kbroker.storage.cleaning_pass import CleanedSegment, CleaningPlan, Finished, Progress, Step
from kbroker.storage.log import Log
from kbroker.storage.segment import Segment
from wire.errors import ErrorCode, KafkaError, Malformed

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.config.cleaner import CleanerSettings

LOGS_A_TURN: Final = 128
"""How many logs are assessed in one call, which holds the interpreter lock for about a millisecond."""
MOST_DEAD_WORKERS: Final = 3
"""A log is uncleanable after this many worker processes have died of it."""
LONGEST_PAUSE_MS: Final = 600_000
LONGEST_SLEEP_MS: Final = 1_000
HISTORY_BYTES: Final = 8 << 20
"""Divided among the partitions of an internal topic: an active segment that is shorter is not rolled early. A start
reads this much in less than a second."""

logger = get_logger(__name__)


def _most_bytes(log: Log, found: Cleanable) -> int:
    """How much disk space a pass may need before it has replaced a segment."""
    return min(log.config.segment_bytes, found.clean_bytes + found.cleanable_bytes)


class PassRunner:
    """Runs the steps of one pass in a worker process, or here if no other process can access the disk. Blocking."""

    def __init__(self, disk: Disk, plan: CleaningPlan) -> None:
        """Errors: KAFKA_STORAGE_ERROR if no process can be started; WorkerFailed."""
        self._disk, self._directory = disk, plan.directory
        try:
            self._worker = Worker() if disk.is_shared else None
        except (OSError, ValueError) as error:  # no error of the disk, so the log directory must not go offline
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no process can be started: {error}") from error
        if self._worker is not None:
            self._worker.call(cleaning_pass.begin, disk, plan)
        else:
            self._steps = cleaning_pass.clean(disk, plan)

    def step(self) -> Step:
        """Errors: those of `cleaning_pass.clean`, WorkerFailed."""
        if self._worker is not None:
            return self._worker.call(cleaning_pass.advance, self._directory)
        return next(self._steps)

    def end(self) -> None:
        """End the pass and remove what it has not finished."""
        if self._worker is not None and not self._worker.is_gone:
            self._worker.end()
        with suppress(OSError):
            remove_unfinished(self._disk, self._directory)


@dataclass(frozen=True, slots=True)
class PassResult:
    """The figures of a finished pass. Units: ms and bytes; utilization is that of the map, 0 to 1."""

    elapsed_ms: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0
    utilization: float = 0.0
    delay_ms: int = 0


@dataclass(slots=True)
class _Failing:
    """Failures of a log since its last pass, and those of them that ended a worker process.

    Units  ms of monotonic time
    """

    count: int = 0
    dead_workers: int = 0
    retry_ms: int = 0


class LogCleaner:
    """See the module's docstring.

    Shape  uncleanable maps logs to the reason; last_results are the newest results, at most one for each cleaner
    Units  dirty_ratio is that of the dirtiest log; last_run_ms is monotonic time
    """

    def __init__(self, broker: Broker) -> None:
        self.uncleanable: dict[Log, str] = {}
        self.last_results: list[PassResult] = []
        self.dirty_ratio = 0.0
        self.last_run_ms = broker.env.now_ms()
        self._broker = broker
        # A clock that was set ahead must not end compaction lags, or the time for which tombstones stay.
        self._clock = CautiousClock(broker.env, report=partial(logger.info, of="compaction"))
        self._busy: set[Log] = set()
        self._failing: dict[Log, _Failing] = {}
        self._throttle = Throttle()
        self._changed = trio.Event()

    @property
    def uncleanable_bytes(self) -> int:
        """The closed but dirty segments of uncleanable logs."""
        return sum(map(dirty_bytes, self.uncleanable))

    async def run(self) -> None:
        """Clean logs forever."""
        self._threads = self._broker.env.threads(max(1, self._settings.log_cleaner_threads))
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                while len(self._busy) < self._settings.log_cleaner_threads:
                    chosen = await self._choose()
                    if chosen is None:
                        break
                    self._busy.add(chosen[0])
                    nursery.start_soon(self._clean, *chosen)
                with trio.move_on_after(self._settings.log_cleaner_backoff_ms / 1000):
                    await self._changed.wait()

    @property
    def _settings(self) -> CleanerSettings:
        return self._broker.settings.cleaner

    async def _choose(self) -> tuple[Log, Cleanable] | None:
        """The dirtiest log that is due."""
        broker, directory = self._broker, self._broker.replicas.directory
        now_ms, timestamp_ms = broker.env.now_ms(), self._clock.timestamp_ms()
        self.last_run_ms = now_ms
        if directory.state.failure is not None:
            return None
        logs = tuple(directory.open_logs())
        for forgotten in (self.uncleanable, self._failing):
            for log in [log for log in forgotten if log.is_closed]:
                del forgotten[log]
        ready = [log for log in logs if self._may_clean(log) and log not in self._busy and log not in self.uncleanable]
        ready = [log for log in ready if log not in self._failing or self._failing[log].retry_ms <= now_ms]
        await self._close_long(ready)
        assessed: list[tuple[Log, Cleanable]] = []
        for at in range(0, len(ready), LOGS_A_TURN):
            stable = [(log, self._stable_offset(log)) for log in ready[at : at + LOGS_A_TURN]]
            assessed += await broker.env.run_blocking(partial(self._assess, stable, timestamp_ms))
        self.dirty_ratio = max((found.ratio for _, found in assessed), default=0.0)
        state = directory.state
        room = (state.spare_bytes + state.floor_bytes) // 2
        return dirtiest((log, found) for log, found in assessed if _most_bytes(log, found) <= room)

    async def _close_long(self, logs: Sequence[Log]) -> None:
        """Roll a coordinator's log once its active segment, which a start has to read, is longer than the rest.

        The segments that Kafka's settings give these logs are 100 MB long: reading them would take many seconds.
        """
        broker = self._broker
        for log in logs:
            topic = broker.image.topics_by_name.get(log.topic) if is_internal(log.topic) else None
            if topic is None:
                continue
            size, share = log.segments.active.size, HISTORY_BYTES // len(topic.partitions)
            if size <= max(share, log.size - size):
                continue
            async with broker.locked(log):
                if self._may_clean(log):
                    with suppress(KafkaError), trio.CancelScope(shield=True):
                        await broker.env.run_blocking(partial(log.roll, timestamp_ms=broker.env.timestamp_ms()))

    def _may_clean(self, log: Log) -> bool:
        config = log.config
        return config.is_compacting and not config.remote_storage_enable and not log.is_closed

    def _stable_offset(self, log: Log) -> int:
        unstable = log.producers.first_unstable_offset
        high_watermark = self._broker.high_watermark(log)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    @staticmethod
    def _assess(logs: Sequence[tuple[Log, int]], timestamp_ms: int) -> list[tuple[Log, Cleanable]]:
        found = []
        for log, stable_offset in logs:
            with suppress(KafkaError):  # the log or its directory is going away
                found.append((log, assess_log(log, stable_offset=stable_offset, timestamp_ms=timestamp_ms)))
        return found

    async def _clean(self, log: Log, found: Cleanable) -> None:
        try:
            await self._run_pass(log, found)
        except (Malformed, KafkaError) as error:
            if isinstance(error, KafkaError) and error.code is not ErrorCode.CORRUPT_MESSAGE:
                self._retry_later(log, error.message)
            else:
                self._give_up(log, str(error))
        except WorkerFailed as error:
            self._retry_later(log, str(error))
            failing = self._failing.get(log)  # None if the log is closed
            if failing is not None:
                failing.dead_workers += 1
                if failing.dead_workers >= MOST_DEAD_WORKERS:
                    self._give_up(log, str(error))
        except Exception as error:  # noqa: BLE001  (a defect must not end the broker; Kafka does the same)
            self._give_up(log, repr(error))
        else:
            self._failing.pop(log, None)
        finally:
            self._busy.discard(log)
            self._changed.set()

    def _give_up(self, log: Log, why: str) -> None:
        if not log.is_closed:
            self.uncleanable[log] = why
            logger.error("cannot clean a log until the next start", topic=log.topic, partition=log.partition, why=why)

    def _retry_later(self, log: Log, why: str) -> None:
        if log.is_closed:
            return
        failing = self._failing.setdefault(log, _Failing())
        pause_ms = min(LONGEST_PAUSE_MS, max(1_000, self._settings.log_cleaner_backoff_ms) << failing.count)
        failing.count += 1
        failing.retry_ms = self._broker.env.now_ms() + pause_ms
        logger.warning("could not clean a log", topic=log.topic, partition=log.partition, why=why, retry_ms=pause_ms)

    async def _run_pass(self, log: Log, found: Cleanable) -> None:
        """Errors: Malformed, WorkerFailed, KAFKA_STORAGE_ERROR."""
        broker, settings = self._broker, self._settings
        env = broker.env
        began_ms, generation, size = env.now_ms(), log.generation, log.size
        sources = list(sources_of(log, found))
        make_plan = partial(
            plan_pass,
            log,
            sources,
            found,
            timestamp_ms=self._clock.timestamp_ms(),
            wall_ms=env.timestamp_ms(),
            map_entries=entries_for(
                settings.log_cleaner_dedupe_buffer_size // max(1, settings.log_cleaner_threads),
                settings.log_cleaner_io_buffer_load_factor,
            ),
            max_decompressed_bytes=broker.settings.limits.kbroker_max_decompressed_batch_bytes,
        )
        async with broker.locked(log):
            if not self._may_continue(log, generation) or found.first_uncleanable_offset > self._stable_offset(log):
                return
            plan = await env.run_blocking(make_plan)
        with log.disk_errors():
            runner = await self._threads.run_blocking(PassRunner, env.disk, plan)
        try:
            finished = await self._run_steps(runner, log, sources, generation)
        finally:
            with trio.CancelScope(shield=True):
                await env.run_blocking(runner.end)
        if finished is None or not self._may_continue(log, generation):
            return
        log.cleaned_offset = finished.end_offset
        await broker.write_cleaned_offsets()
        self._note(log, found, finished, elapsed_ms=env.now_ms() - began_ms, bytes_before=size)

    def _may_continue(self, log: Log, generation: int) -> bool:
        return self._may_clean(log) and log.generation == generation

    async def _run_steps(
        self, runner: PassRunner, log: Log, sources: list[Segment], generation: int
    ) -> Finished | None:
        """The end of the pass; None if it was ended early."""
        while True:
            with log.disk_errors():
                step = await self._threads.run_blocking(runner.step)
            if not self._may_continue(log, generation):
                return None
            if isinstance(step, Finished):
                return step
            if isinstance(step, Progress):
                if not await self._pause(log, generation, step.bytes_read + step.bytes_written):
                    return None
            elif not await self._replace(log, sources, step, generation):
                return None

    async def _pause(self, log: Log, generation: int, size: int) -> bool:
        """Wait until the rate admits more bytes; False if the pass must end."""
        env = self._broker.env
        while True:
            rate = self._settings.log_cleaner_io_max_bytes_per_second
            delay_ms = self._throttle.delay_ms(size, rate=rate, now_ms=env.now_ms())
            if not delay_ms:
                return True
            await env.sleep_ms(min(delay_ms, LONGEST_SLEEP_MS))
            if not self._may_continue(log, generation):
                return False
            size = 0

    async def _replace(self, log: Log, sources: list[Segment], step: CleanedSegment, generation: int) -> bool:
        env = self._broker.env
        async with self._broker.locked(log):
            if not self._may_continue(log, generation):
                return False
            delay_ms = 0 if log.state.is_short_of_space else log.config.file_delete_delay_ms
            due_ms = env.now_ms() + delay_ms
            with trio.CancelScope(shield=True):
                if await env.run_blocking(partial(replace, log, sources, step, due_ms=due_ms)):
                    # A replaced segment holds its file open, and with it the disk space.
                    sources[:] = [one for one in sources if one.base_offset not in step.base_offsets]
                    return True
        return False

    def _note(self, log: Log, found: Cleanable, finished: Finished, *, elapsed_ms: int, bytes_before: int) -> None:
        records = finished.records
        result = PassResult(
            elapsed_ms=elapsed_ms,
            bytes_read=records.bytes_read,
            bytes_kept=records.bytes_kept,
            utilization=finished.utilization,
            delay_ms=found.delay_ms,
        )
        self.last_results = [result, *self.last_results][: max(1, self._settings.log_cleaner_threads)]
        logger.info(
            "cleaned a log",
            topic=log.topic,
            partition=log.partition,
            dirty_from=found.first_dirty_offset,
            clean_to=finished.end_offset,
            bytes_read=records.bytes_read,
            bytes_kept=records.bytes_kept,
            records_read=records.records_read,
            records_kept=records.records_kept,
            ms=elapsed_ms,
            bytes_before=bytes_before,
            bytes_after=log.size,
            map_percent=round(100 * finished.utilization),
        )
        if records.invalid_records:
            name = {"topic": log.topic, "partition": log.partition}
            logger.warning("removed records without a key from a compacted log", **name, count=records.invalid_records)
