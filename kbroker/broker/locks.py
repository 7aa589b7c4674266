"""Locks that exist only while a task holds them or waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kbroker.storage.checkpoint import TopicPartition


class PartitionLocks:
    """One fair lock for each partition: tasks get it in the order in which they asked."""

    def __init__(self) -> None:
        self._locks: dict[TopicPartition, trio.Lock] = {}

    def __contains__(self, key: TopicPartition) -> bool:
        """Whether a task holds the lock of this partition or waits for it."""
        return key in self._locks

    @asynccontextmanager
    async def holding(self, key: TopicPartition) -> AsyncIterator[None]:
        """Hold the lock of a partition."""
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(key, None)
