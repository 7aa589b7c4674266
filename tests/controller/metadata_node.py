"""One process with its metadata log, on any disk."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from kbroker.config.metadata import MetadataSettings
from kbroker.controller import records
from kbroker.controller.metadata_leader import MetadataLeader
from kbroker.controller.metadata_loading import load_metadata_log
from kbroker.controller.metadata_log import DIRECTORY
from kbroker.controller.snapshots import SnapshotId
from kbroker.metadata.image import Image
from kbroker.runtime.ports import Disk
from kbroker.testing.disk import SimulatedDisk
from wire.stored.metadata import (
    TopicRecord,
)

NOW = 1_700_000_000_000


def topic_record(number: int, padding: int = 0) -> TopicRecord:
    return TopicRecord(name=f"topic-{number}" + "x" * padding, topic_id=UUID(int=1_000 + number))


class Node:
    """One process with its metadata log."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        *,
        clean_shutdown: bool = False,
        config: MetadataSettings | None = None,
        max_batch_bytes: int = records.MAX_BATCH_BYTES,
        bootstrap: str | None = None,
    ) -> None:
        self.root = root
        self.disk = disk
        self.reports: list[str] = []
        self.log, self.image = load_metadata_log(
            root,
            disk=disk,
            node_id=1,
            config=config or MetadataSettings(),
            max_batch_bytes=max_batch_bytes,
            timestamp_ms=NOW,
            clean_shutdown=clean_shutdown,
            report=self.reports.append,
        )
        self.loaded = self.image
        self.leader = MetadataLeader(self.log, node_id=1)
        self.image = self.leader.begin_epoch(
            self.image, disk=disk, timestamp_ms=NOW, new_uuid=lambda: UUID(int=7), bootstrap=bootstrap
        )

    def append(self, *decided: object) -> None:
        values = [records.encode_value(record, 21) for record in decided]
        staged = self.leader.stage(values, metadata_version=21)
        self.leader.write(staged, timestamp_ms=NOW)
        self.image = self.image.apply(decided, offset=staged.end_offset - 1, epoch=self.log.epoch)

    def snapshot(self) -> SnapshotId:
        self.log.note_snapshot(now_ms=0)
        snapshot = self.log.write_snapshot(self.image, timestamp_ms=NOW)
        self.log.adopt_snapshot(snapshot, timestamp_ms=NOW, now_ms=0)
        return snapshot


def log_files(node: Node) -> list[Path]:
    return sorted(Path(node.root, DIRECTORY).glob("*.log"))


def state(image: Image) -> Image:
    """The image without its offset and epoch, to compare states across epochs."""
    return image._replace(offset=Image().offset, epoch=Image().epoch)


def empty_disk() -> SimulatedDisk:
    """A disk with an empty directory."""
    disk = SimulatedDisk(timestamp_ms=lambda: NOW)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)
