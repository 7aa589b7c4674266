"""What tests of the metadata manager share: one at work over a topic of logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kbroker.config.tier import TierSettings
from kbroker.testing.env import MemoryEnv
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.tiered.ports import MetadataTopic


def tier_settings(*, partition_count: int = 3, wait_ms: int = 1_000) -> TierSettings:
    configs = {
        "remote.log.metadata.topic.num.partitions": str(partition_count),
        "remote.log.metadata.consume.wait.ms": str(wait_ms),
    }
    return TierSettings(remote_log_storage_manager_class_name=None, rlmm_configs=configs)


@asynccontextmanager
async def at_work(
    env: MemoryEnv, topic: MetadataTopic, *, settings: TierSettings | None = None, closes: bool = True
) -> AsyncIterator[TopicRemoteLogMetadataManager]:
    """A manager that runs; without `closes` it dies at the end, and leaves no snapshot."""
    manager = TopicRemoteLogMetadataManager(env, topic, settings or tier_settings())
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        yield manager
        if closes:
            await manager.close()
        nursery.cancel_scope.cancel()
