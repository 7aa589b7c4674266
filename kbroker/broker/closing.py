"""Closes all logs at shutdown.

Source: decision 1 of ARCHITECTURE.md.
"""

from __future__ import annotations

from collections import deque

import trio

from kbroker.runtime.net_ports import Env
from kbroker.storage.durable import lacks_space
from kbroker.storage.log import Log
from kbroker.storage.log_directory import LogDirectory
from wire.errors import KafkaError

CLOSING_THREADS = 8


async def close_logs(env: Env, directory: LogDirectory) -> None:
    """Close the logs, several at a time, because a disk syncs several files about as fast as one.

    Logs that cannot be flushed to a full disk stay open; `LogDirectory.close` reports them.
    Errors  KAFKA_STORAGE_ERROR
    """
    if directory.state.failure is not None:
        return
    waiting = deque(directory.open_logs())
    async with trio.open_nursery() as nursery:
        for _ in range(min(CLOSING_THREADS, len(waiting))):
            nursery.start_soon(_close_waiting, env, directory, waiting)


async def _close_waiting(env: Env, directory: LogDirectory, waiting: deque[Log]) -> None:
    try:
        await env.run_blocking(directory.close_waiting, waiting)
    except KafkaError as error:
        if not lacks_space(error):
            raise
