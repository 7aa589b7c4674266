"""The periodic tasks of a broker's logs: flushes, retention, removal, checkpoints, retries of failed logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, ParamSpec

import trio

from kbroker.broker.broker import Broker
from kbroker.runtime.event_log import get_logger
from kbroker.storage.housekeeping import apply_retention, flush_logs, remove_deleted, watch_space
from kbroker.storage.log_directory import LogDirectory

FLUSH_INTERVAL_MS: Final = 1_000
REMOVAL_INTERVAL_MS: Final = 10_000
REOPEN_INTERVAL_MS: Final = 5_000
SPACE_INTERVAL_MS: Final = 1_000

P = ParamSpec("P")

logger = get_logger(__name__)


def start_log_tasks(nursery: trio.Nursery, directory: LogDirectory, broker: Broker) -> None:
    """Start the tasks. Their intervals are those of the broker's settings now."""

    def start(task: Callable[P, Awaitable[None]], *arguments: P.args, **options: P.kwargs) -> None:
        nursery.start_soon(partial(task, *arguments, **options))

    env, settings, report = broker.env, broker.settings, logger.warning
    log = settings.log
    start(flush_logs, env, directory, broker, interval_ms=FLUSH_INTERVAL_MS, report=report)
    check_ms, floor_bytes = log.log_retention_check_interval_ms, settings.limits.kbroker_min_free_bytes
    start(apply_retention, env, directory, broker, interval_ms=check_ms, report=report)
    start(remove_deleted, env, directory, interval_ms=REMOVAL_INTERVAL_MS, report=report)
    start(broker.reopen_failed, interval_ms=REOPEN_INTERVAL_MS)
    if settings.cleaner.log_cleaner_enable:
        start(broker.cleaner.run)
    start(watch_space, env, directory, floor_bytes=floor_bytes, interval_ms=SPACE_INTERVAL_MS, report=report)
    for write, interval_ms in (
        (directory.checkpoints.write_recovery_points, log.log_flush_offset_checkpoint_interval_ms),
        (directory.checkpoints.write_cleaned_offsets, log.log_flush_offset_checkpoint_interval_ms),
        (directory.checkpoints.write_log_starts, log.log_flush_start_offset_checkpoint_interval_ms),
        (
            broker.replicas.write_high_watermarks,
            settings.replication.replica_high_watermark_checkpoint_interval_ms,
        ),
    ):
        start(broker.keep_checkpoint, write, interval_ms=interval_ms)
