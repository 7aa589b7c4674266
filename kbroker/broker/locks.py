"""Locks that exist as long as somebody holds or wants them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kbroker.storage.checkpoint import TopicPartition


class PartitionLocks:
    """One lock for each partition, fair: who asks stands in line."""

    def __init__(self) -> None:
        self._locks: dict[TopicPartition, trio.Lock] = {}

    def __contains__(self, key: TopicPartition) -> bool:
        """Whether somebody holds or wants the lock of this partition."""
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
