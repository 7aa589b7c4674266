"""Closing all logs at the end.

Source: decision 1 of ARCHITECTURE.md.
"""

from __future__ import annotations

from collections import deque

import trio

from kbroker.runtime.net_ports import Env
from kbroker.storage.log_directory import LogDirectory

CLOSING_THREADS = 8


async def close_logs(env: Env, directory: LogDirectory) -> None:
    """Close the logs, several at a time: closing is mostly waiting for the disk, which syncs many files as fast as one.

    Errors  KAFKA_STORAGE_ERROR
    """
    if directory.state.failure is not None:
        return
    waiting = deque(directory.open_logs())
    async with trio.open_nursery() as nursery:
        for _ in range(min(CLOSING_THREADS, len(waiting))):
            nursery.start_soon(env.run_blocking, directory.close_waiting, waiting)
