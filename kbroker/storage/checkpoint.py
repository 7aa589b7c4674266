"""Small files that are replaced atomically, and the offset checkpoints of a log directory.

After a crash a replaced file holds either the old or the new content. The new content is written to `<name>.tmp` and
synced, the file is renamed, and the directory is synced.

Source  CheckpointFile, OffsetCheckpointFile of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from kbroker.runtime.ports import Buffer, Disk, ReadableDisk
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.durable import sync as sync_file

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
TEMPORARY_SUFFIX: Final = ".tmp"
_MOST_DIGITS: Final = 20

TopicPartition = tuple[str, int]


def read_file(disk: ReadableDisk, path: str) -> bytes:
    """All bytes of a small file; FileNotFoundError if it does not exist."""
    file = disk.open(path, writable=False)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_atomically(disk: Disk, path: str, data: Buffer, *, sync: bool = True) -> None:
    """Replace a file. Without `sync` a loss of power may leave it truncated or empty; its reader must detect that."""
    replace_file(disk, path, data, sync=sync)
    if sync:
        sync_names(disk, path.rpartition("/")[0])


def replace_file(disk: Disk, path: str, data: Buffer, *, sync: bool) -> None:
    """Replace a file, but leave syncing the directory to the caller, who may do it once for several files.

    If the disk is full, the partial file is removed, so that it does not take up space.
    """
    temporary = path + TEMPORARY_SUFFIX
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        if sync:
            sync_file(file)
    except OSError as error:
        if lacks_space(error):
            with suppress(OSError):
                disk.unlink(temporary)
        raise
    finally:
        file.close()
    disk.rename(temporary, path)


def format_lines(lines: Sequence[str]) -> str:
    """The text of a checkpoint: version 0, the count, then the lines."""
    return "\n".join(["0", str(len(lines)), *lines]) + "\n"


def parse_lines(text: str, width: int) -> list[list[str]]:
    """The words of each line of a checkpoint, `width` per line. An empty file has no lines, as in Kafka.

    Errors  ValueError if the text is malformed
    """
    lines = text.splitlines()
    if lines and lines[0] != "0":
        raise ValueError(f"version {lines[0]!r}, expected 0")
    if len(lines) < 2:
        return []
    if not text.endswith("\n"):
        raise ValueError("the last line is cut short")
    entries = []
    for line in lines[2:]:
        words = line.split(" ")
        if len(words) != width:
            raise ValueError(f"line {line!r}")
        entries.append(words)
    if len(entries) != parse_number(lines[1]):
        raise ValueError(f"{lines[1]} entries expected, {len(entries)} found")
    return entries


def parse_number(word: str, *, bits: int = 64) -> int:
    """A decimal number that fits into a signed integer of this size; ValueError if it is none.

    Stricter than int(), which accepts numbers of any size, underscores and other digits: a number that does not fit
    would stop the broker when it is written or sent.
    """
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise ValueError(f"{word[:_MOST_DIGITS]!r} is not a number")
    value = int(word)
    if not -1 << (bits - 1) <= value < 1 << (bits - 1):
        raise ValueError(f"{word} exceeds {bits} bits")
    return value


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The text of an offset checkpoint: `topic partition offset` lines."""
    return format_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse the text of an offset checkpoint; ValueError if malformed."""
    return {
        (topic, parse_number(partition, bits=32)): parse_number(offset)
        for topic, partition, offset in parse_lines(text, 3)
    }


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint file, none if it does not exist; ValueError if it is malformed."""
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return {}
    try:
        return parse_offsets(data.decode())
    except ValueError as error:
        raise ValueError(f"{path} is malformed: {error}") from error
