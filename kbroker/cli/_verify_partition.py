"""Checks the directory of one partition: its file names, segments, checkpoints and snapshots."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from kbroker.cli._verify_report import Report
from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file
from kbroker.storage.formatting import PARTITION_METADATA, parse_partition_metadata
from kbroker.storage.leader_epoch import EPOCH_CHECKPOINT, LeaderEpochs, format_epochs, parse_epochs
from kbroker.storage.leftovers import retired_through
from kbroker.storage.loader import offset_of
from kbroker.storage.producer_state import parse_snapshot
from kbroker.storage.segment import INDEX_SUFFIXES, LOG_SUFFIX, SNAPSHOT_SUFFIX, file_name
from kbroker.storage.verifying import Expected, Progress, Reach, SegmentCheck
from wire.types import uuid_to_text

_PASSING: Final = re.compile(r".*(\.deleted|\.cleaned|\.swap|\.tmp|\.checkpoint\.part)")
_SEGMENT_FILE: Final = re.compile(r"\d{20}(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_KNOWN: Final = frozenset({EPOCH_CHECKPOINT, PARTITION_METADATA, "remote_log_snapshot"})


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets in a partition's directory, from the first segment to after the last batch, and its topic id."""

    start_offset: int
    end_offset: int
    topic_id: UUID | None


class PartitionCheck:
    """Checks one directory; `own_files` are names that belong to it in addition to those of every partition."""

    def __init__(
        self, disk: Disk, path: str, *, report: Report, progress: Progress, own_files: frozenset[str] = frozenset()
    ) -> None:
        self._disk = disk
        self._path = path
        self._report = report
        self._progress = progress
        self._own_files = own_files
        self._names = disk.list(path)

    def check(self, *, is_compacted: bool, log_start: int, recovery_point: int | None) -> Extent:
        """Check everything. `recovery_point` is None after a clean shutdown. Errors: OSError."""
        is_clean = recovery_point is None
        # With recovery point 0, the broker may have been killed while it created the directory.
        is_unfinished = recovery_point == 0
        through = retired_through(self._names)
        self._check_names(is_clean=is_clean)
        names = frozenset(self._names)
        bases = [base for name in self._names if (base := offset_of(name, LOG_SUFFIX)) is not None and base > through]
        start = max(log_start, bases[0]) if bases else log_start
        expected = Expected(is_compacted, start, self._epochs(), recovery_point)
        reach = Reach(bases[0] if bases else 0)
        if not bases:
            self._tell(self._path, "there is no segment", is_repaired=is_unfinished)
        for base in bases:
            self._check_beginning(base, reach, expected)
            SegmentCheck(
                self._disk,
                self._path,
                base,
                is_last=base == bases[-1],
                expected=expected,
                report=self._report,
                progress=self._progress,
            ).check(names, reach)
        self._check_snapshots(reach.next_offset, is_clean=is_clean)
        self._check_epochs(expected, reach)
        return Extent(bases[0] if bases else 0, reach.next_offset, self._topic_id(is_unfinished=is_unfinished))

    def _tell(self, path: str, text: str, *, is_repaired: bool) -> None:
        """Report a finding, or a note if the next start repairs it after an unclean shutdown."""
        if is_repaired:
            self._report.hint(path, f"{text}; the shutdown was unclean, and the next start repairs this")
        else:
            self._report.add(path, text)

    def _check_names(self, *, is_clean: bool) -> None:
        """Report names that do not belong here."""
        logs = {name[:20] for name in self._names if offset_of(name, LOG_SUFFIX) is not None}
        for name in self._names:
            path = f"{self._path}/{name}"
            if _PASSING.fullmatch(name):
                self._report.hint(path, "is a leftover of an interrupted change; the next start removes or finishes it")
            elif _SEGMENT_FILE.fullmatch(name):
                if name.endswith(INDEX_SUFFIXES) and name[:20] not in logs:
                    self._tell(path, "is an index without a log", is_repaired=not is_clean)
            elif name not in _KNOWN and name not in self._own_files:
                self._report.add(path, "is not a file of a broker")

    def _check_beginning(self, base: int, reach: Reach, expected: Expected) -> None:
        path = f"{self._path}/{file_name(base, LOG_SUFFIX)}"
        if reach.is_known and base < reach.next_offset:
            self._report.add(path, f"begins at {base}, but the segment before ends with {reach.next_offset - 1}")
        elif base > reach.next_offset and not expected.is_compacted:
            between = f"the offsets {reach.next_offset} to {base - 1} are missing before it"
            self._report.add(path, between)
        if not reach.is_known or base > reach.next_offset:
            reach.next_offset, reach.is_known = base, True

    def _epochs(self) -> LeaderEpochs | None:
        """The checkpoint of leader epochs; None if it is missing or cannot be read."""
        path = f"{self._path}/{EPOCH_CHECKPOINT}"
        if EPOCH_CHECKPOINT not in self._names:
            return None
        found = self._report.parsed(self._disk, path, lambda text: (text, parse_epochs(text)))
        if found is None:
            return None
        text, entries = found
        if text and text != format_epochs(entries):
            self._report.add(path, "is readable, but not in the format that a broker writes")
        return LeaderEpochs(entries)

    def _check_epochs(self, expected: Expected, reach: Reach) -> None:
        path = f"{self._path}/{EPOCH_CHECKPOINT}"
        if expected.epochs is None:
            # The checkpoint has no entries for batches below the log start offset.
            has_batches = reach.epoch >= 0 and reach.next_offset > expected.log_start
            if EPOCH_CHECKPOINT not in self._names and has_batches and expected.recovery_point is None:
                self._report.add(path, "is missing, though there are batches")
            return
        last = expected.epochs.entries[-1:]
        if last and last[0][1] > reach.next_offset and expected.recovery_point is None:
            self._report.add(path, f"epoch {last[0][0]} begins at {last[0][1]}, the log ends at {reach.next_offset}")

    def _check_snapshots(self, end_offset: int, *, is_clean: bool) -> None:
        for name in self._names:
            offset = offset_of(name, SNAPSHOT_SUFFIX)
            if offset is None:
                continue
            path = f"{self._path}/{name}"
            try:
                entries = parse_snapshot(read_file(self._disk, path))
            except ValueError as error:
                self._report.add(path, str(error))
                continue
            if offset > end_offset and is_clean:
                self._report.add(path, f"is of offset {offset}, the log ends at {end_offset}")
            for entry in entries:
                latest = max((batch.last_offset for batch in entry.batches), default=-1)
                if latest >= offset:
                    self._report.add(path, f"producer {entry.producer_id} has a batch at {latest}, after the snapshot")

    def _topic_id(self, *, is_unfinished: bool) -> UUID | None:
        path = f"{self._path}/{PARTITION_METADATA}"
        if PARTITION_METADATA not in self._names:
            self._tell(path, "is missing", is_repaired=is_unfinished)
            return None
        found = self._report.parsed(self._disk, path, lambda text: (text, parse_partition_metadata(text)))
        if found is None:
            return None
        text, topic_id = found
        if uuid_to_text(topic_id) not in text:
            # The last character of an id has unused bits.
            self._report.add(path, f"has the topic id {uuid_to_text(topic_id)} in a form that no broker writes")
        return topic_id
