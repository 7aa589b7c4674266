"""Opens all partitions at start-up; after an unclean shutdown with the help of worker processes.

After a clean shutdown, or with little to recover, one thread opens the logs and no process is started. Otherwise worker
processes recover the logs (`kbroker.storage.recovering`), the largest first; the broker then opens them without reading
them again. If a worker dies, another worker recovers its log; if that one dies too, this process recovers it. A signal
ends this process at once, and the workers with it (`kbroker.runtime.working`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

import trio

from kbroker.replication.replicas import Replicas
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.worker import Workers, cores
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log_directory import LogDirectory
from kbroker.storage.recovering import LogToRecover, find_logs_to_recover, recover_log, worth_a_worker

WORTH_WORKERS_BYTES: Final = 32 << 20
"""Below this size, recovery in this process takes less time than starting a worker."""
THREADS_KEY: Final = "num.recovery.threads.per.data.dir"
REPORT_INTERVAL_MS: Final = 5_000
WORKER_TRIES: Final = 2

logger = get_logger(__name__)


@dataclass(slots=True, eq=False)
class RecoveryProgress:
    """Progress of the recovery after an unclean shutdown. Units: bytes are those that recovery has to read."""

    logs: int = 0
    size_bytes: int = 0
    recovered_logs: int = 0
    recovered_bytes: int = 0
    is_running: bool = False

    def fields(self) -> dict[str, int]:
        return {
            "recovered_logs": self.recovered_logs,
            "logs": self.logs,
            "recovered_mib": self.recovered_bytes >> 20,
            "mib": self.size_bytes >> 20,
        }


async def load_partitions(
    env: Env, replicas: Replicas, removed_topics: Callable[[], Container[UUID]], progress: RecoveryProgress
) -> None:
    """Open every partition that the metadata assigns to this broker. Errors: OSError, KAFKA_STORAGE_ERROR."""
    directory = replicas.directory
    wanted = await env.run_blocking(replicas.put_away_unexpected, removed_topics)
    find = partial(find_logs_to_recover, directory, wanted, timestamp_ms=env.timestamp_ms())
    logs = await env.run_blocking(find)
    if not logs:
        await env.run_blocking(replicas.open_expected)
        return
    began_ms = env.now_ms()
    progress.logs, progress.size_bytes = len(logs), sum(one.size for one in logs.values())
    progress.is_running = True
    logger.info("recovering logs after an unclean shutdown", **progress.fields())
    large = worth_a_worker(logs)
    if sum(one.size for _, one in large) >= WORTH_WORKERS_BYTES:
        settings = replicas.settings
        is_set = settings.layers.text(THREADS_KEY) is not None
        limit = settings.log.num_recovery_threads_per_data_dir if is_set else cores()
        workers = Workers(
            may_start=env.disk.is_shared, report=logger.warning, limit=limit, tries=WORKER_TRIES, niceness=0
        )
        try:
            await _recover_in(workers, env, directory, large, progress)
        finally:
            workers.close()  # closing the pipes ends the workers at once
    await env.run_blocking(replicas.open_expected)
    directory.recovered.clear()  # a log that could not be opened is recovered again at the next attempt
    progress.is_running = False
    logger.info("recovered logs", logs=len(logs), mib=progress.size_bytes >> 20, ms=env.now_ms() - began_ms)


async def _recover_in(
    workers: Workers,
    env: Env,
    directory: LogDirectory,
    logs: list[tuple[TopicPartition, LogToRecover]],
    progress: RecoveryProgress,
) -> None:
    waiting = deque(logs)
    threads = env.threads(workers.limit)  # one thread for each worker

    async def work() -> None:
        while waiting:
            key, one = waiting.popleft()
            directory.recovered[key] = await threads.run_blocking(workers.run, recover_log, env.disk, one)
            progress.recovered_logs += 1
            progress.recovered_bytes += one.size

    async def report() -> None:
        while True:
            await env.sleep_ms(REPORT_INTERVAL_MS)
            logger.info("recovering logs", **progress.fields())

    async with trio.open_nursery() as reporting:
        reporting.start_soon(report)
        async with trio.open_nursery() as nursery:
            for _ in range(min(workers.limit, len(logs))):
                nursery.start_soon(work)
        reporting.cancel_scope.cancel()
