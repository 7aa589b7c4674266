"""The files of a log while cleaned segments replace others, and the removal of what a pass did not finish. Blocking.

    .cleaned    written and synced by the pass; a start removes it
    .swap       from here on a start completes the replacement (`leftovers`)
    .deleted    the old files get out of the way
    (none)      the new ones take their names, the log last

Each step is durable before the next: if an old segment reappeared next to the cleaned one, the log would have its
offsets twice. Readers keep what they have: the old segments hold their files open.

Source  LocalLog.replaceSegments of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kbroker.runtime.ports import Disk
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.log_files import LogFiles
from kbroker.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)


def replace_segments(
    files: LogFiles, old: Sequence[Segment], *, size: int, has_transactions: bool, due_ms: int
) -> None:
    """Replace adjacent segments by the `.cleaned` files of the first one. Errors: OSError.

    After due_ms of monotonic time `LogFiles.doomed` removes the old files.
    """
    disk, first = files.disk, old[0]
    paths = [first.path(one) for one in SEGMENT_SUFFIXES if one != TXN_INDEX_SUFFIX or has_transactions]
    contents = [segment.contents() for segment in old]
    _name_swaps(files, paths)
    for segment, kept in zip(old, contents, strict=True):
        segment.give_up_names(kept)
        for suffix in SEGMENT_SUFFIXES if segment is first else (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX):
            _put_away(files, segment.path(suffix), due_ms)
        if segment is not first and segment.base_offset in files.snapshots:
            files.snapshots.remove(segment.base_offset)
    sync_names(disk, files.directory)
    for path in reversed(paths):
        disk.rename(path + SWAP_SUFFIX, path)
        with suppress(OSError):  # no file descriptor is left
            files.pool.create(path)  # replaces what a reader of an old segment may have cached
    new = Segment(files.pool, files.directory, first.base_offset, interval_bytes=first.interval_bytes, size=size)
    new.created_ms, new.is_finished = first.created_ms, True
    files.segments.exchange(old, new)
    sync_names(disk, files.directory)


def _name_swaps(files: LogFiles, paths: Sequence[str]) -> None:
    """Rename `.cleaned` files; if that fails, remove those that were renamed, so that no start uses them."""
    try:
        for path in paths:
            files.disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        sync_names(files.disk, files.directory)
    except OSError:
        for path in paths:
            with suppress(FileNotFoundError):
                files.disk.unlink(path + SWAP_SUFFIX)
        raise


def _put_away(files: LogFiles, path: str, due_ms: int) -> None:
    """Rename a file, for its later removal; on a full disk remove it at once: a longer name may need another block."""
    files.pool.forget(path)
    try:
        files.disk.rename(path, path + DELETED_SUFFIX)
    except FileNotFoundError:
        return
    except OSError as error:
        if not lacks_space(error):
            raise
        files.disk.unlink(path)
        return
    files.doomed.add(due_ms, path + DELETED_SUFFIX)


def remove_unfinished(disk: Disk, directory: str) -> None:
    """Remove the `.cleaned` files of a pass that ended early. Errors: OSError."""
    for name in disk.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            disk.unlink(f"{directory}/{name}")
