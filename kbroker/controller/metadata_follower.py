"""The follower of ``__cluster_metadata-0``: it stores what the leader sends, and applies what is committed.

A Fetch returns records up to the leader's log end, so some may not be committed yet. They are stored at once, and
applied to the image when the high watermark covers them; until then a new leader may make the follower truncate them.
The log of a broker is only a copy: it is not synced, and damage shortens it. A snapshot that a follower writes itself
holds only committed records.

A start applies the newest snapshot. The records after it are applied when the leader has said what is committed.

Blocking; one caller at a time.

Source: KIP-595, KIP-630; KafkaRaftClient and KafkaMetadataLog of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kbroker.config.metadata import MetadataSettings
from kbroker.controller import records, snapshots
from kbroker.controller.metadata_loading import load_metadata_log
from kbroker.controller.metadata_log import DIRECTORY, MetadataLog
from kbroker.controller.quorum_state import QuorumState
from kbroker.controller.snapshots import SnapshotId
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image, ImageBuilder, Record, TopicImage
from kbroker.runtime.ports import Disk, File
from kbroker.storage.plans import DirectoryState
from kbroker.storage.reserve import SpaceReserve
from wire.errors import Malformed
from wire.record_batch import RecordBatch, batches

UNKNOWN: Final = -1


class MetadataFollower:
    """See the module docstring.

    log             the stored log
    image           the state after all applied records
    high_watermark  the end of the committed records as far as known, -1 before the first Fetch
    written_ms      the wall time at which the controller wrote the last fetched batch, -1 before the first one
    """

    def __init__(self, log: MetadataLog, image: Image, unapplied: list[RecordBatch], *, disk: Disk) -> None:
        self.log = log
        self.image = image
        self.high_watermark = UNKNOWN
        self.written_ms = UNKNOWN
        self._leaders_high_watermark = UNKNOWN
        self._unapplied = deque(unapplied)
        self._disk = disk

    @property
    def is_caught_up(self) -> bool:
        """Whether all records are applied that the leader's last answer called committed. An answer may hold a part of
        the log only.
        """
        return 0 <= self._leaders_high_watermark <= self.image.end_offset

    def note_leader(self, leader_id: int, epoch: int) -> None:
        """Store the epoch of a new leader. OSError."""
        self.log.begin_epoch(QuorumState(leader_id=leader_id, leader_epoch=epoch, voted_id=-1, voters=()))

    def append(self, data: bytes, *, high_watermark: int, timestamp_ms: int) -> Image:
        """Store the whole batches at the start of `data`, and apply what the high watermark covers. Returns the image.

        Errors  Malformed, with nothing stored; UnusableMetadata; KAFKA_STORAGE_ERROR, OSError
        """
        found: list[RecordBatch] = []
        expected, size = self.log.log_end_offset, 0
        for batch in batches(data):
            if batch.base_offset != expected or not batch.crc_is_valid():
                raise Malformed(
                    f"the fetched batch at offset {batch.base_offset} is damaged or not the one at {expected}"
                )
            found.append(batch)
            expected, size = batch.next_offset, size + batch.size
        if found:
            epoch = found[-1].partition_leader_epoch
            self.log.append_fetched(data[:size], epoch=epoch, timestamp_ms=timestamp_ms)
            self._unapplied += found
            self.written_ms = found[-1].max_timestamp
        self._leaders_high_watermark = high_watermark
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log.log_end_offset))
        return self._apply()

    def _apply(self) -> Image:
        builder, last = ImageBuilder(self.image), None
        while self._unapplied and self._unapplied[0].next_offset <= self.high_watermark:
            last = self._unapplied.popleft()
            for record in records.batch_records(last):
                builder.replay(record)
        if last is not None:
            self.image = builder.build(offset=last.last_offset, epoch=last.partition_leader_epoch)
        return self.image

    def truncate(self, *, epoch: int, end_offset: int) -> int:
        """Delete what the leader does not have: its log holds this epoch up to end_offset. Returns the new end.

        Raises UnusableMetadata if a committed record would be lost.
        """
        own_epoch, offset = self.log.end_of_epoch(epoch)
        if offset < 0:
            offset, own_epoch = self.log.newest_snapshot
        if own_epoch == epoch:
            offset = min(offset, end_offset)
        if offset < max(self.image.end_offset, self.high_watermark):
            raise UnusableMetadata(
                f"the controllers have lost committed metadata: their log diverges at offset {offset}, but this broker "
                f"has applied it up to {self.image.end_offset}. Restore the controllers' metadata; or move this "
                "broker's data directory away, which loses its records"
            )
        self.log.truncate_to(offset)
        while self._unapplied and self._unapplied[-1].next_offset > offset:
            self._unapplied.pop()
        return self.log.log_end_offset

    # -- snapshots

    def receive_snapshot(self, snapshot: SnapshotId) -> PartialSnapshot:
        """Start to store a snapshot that the leader sends. OSError."""
        return PartialSnapshot(self._disk, self.log.snapshot_path(snapshot), snapshot)

    def install(self, partial: PartialSnapshot, *, timestamp_ms: int, now_ms: int) -> Image:
        """Replace log and image by a snapshot that has been received completely. Returns the image.

        Errors  Malformed if it is damaged: the log is unchanged; UnusableMetadata, OSError
        """
        snapshot = partial.snapshot
        builder = ImageBuilder(Image())
        for record in partial.complete():
            builder.replay(record)
        self.log.start_at_snapshot(snapshot, timestamp_ms=timestamp_ms, now_ms=now_ms)
        self._unapplied.clear()
        image = builder.build(offset=snapshot.end_offset - 1, epoch=snapshot.epoch)
        self.image = sharing(image, self.image)
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)
        return self.image


class PartialSnapshot:
    """A snapshot file that grows with each response.

    size  the bytes received
    """

    def __init__(self, disk: Disk, path: str, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self.size = 0
        self._disk = disk
        self._path = path
        self._part = path.removesuffix(snapshots.SUFFIX) + snapshots.PART_SUFFIX
        self._file: File = disk.open(self._part, create=True)
        self._file.truncate(0)

    def append(self, data: bytes) -> None:
        """Add the bytes after those received. OSError."""
        self._file.pwrite(data, self.size)
        self.size += len(data)

    def complete(self) -> list[Record]:
        """Check the file and give it its final name; return its records.

        Errors  Malformed: the file is deleted
        """
        self._file.sync()
        self.abandon()
        try:
            contents = snapshots.read_snapshot(self._disk, self._part)
        except Malformed:
            self._disk.unlink(self._part)
            raise
        self._disk.rename(self._part, self._path)
        self._disk.sync_directory(self._path.rpartition("/")[0])
        return contents

    def abandon(self) -> None:
        """Close the file; the next start deletes it unless it is complete."""
        self._file.close()


def sharing(image: Image, old: Image) -> Image:
    """The image with every topic and partition that equals the old one's replaced by it.

    An image from a snapshot shares nothing with the old one; without this, all partitions would count as changed.
    """
    by_id = {topic_id: _shared(topic, old.topics_by_id.get(topic_id)) for topic_id, topic in image.topics_by_id.items()}
    return image._replace(topics_by_id=by_id, topics_by_name={topic.name: topic for topic in by_id.values()})


def _shared(topic: TopicImage, old: TopicImage | None) -> TopicImage:
    if old is None or old == topic:
        return topic if old is None else old
    known = old.partitions
    partitions = {
        index: known[index] if known.get(index) == partition else partition
        for index, partition in topic.partitions.items()
    }
    return TopicImage(topic.name, topic.id, partitions)


def open_follower(
    root: str,
    *,
    disk: Disk,
    config: MetadataSettings,
    timestamp_ms: int,
    clean_shutdown: bool,
    reserve: SpaceReserve,
    state: DirectoryState | None = None,
    report: Callable[[str], None],
) -> MetadataFollower:
    """Load the log of a broker. A log that cannot be used is deleted, because the controllers have it. A later error of
    the log's disk fails the log directory of `state`.

    Blocking. OSError, UnusableMetadata for a record that this version does not know.
    """

    def load() -> MetadataFollower:
        unapplied: list[RecordBatch] = []
        log, image = load_metadata_log(
            root,
            disk=disk,
            node_id=None,
            config=config,
            timestamp_ms=timestamp_ms,
            clean_shutdown=clean_shutdown,
            reserve=reserve,
            unapplied=unapplied,
            state=state,
            report=report,
        )
        return MetadataFollower(log, image, unapplied, disk=disk)

    try:
        return load()
    except UnusableMetadata as error:
        report(f"{error}; the broker fetches the metadata log again")
        directory = f"{root}/{DIRECTORY}"
        for name in disk.list(directory):
            disk.unlink(f"{directory}/{name}")
        return load()
