"""Checks the content of a remote segment: the checks of a local segment, and whether it matches the metadata."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.storage.checkpoint import read_file
from kbroker.storage.leader_epoch import LeaderEpochs, parse_epochs
from kbroker.storage.producer_state import parse_snapshot
from kbroker.storage.verifying import Expected, Findings, Reach, SegmentCheck
from kbroker.tiered.api import IndexType, RemoteLogSegmentMetadata, RemoteStorageManager
from kbroker.tiered.plan import clipped_epochs
from kbroker.tiered.segment_files import SegmentFiles

Finding = tuple[str, str]


class _Collected:
    """Collects findings for the caller."""

    def __init__(self) -> None:
        self.count = 0
        self.found: list[Finding] = []

    def add(self, path: str, text: str, *, position: int | None = None) -> None:
        self.count += 1
        where = "" if position is None else f"at byte {position}: "
        self.found.append((path, f"{path.rpartition('/')[2]}: {where}{text}"))

    def hint(self, path: str, text: str) -> None:
        self.add(path, text)


def check_segment(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Iterator[Finding]:
    """Read a segment and its indexes; each finding is (object name, text).

    Errors  RemoteStorageError, OSError if the store does not return what it lists
    """
    files = SegmentFiles(storage, segment)
    collected = _Collected()
    for index_type, text in files.damaged.items():
        collected.add(files.path_of(index_type), text)
    epochs = _epochs(files, segment, collected)
    reach = Reach(segment.start_offset)
    SegmentCheck(
        files,
        files.directory,
        segment.start_offset,
        is_last=False,
        expected=Expected(False, segment.start_offset, epochs, None),
        report=collected,
        progress=lambda _size: None,
    ).check(files.names(), reach)
    if reach.is_known and reach.next_offset != segment.end_offset + 1:
        collected.add(files.log_path, f"ends with offset {reach.next_offset - 1} instead of {segment.end_offset}")
    _check_snapshot(files, segment, collected)
    # The checks miss indexes that the store reports as damaged; do not report those as missing, too.
    reported = {files.path_of(index_type): text for index_type, text in files.damaged.items()}
    yield from (one for one in collected.found if one[0] not in reported or reported[one[0]] in one[1])


def _epochs(files: SegmentFiles, segment: RemoteLogSegmentMetadata, findings: Findings) -> LeaderEpochs:
    """The leader epochs of the stored checkpoint, which must agree with the metadata; those of the metadata if the
    checkpoint cannot be read.
    """
    path = files.path_of(IndexType.LEADER_EPOCH)
    known = list(segment.segment_leader_epochs)
    try:
        entries = parse_epochs(read_file(files, path).decode())
    except FileNotFoundError:
        return LeaderEpochs(known)
    except ValueError as error:
        findings.add(path, f"cannot be read: {error}")
        return LeaderEpochs(known)
    stored = LeaderEpochs(entries)
    inside = list(clipped_epochs(entries, segment.start_offset, segment.end_offset + 1))
    if inside != known:
        findings.add(path, f"has the epochs {inside} for this segment, the metadata say {known}")
    return stored


def _check_snapshot(files: SegmentFiles, segment: RemoteLogSegmentMetadata, findings: Findings) -> None:
    path = files.path_of(IndexType.PRODUCER_SNAPSHOT)
    try:
        entries = parse_snapshot(read_file(files, path))
    except FileNotFoundError:
        return
    except ValueError as error:
        findings.add(path, str(error))
        return
    for entry in entries:
        latest = max((batch.last_offset for batch in entry.batches), default=-1)
        if latest > segment.end_offset:
            findings.add(path, f"producer {entry.producer_id} has a batch at {latest}, beyond the segment")
