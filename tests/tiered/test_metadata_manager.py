"""The metadata manager on the topic: `kbroker.tiered.metadata_manager` and its halves, over real logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.metadata_topic import LogMetadataTopic
from kbroker.testing.remote_metadata import RemoteMetadataConformance
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from tests.tiered.metadata_site import at_work


class TestConformance(RemoteMetadataConformance):
    @asynccontextmanager
    async def running(self, store: Path) -> AsyncIterator[TopicRemoteLogMetadataManager]:
        disks = self.__dict__.setdefault("_disks", {})
        env = MemoryEnv(disks.setdefault(store, SimulatedDisk()))
        topic = LogMetadataTopic(env, "/topic", partition_count=3)
        async with at_work(env, topic) as manager:
            yield manager
        topic.close()
