"""How soon the tier's metadata is ready after a restart: `python tests/bench/bench_tier_metadata.py [segments]`.

The target is 2 s for 10,000 remote segments with the snapshot. For comparison it also measures reading the topic's log
from its start, and a history most of which is deleted. It uses the real disk and threads, with warm caches.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import trio

from kbroker.config.tier_settings import TierSettings
from kbroker.runtime.env import RealEnv
from kbroker.testing.remote_metadata import DELETED, DELETING, FINISHED, segment_metadata, update_to
from kbroker.testing.remote_segments import partition_named
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.tiered.metadata_topic import encode_event, metadata_partition
from tests.tiered.log_metadata_topic import LogMetadataTopic
from wire.record_batch import Record, build_batch

COUNT = 50
PARTITIONS = [partition_named("bench", index) for index in range(20)]
BATCH_RECORDS = 2


async def write_history(topic: LogMetadataTopic, segments: int, *, deleted: int) -> None:
    """Write that many copies, of which the first `deleted` are deleted again, with one copy or deletion per batch."""
    await topic.ensure()
    for number in range(segments):
        partition = PARTITIONS[number % len(PARTITIONS)]
        start = 1000 * (number // len(PARTITIONS))
        begun = segment_metadata(partition, start, start + 999, epochs={0: start})
        reported = [encode_event(begun), encode_event(update_to(begun, FINISHED, custom=b"c" * 60))]
        if number < deleted:
            reported += [encode_event(update_to(begun, state)) for state in (DELETING, DELETED)]
        for at in range(0, len(reported), BATCH_RECORDS):
            batch = build_batch(
                [Record(timestamp=1, key=None, value=value) for value in reported[at : at + BATCH_RECORDS]]
            )
            log = topic.logs[metadata_partition(partition, COUNT)]
            log.append(batch, leader_epoch=0, timestamp_ms=1)
    topic.commit_all()
    topic.close()


async def start(env: RealEnv, directory: str, *, closes: bool) -> tuple[float, int]:
    """Seconds until all partitions are ready, and the number of segments known then."""
    topic = LogMetadataTopic(env, directory, partition_count=COUNT, clean_shutdown=True)
    manager = TopicRemoteLogMetadataManager(env, topic, TierSettings(remote_log_storage_manager_class_name=None))
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        begun = time.perf_counter()
        await manager.on_partition_leadership_changes(PARTITIONS, [])
        for partition in PARTITIONS:
            await manager.wait_until_ready(partition)
        seconds = time.perf_counter() - begun
        known = sum(len(manager.list_remote_log_segments(partition)) for partition in PARTITIONS)
        if closes:
            begun = time.perf_counter()
            await manager.close()
            print(f"{'  writing the snapshots':52} {(time.perf_counter() - begun) * 1e3:8.0f} ms")
        nursery.cancel_scope.cancel()
    topic.close()
    return seconds, known


async def bench(path: str, segments: int, deleted: int) -> None:
    env = RealEnv()
    await write_history(LogMetadataTopic(env, path, partition_count=COUNT), segments + deleted, deleted=deleted)
    print(f"{segments} segments, and {deleted} that were deleted")
    for what, closes in (("by reading the log", True), ("by the snapshot", False)):
        seconds, known = await start(env, path, closes=closes)
        assert known == segments
        print(f"{'  ready ' + what:52} {seconds * 1e3:8.0f} ms")


def main() -> None:
    segments = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as name:
        for number, deleted in enumerate((0, 4 * segments)):
            trio.run(bench, str(Path(name) / str(number)), segments, deleted)


if __name__ == "__main__":
    main()
