"""The follower of the metadata log: what it stores, applies, truncates and installs, and what a restart finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker.config.metadata import MetadataSettings
from kbroker.controller import records
from kbroker.controller.metadata_follower import MetadataFollower, open_follower, sharing
from kbroker.controller.metadata_log import DIRECTORY
from kbroker.controller.snapshot_task import write_snapshots
from kbroker.controller.snapshots import SnapshotId, read_snapshot, write_snapshot
from kbroker.metadata.delta import Delta
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.metadata.snapshot import image_records
from kbroker.runtime.disk import RealDisk
from kbroker.runtime.ports import Disk
from kbroker.storage.reserve import SpaceReserve
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.env import MemoryEnv
from tests.controller.metadata_node import empty_disk
from wire.errors import Malformed
from wire.record_batch import batches
from wire.stored.control import KRaftVersionRecord, VotersRecord
from wire.stored.metadata import (
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionRecord,
    TopicRecord,
)

NOW = 1_700_000_000_000
DISK = RealDisk()


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"topic-{number}", topic_id=UUID(int=1_000 + number))


def partition(number: int, leader_epoch: int = 0) -> PartitionRecord:
    return PartitionRecord(
        partition_id=0,
        topic_id=UUID(int=1_000 + number),
        replicas=[1],
        isr=[1],
        removing_replicas=[],
        adding_replicas=[],
        leader=1,
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch,
    )


def batch(offset: int, *contents: object, epoch: int = 1) -> bytes:
    values = [records.encode_value(record, 30) for record in contents]
    return records.data_batch(values, base_offset=offset, epoch=epoch, timestamp_ms=NOW)


class Site:
    """A follower on a real directory, or on the given disk."""

    def __init__(self, root: Path, disk: Disk = DISK) -> None:
        self.root = root
        self.disk = disk
        self.reports: list[str] = []
        self.follower = self.start()

    def start(self) -> MetadataFollower:
        self.follower = open_follower(
            str(self.root),
            disk=self.disk,
            config=MetadataSettings(),
            timestamp_ms=NOW,
            clean_shutdown=False,
            reserve=SpaceReserve(self.disk, str(self.root), 0),
            report=self.reports.append,
        )
        return self.follower

    def append(self, data: bytes, high_watermark: int) -> Image:
        return self.follower.append(data, high_watermark=high_watermark, timestamp_ms=NOW)

    def install(self, snapshot: SnapshotId, data: bytes) -> Image:
        partial = self.follower.receive_snapshot(snapshot)
        partial.append(data[:100])
        partial.append(data[100:])
        return self.follower.install(partial, timestamp_ms=NOW, now_ms=0)

    @property
    def topics(self) -> list[str]:
        return list(self.follower.image.topics_by_name)


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def snapshot_bytes(root: Path, image: Image, *, quorum: tuple[object, ...] = ()) -> bytes:
    path = f"{root}/other{SnapshotId(image.end_offset, image.epoch).file_name}"
    write_snapshot(
        DISK, path, image_records(image), metadata_version=30, epoch=image.epoch, last_contained_log_timestamp=NOW,
        timestamp_ms=NOW, quorum=quorum,
    )  # fmt: skip
    data = Path(path).read_bytes()
    Path(path).unlink()
    return data


def test_nothing_above_the_high_watermark_is_applied(site: Site) -> None:
    site.append(batch(0, topic(0)) + batch(1, topic(1)), high_watermark=-1)
    assert site.topics == []
    assert not site.follower.is_caught_up
    site.append(b"", high_watermark=1)
    assert site.topics == ["topic-0"]
    site.append(batch(2, topic(2)), high_watermark=9)
    assert site.topics == ["topic-0", "topic-1", "topic-2"]
    assert (site.follower.image.offset, site.follower.high_watermark) == (2, 3)
    assert not site.follower.is_caught_up, "the answer held only a part of what is committed"
    site.append(batch(3, *map(topic, range(3, 9))), high_watermark=9)
    assert site.follower.is_caught_up


def test_a_transaction_is_applied_whole(site: Site) -> None:
    site.append(batch(0, BeginTransactionRecord(name="x"), topic(0)) + batch(2, topic(1)), high_watermark=3)
    assert site.topics == []
    assert site.follower.image.offset == 2
    site.append(batch(3, EndTransactionRecord()), high_watermark=4)
    assert site.topics == ["topic-0", "topic-1"]


def test_a_batch_that_is_cut_at_the_end_of_an_answer_is_fetched_again(site: Site) -> None:
    second = batch(1, topic(1))
    site.append(batch(0, topic(0)) + second[:-1], high_watermark=2)
    assert site.follower.log.log_end_offset == 1
    site.append(second, high_watermark=2)
    assert site.topics == ["topic-0", "topic-1"]


@pytest.mark.parametrize("damaged", [batch(1, topic(0)), batch(0, topic(0))[:-1] + b"\xff"])
def test_damaged_or_misplaced_batches_are_not_stored(site: Site, damaged: bytes) -> None:
    with pytest.raises(Malformed):
        site.append(damaged, high_watermark=5)
    assert site.follower.log.log_end_offset == 0


def test_records_that_the_new_leader_lacks_are_truncated(site: Site) -> None:
    site.append(batch(0, topic(0)) + batch(1, topic(1)) + batch(2, topic(2)), high_watermark=1)
    assert site.follower.truncate(epoch=1, end_offset=2) == 2
    site.append(batch(2, topic(3), epoch=2), high_watermark=3)
    assert site.topics == ["topic-0", "topic-1", "topic-3"]
    assert site.follower.log.last_epoch == 2


def test_a_diverging_epoch_that_the_follower_lacks_ends_at_the_older_one(site: Site) -> None:
    site.append(batch(0, topic(0), epoch=1) + batch(1, topic(1), epoch=4), high_watermark=1)
    assert site.follower.truncate(epoch=3, end_offset=9) == 1
    assert site.follower.log.last_epoch == 1


def test_committed_records_are_never_truncated(site: Site) -> None:
    site.append(batch(0, topic(0)) + batch(1, topic(1)), high_watermark=2)
    with pytest.raises(UnusableMetadata, match="the controllers have lost committed metadata"):
        site.follower.truncate(epoch=1, end_offset=1)
    assert site.follower.log.log_end_offset == 2


def test_c4_a_record_that_this_version_does_not_know_stops_the_broker(site: Site) -> None:
    unknown = records.data_batch([b"\x01\x63\x00\x00"], base_offset=1, epoch=1, timestamp_ms=NOW)
    with pytest.raises(UnusableMetadata, match="record type 99 version 0 is unknown"):
        site.append(batch(0, topic(0)) + unknown, high_watermark=2)
    site.start()
    with pytest.raises(UnusableMetadata, match="record type 99 version 0 is unknown"):
        site.append(b"", high_watermark=2)


def test_a_restart_applies_the_log_only_when_the_high_watermark_is_known(site: Site) -> None:
    site.append(batch(0, topic(0)) + batch(1, topic(1)), high_watermark=2)
    site.follower.log.close()
    site.start()
    assert site.topics == []
    assert site.follower.log.log_end_offset == 2
    site.append(b"", high_watermark=1)
    assert site.topics == ["topic-0"]


def test_a_restart_starts_with_its_own_snapshot(site: Site) -> None:
    site.append(batch(0, topic(0)) + batch(1, topic(1)), high_watermark=1)
    log = site.follower.log
    log.adopt_snapshot(log.write_snapshot(site.follower.image, timestamp_ms=NOW), timestamp_ms=NOW, now_ms=0)
    log.close()
    site.start()
    assert site.topics == ["topic-0"]
    site.append(b"", high_watermark=2)
    assert site.topics == ["topic-0", "topic-1"]


def test_c2_a_loss_of_power_leaves_no_damage_below_a_snapshot() -> None:
    disk = empty_disk()
    site = Site(Path("/data"), disk)
    sent = batch(0, topic(0)) + batch(1, topic(1))
    site.append(sent, high_watermark=2)
    log = site.follower.log
    log.sync()
    log.adopt_snapshot(log.write_snapshot(site.follower.image, timestamp_ms=NOW), timestamp_ms=NOW, now_ms=0)
    site.append(batch(2, topic(2)), high_watermark=3)
    survivor = disk.crash(Loss.ONLY_SYNCED)
    assert Site(Path("/data"), survivor).topics == ["topic-0", "topic-1"]
    stored = survivor.image(f"/data/{DIRECTORY}")[f"/data/{DIRECTORY}/{0:020}.log"]
    assert stored is not None
    assert [one.base_offset for one in batches(stored)] == [0, 1], "a start does not read this segment"


async def test_c2_no_moment_of_a_snapshot_leaves_damage_below_it(autojump_clock: object) -> None:
    """The segments before the one with the snapshot's offset are durable before the snapshot is."""
    disk = empty_disk()
    site = Site(Path("/data"), disk)
    site.append(batch(0, topic(0)) + batch(1, topic(1)), high_watermark=2)
    follower, first = site.follower, f"/data/{DIRECTORY}/{0:020}.log"
    follower.log._log.roll(timestamp_ms=NOW)
    site.append(batch(2, topic(2)), high_watermark=3)
    survivors: list[SimulatedDisk] = []
    disk.observer = lambda _: survivors.extend(disk.crash(Loss.PREFIXES, seed=seed) for seed in range(20))
    with trio.move_on_after(2 * 3_600):
        await write_snapshots(MemoryEnv(disk), follower.log, MetadataPublisher(follower.image), trio.Lock())
    assert follower.log.snapshot_ids
    assert survivors
    for survivor in survivors:
        if Site(Path("/data"), survivor).follower.log.log_start_offset:
            continue  # it starts after the snapshot
        stored = survivor.image(f"/data/{DIRECTORY}").get(first)
        found = [one.base_offset for one in batches(stored or b"")]
        has_snapshot = any(name.endswith(".checkpoint") for name in survivor.list(f"/data/{DIRECTORY}"))
        assert found == [0, 1] or not has_snapshot


def test_a_kill_loses_no_epochs(site: Site) -> None:
    site.append(batch(0, topic(0), epoch=3) + batch(1, topic(1), epoch=4), high_watermark=1)
    site.follower.truncate(epoch=4, end_offset=1)
    site.append(batch(1, topic(2), epoch=6) + batch(2, topic(3), epoch=6), high_watermark=1)
    log = site.start().log  # nothing was closed
    assert (log.log_end_offset, log.last_epoch) == (3, 6)
    assert [log.end_of_epoch(epoch) for epoch in (3, 4, 5, 6)] == [(3, 1), (3, 1), (3, 1), (6, 3)]


def damage_the_middle(root: Path) -> None:
    path = next(Path(root, DIRECTORY).glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def remove_the_snapshots(root: Path) -> None:
    for path in Path(root, DIRECTORY).glob("*.checkpoint"):
        path.unlink()


@pytest.mark.parametrize("damage", [damage_the_middle, remove_the_snapshots])
def test_c5_a_damaged_log_is_fetched_again(site: Site, damage: Callable[[Path], None]) -> None:
    other = Image().apply([topic(number) for number in range(9)], offset=8, epoch=1)
    site.install(SnapshotId(9, 1), snapshot_bytes(site.root, other))
    for offset in range(9, 15):
        site.append(batch(offset, topic(offset)), high_watermark=offset)
    site.follower.log.close()
    damage(site.root)
    site.start()
    assert site.reports
    assert site.follower.log.log_end_offset < 15


def test_a_snapshot_replaces_log_and_image(site: Site) -> None:
    site.append(batch(0, topic(0), partition(0)) + batch(2, topic(1)), high_watermark=3)
    before = site.follower.image
    voters = VotersRecord(version=0, voters=[])
    contents = [FeatureLevelRecord(name="metadata.version", feature_level=30), topic(0), partition(0), topic(7)]
    other = Image().apply(
        [KRaftVersionRecord(version=0, kraft_version=1), voters, *contents], offset=41, epoch=6
    )  # fmt: skip
    image = site.install(
        SnapshotId(42, 6),
        snapshot_bytes(site.root, other, quorum=(KRaftVersionRecord(version=0, kraft_version=1), voters)),
    )
    assert image == other
    log = site.follower.log
    assert (log.log_end_offset, log.log_start_offset, log.last_epoch, log.snapshot_ids) == (42, 42, 6, [(42, 6)])
    assert image.topics_by_name["topic-0"] is before.topics_by_name["topic-0"], "an equal topic is not a change"
    delta = Delta(before, image)
    assert [topic.name for topic in delta.deleted_topics] == ["topic-1"]
    assert [topic.name for topic in delta.created_topics] == ["topic-7"]
    site.append(batch(42, NoOpRecord(), epoch=6), high_watermark=43)
    assert site.follower.image.offset == 42
    log.close()
    assert site.start().image.voters == voters


def test_c5_a_damaged_snapshot_changes_nothing(site: Site) -> None:
    site.append(batch(0, topic(0)), high_watermark=1)
    data = snapshot_bytes(site.root, Image().apply([topic(7)], offset=41, epoch=6))
    with pytest.raises(Malformed):
        site.install(SnapshotId(42, 6), data[:-3])
    assert site.topics == ["topic-0"]
    assert not list(Path(site.root, DIRECTORY).glob("*checkpoint*"))


def test_a_snapshot_keeps_the_voters_of_a_dynamic_quorum(site: Site) -> None:
    control = records.snapshot_header_batch(
        last_contained_log_timestamp=0,
        epoch=1,
        timestamp_ms=NOW,
        quorum=[KRaftVersionRecord(version=0, kraft_version=1), VotersRecord(version=0, voters=[])],
    )
    site.append(control + batch(3, topic(0)), high_watermark=4)
    log, image = site.follower.log, site.follower.image
    assert image.kraft_version == 1
    snapshot = log.write_snapshot(image, timestamp_ms=NOW)
    assert Image().apply(read_snapshot(DISK, log.snapshot_path(snapshot)), offset=3, epoch=1) == image


def test_sharing_keeps_equal_partitions_of_a_changed_topic() -> None:
    def image(leader_epoch: int) -> Image:
        second = partition(0, leader_epoch)
        second.partition_id = 1
        return Image().apply([topic(0), partition(0), second], offset=2, epoch=1)

    old, new = image(0), image(1)
    changes = Delta(old, sharing(new, old)).changed_partitions
    assert [change.index for change in changes] == [1]
