"""What an interrupted change of files leaves in a log's directory, and how it is finished or undone.

    .deleted   on its way out: removed. A .through.deleted takes all earlier segments along
    .cleaned   a compaction's output that was not complete: removed
    .swap      a compaction's output that was complete: takes the place of the segments that it was made of
    .tmp       a small file that did not get its name: removed

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
from kbroker.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    THROUGH_SUFFIX,
)

Report = Callable[[str], None]
_OFFSET_DIGITS: Final = 20


def has_leftovers(names: Sequence[str]) -> bool:
    """Whether a roll, a compaction, a deletion or a checkpoint was interrupted here, or an index stands alone."""
    logs = {name[:_OFFSET_DIGITS] for name in names if name.endswith(LOG_SUFFIX)}
    return any(
        name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX))
        or (name.endswith(INDEX_SUFFIXES) and name[:_OFFSET_DIGITS] not in logs)
        for name in names
    )


def retired_through(names: Sequence[str]) -> int:
    """The first offset of the last segment that an interrupted retention was deleting, all earlier ones included; -1
    for none.
    """
    return max((int(name[:_OFFSET_DIGITS]) for name in names if name.endswith(THROUGH_SUFFIX)), default=-1)


def finish_file_changes(files: FilePool, directory: str, names: Sequence[str], report: Report) -> None:
    """Finish or undo what was interrupted: .deleted and .cleaned files go, .swap files take their place."""
    disk = files.disk

    def unlink(name: str) -> None:
        with suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{name}")

    through = retired_through(names)
    if through >= 0:
        for name in names:
            if name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)) and int(name[:_OFFSET_DIGITS]) <= through:
                unlink(name)
        sync_names(disk, directory)  # before the name that says so goes
        names = disk.list(directory)
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    for name in names:
        # A `.checkpoint.deleted` is a snapshot of the metadata log, whose owner removes it.
        if (name.endswith(DELETED_SUFFIX) and not name.endswith(".checkpoint" + DELETED_SUFFIX)) or (
            name.endswith(TEMPORARY_SUFFIX) and not name.startswith("bootstrap")
        ):
            unlink(name)
    # Swap files at or behind a .cleaned one are of a split that did not come to its end; the original is still there.
    first_cleaned = min((int(name[:_OFFSET_DIGITS]) for name in cleaned), default=None)
    for name in [
        *cleaned,
        *(s for s in swaps if first_cleaned is not None and int(s[:_OFFSET_DIGITS]) >= first_cleaned),
    ]:
        report(f"{directory}/{name} is what an interrupted compaction left, and is removed")
        unlink(name)
    swaps = [name for name in swaps if first_cleaned is None or int(name[:_OFFSET_DIGITS]) < first_cleaned]
    if swaps:
        _complete_swaps(files, directory, names, swaps, report)
    logs = {name[:_OFFSET_DIGITS] for name in disk.list(directory) if name.endswith(LOG_SUFFIX)}
    for name in names:
        if name.endswith(INDEX_SUFFIXES) and name[:_OFFSET_DIGITS] not in logs:
            report(f"{directory}/{name} is an index without a log, and is removed")
            unlink(name)
    sync_names(disk, directory)


def _complete_swaps(
    files: FilePool, directory: str, names: Sequence[str], swaps: Sequence[str], report: Report
) -> None:
    """Put compacted segments into the place of those that they were made of."""
    disk = files.disk
    log_swaps = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if log_swaps:
        first = min(int(name[:_OFFSET_DIGITS]) for name in log_swaps)
        end = first
        for name in log_swaps:
            file = disk.open(f"{directory}/{name}", writable=False)
            for _, header in scan_headers(file, 0, file.size(), chunk_bytes=1 << 20):
                end = max(end, header.next_offset)
            file.close()
        for name in names:
            if name.endswith(SEGMENT_SUFFIXES) and first <= int(name[:_OFFSET_DIGITS]) < end:
                with suppress(FileNotFoundError):
                    disk.unlink(f"{directory}/{name}")
    # Indexes first: until the log has its name, the swap is still there to be completed again.
    for name in sorted(swaps, key=lambda name: name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        report(f"{directory}/{name} is what a compaction had finished, and takes its place")
        disk.rename(f"{directory}/{name}", f"{directory}/{name[: -len(SWAP_SUFFIX)]}")
