"""Leftovers of interrupted file operations in a log's directory, and how a start completes or undoes them.

    .deleted   a file being deleted: removed. A .through.deleted also removes all earlier segments
    .cleaned   the incomplete output of a compaction: removed
    .swap      the complete output of a compaction: replaces the segments that it was made from
    .tmp       the new content of a small file that was not renamed: removed

Source  LogLoader.removeTempFilesAndCollectSwapFiles of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from kbroker.storage.batches import scan_headers
from kbroker.storage.checkpoint import TEMPORARY_SUFFIX
from kbroker.storage.durable import sync_names
from kbroker.storage.files import FilePool
from kbroker.storage.leader_epoch import MAX_OFFSET
from kbroker.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    THROUGH_SUFFIX,
    file_name,
)

Report = Callable[[str], None]
_OFFSET_DIGITS: Final = 20


def _offset(name: str) -> int:
    return int(name[:_OFFSET_DIGITS])


def has_leftovers(names: Sequence[str]) -> bool:
    """Whether an operation was interrupted here (roll, compaction, deletion, checkpoint), or an index has no log."""
    logs = {name[:_OFFSET_DIGITS] for name in names if name.endswith(LOG_SUFFIX)}
    return any(
        name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX))
        or (name.endswith(INDEX_SUFFIXES) and name[:_OFFSET_DIGITS] not in logs)
        for name in names
    )


def retired_through(names: Sequence[str]) -> int:
    """The base offset of the last segment that an interrupted retention was deleting, along with all earlier ones;
    -1 if there was none.
    """
    return max((_offset(name) for name in names if name.endswith(THROUGH_SUFFIX)), default=-1)


def finish_file_changes(files: FilePool, directory: str, names: Sequence[str], report: Report) -> None:
    """Complete or undo interrupted operations: remove .deleted and .cleaned files, rename .swap files."""
    disk = files.disk

    def unlink(name: str) -> None:
        with suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}")

    through = retired_through(names)
    if through >= 0:
        for name in names:
            if name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)) and _offset(name) <= through:
                unlink(name)
        sync_names(disk, directory)  # before the .through.deleted file is removed
        names = disk.list(directory)
    # Swap files at or after a .cleaned file belong to an incomplete split whose original segment still exists.
    first_cleaned = min((_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)), default=MAX_OFFSET)
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX) and _offset(name) < first_cleaned]
    for name in names:
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) and name not in swaps:
            report(f"{directory}/{name} is left over from an interrupted compaction and is removed")
            unlink(name)
        # A `.checkpoint.deleted` is a snapshot of the metadata log; its owner removes it.
        elif (name.endswith(DELETED_SUFFIX) and not name.endswith(".checkpoint" + DELETED_SUFFIX)) or (
            name.endswith(TEMPORARY_SUFFIX) and not name.startswith("bootstrap")
        ):
            unlink(name)
    if swaps:
        _complete_swaps(files, directory, names, swaps, report)
    logs = {name[:_OFFSET_DIGITS] for name in disk.list(directory) if name.endswith(LOG_SUFFIX)}
    for name in names:
        if name.endswith(INDEX_SUFFIXES) and name[:_OFFSET_DIGITS] not in logs:
            report(f"{directory}/{name} is an index without a log and is removed")
            unlink(name)
    sync_names(disk, directory)


def _complete_swaps(
    files: FilePool, directory: str, names: Sequence[str], swaps: Sequence[str], report: Report
) -> None:
    """Replace segments with their compacted versions.

    If the first segment has its log, nothing was renamed back yet, and all of its files are old ones. Otherwise they
    are new ones, such as a transaction index, which nothing could rebuild.
    """
    disk = files.disk
    log_swaps = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if log_swaps:
        first = min(_offset(name) for name in log_swaps)
        end = first
        for name in log_swaps:
            file = disk.open(f"{directory}/{name}", writable=False)
            for _, header in scan_headers(file, 0, file.size(), chunk_bytes=1 << 20):
                end = max(end, header.next_offset)
            file.close()
        oldest = first + (file_name(first, LOG_SUFFIX) not in names)
        for name in names:
            if name.endswith(SEGMENT_SUFFIXES) and oldest <= _offset(name) < end:
                with suppress(FileNotFoundError):
                    disk.unlink(f"{directory}/{name}")
        sync_names(disk, directory)  # an old segment must not reappear next to the compacted one
    # Indexes first: until the log is renamed, the next start still finds the swap and completes it.
    for name in sorted(swaps, key=lambda name: name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        report(f"{directory}/{name} is the result of a finished compaction and replaces the original")
        disk.rename(f"{directory}/{name}", f"{directory}/{name[: -len(SWAP_SUFFIX)]}")
