"""Reads the metadata of the tier from a data directory. The broker may be running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, TypeVar

from kbroker.cli import CommandFailed
from kbroker.cli._tier_sources import Offsets, highest_tiered
from kbroker.cli._verify_report import ReadOnlyDisk
from kbroker.controller import records, snapshots
from kbroker.controller.metadata_log import DIRECTORY as METADATA_DIRECTORY
from kbroker.controller.metadata_log import log_segments
from kbroker.controller.quorum_state import FILE_NAME as QUORUM_STATE
from kbroker.controller.quorum_state import parse_quorum_state
from kbroker.controller.replay import Replay
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image, ImageBuilder
from kbroker.runtime.ports import Disk
from kbroker.storage.batch_reader import BatchReader
from kbroker.storage.checkpoint import LOG_START_CHECKPOINT, read_file, read_offsets
from kbroker.storage.directory_names import PARTITION
from kbroker.storage.loader import offset_of
from kbroker.storage.segment import LOG_SUFFIX
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue, Partition
from wire.errors import Malformed

T = TypeVar("T")

ATTEMPTS: Final = 5


class DirectorySource:
    """A data directory as a `Source`. Raises CommandFailed if the directory cannot be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.disk: Disk = ReadOnlyDisk()
        self._names = self.reading(lambda: self.disk.list(path))
        if METADATA_DIRECTORY not in self._names:
            raise CommandFailed(f"{path} is not a broker's data directory: it has no {METADATA_DIRECTORY}")

    def reading(self, read: Callable[[], T]) -> T:
        """Return the result of `read`. A running broker deletes files, so a missing file causes retries."""
        for attempt in range(ATTEMPTS):
            try:
                return read()
            except FileNotFoundError as error:
                if attempt == ATTEMPTS - 1 or error.filename == self.path:
                    raise CommandFailed(f"{error.filename} does not exist") from error
            except OSError as error:
                raise CommandFailed(f"cannot read {error.filename or self.path}: {error.strerror or error}") from error
        raise AssertionError("the last attempt returns or raises")

    def partitions(self) -> dict[str, list[int]]:
        """Every topic with the numbers of its partitions in this directory."""
        found: dict[str, list[int]] = {}
        for name in self._names:
            match = PARTITION.fullmatch(name)
            if match is not None and name != METADATA_DIRECTORY and "-delete" not in name:
                found.setdefault(match[1], []).append(int(match[2]))
        return {topic: sorted(indexes) for topic, indexes in sorted(found.items())}

    def catalogue(self) -> Catalogue:
        """The catalogue from the metadata topic's logs, up to the first incomplete batch; skips wrong CRCs."""
        return self.reading(self._catalogue)

    def _catalogue(self) -> Catalogue:
        found = Catalogue()
        starts = self.log_starts()
        for index in self.partitions().get(METADATA_TOPIC, []):
            directory = f"{self.path}/{METADATA_TOPIC}-{index}"
            bases = self._bases(directory)
            found.is_whole &= not bases or max(bases[0], starts.get((METADATA_TOPIC, index), 0)) == 0
            for base in bases:
                self._replay(f"{directory}/{base:020d}{LOG_SUFFIX}", found)
        return found

    def _replay(self, path: str, found: Catalogue) -> None:
        with closing(self.disk.open(path, writable=False)) as file:
            for batch in BatchReader(file):
                if not batch.crc_is_valid():
                    found.unreadable += batch.record_count
                    continue
                try:
                    for record in () if batch.is_control else batch.records():
                        found.replay(record.value)
                except Malformed:
                    found.unreadable += 1

    def offsets(self, partitions: Sequence[Partition], catalogue: Catalogue) -> dict[Partition, Offsets]:
        """Offsets from the files; the log end offset is that of the last complete batch."""
        starts = self.reading(self.log_starts)
        return {each: self.reading(partial(self._offsets, each, starts, catalogue)) for each in partitions}

    def _offsets(self, partition: Partition, starts: dict[Partition, int], catalogue: Catalogue) -> Offsets:
        directory = f"{self.path}/{partition[0]}-{partition[1]}"
        tiered = highest_tiered(catalogue, partition)
        bases = self._bases(directory) if directory.rpartition("/")[2] in self._names else []
        if not bases:
            return Offsets(None, None, tiered, None)
        in_tier = [each.start_offset for each in catalogue.of([partition])]
        start = starts.get(partition, min([bases[0], *in_tier]) if in_tier else bases[0])
        return Offsets(start, max(start, bases[0]), tiered, self.end_of(f"{directory}/{bases[-1]:020d}{LOG_SUFFIX}"))

    def end_of(self, path: str) -> int:
        """The offset after the last complete batch of a segment, or its base offset if it has none."""
        end = offset_of(path.rpartition("/")[2], LOG_SUFFIX) or 0
        with closing(self.disk.open(path, writable=False)) as file:
            for batch in BatchReader(file):
                end = batch.last_offset + 1
        return end

    def _bases(self, directory: str) -> list[int]:
        """The base offsets of a partition's segments, in order."""
        return [base for name in self.disk.list(directory) if (base := offset_of(name, LOG_SUFFIX)) is not None]

    def log_starts(self) -> dict[Partition, int]:
        """The log start offsets in the last checkpoint. It omits those that equal the first local offset."""
        try:
            return read_offsets(self.disk, f"{self.path}/{LOG_START_CHECKPOINT}")
        except ValueError as error:
            raise CommandFailed(str(error)) from error

    def image(self) -> Image:
        """The cluster's metadata: topics, their settings and the brokers' settings."""
        try:
            return self.reading(self._image)
        except (UnusableMetadata, Malformed, ValueError) as error:
            raise CommandFailed(f"the metadata log cannot be read: {error}") from error

    def _image(self) -> Image:
        directory = f"{self.path}/{METADATA_DIRECTORY}"
        names = self.disk.list(directory)
        known = snapshots.snapshot_ids(names)
        newest = known[-1] if known else snapshots.SnapshotId(0, 0)
        builder = ImageBuilder(Image())
        if known:
            for one in snapshots.read_snapshot(self.disk, f"{directory}/{newest.file_name}"):
                builder.replay(one)
        quorum_state = f"{directory}/{QUORUM_STATE}"
        epoch = parse_quorum_state(read_file(self.disk, quorum_state), quorum_state).leader_epoch
        segments = log_segments(directory, names)
        replay = Replay(
            self.disk, segments, start_offset=newest.end_offset, highest_epoch=epoch, clean_shutdown=False
        )  # fmt: skip
        for batch in replay:
            for record in records.batch_records(batch):
                builder.replay(record)
        return builder.build(offset=max(replay.end.end_offset, newest.end_offset) - 1, epoch=epoch)
