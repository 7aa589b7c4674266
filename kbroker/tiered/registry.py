"""A small file in the data directory that lists the partitions that have, or may have, data in the tier.

A deletion has to find the data of a deleted topic even if the broker crashed in between, when the topic, its log and
its settings no longer exist. So the leader writes a partition to this file, durably, before it copies anything of it,
and a follower does so when it finds a finished segment of it in the metadata. A broker removes the entry when nothing
is left in the tier. This does not depend on the metadata manager, which may be a plug-in.

A removed topic is marked. The mark is the proof that its objects may be deleted, and outlives the records of the
cluster's metadata log. It replaces KIP-405's DELETE_PARTITION_MARKED.

All I/O is blocking, through the injected disk. One writer at a time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final
from uuid import UUID

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import parse_number, read_file, write_atomically
from kbroker.tiered.api import TopicIdPartition
from wire.types import uuid_from_text, uuid_to_text

FILE_NAME: Final = "remote-partitions"
_MARK: Final = "removed"


def format_partitions(partitions: Iterable[TopicIdPartition], removed: Container[UUID] = ()) -> str:
    """The text of the file: version 0, the count, then lines of `topic_id partition topic`. The lines of removed topics
    end in ` removed`.
    """
    lines = [
        f"{uuid_to_text(one.topic_id)} {one.partition} {one.topic}{f' {_MARK}' if one.topic_id in removed else ''}"
        for one in sorted(partitions)
    ]
    return "\n".join(["0", str(len(lines)), *lines]) + "\n"


def parse_partitions(text: str) -> tuple[frozenset[TopicIdPartition], frozenset[UUID]]:
    """The partitions in the text and the topics that were removed; ValueError if it is not such a text."""
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != "0" or not text.endswith("\n"):
        raise ValueError("it does not begin with version 0 and a count, or is cut short")
    found, removed = [], set[UUID]()
    for line in lines[2:]:
        words = line.split(" ")
        if len(words) not in (3, 4) or words[3:] not in ([], [_MARK]):
            raise ValueError(f"line {line!r}")
        found.append(TopicIdPartition(uuid_from_text(words[0]), words[2], parse_number(words[1], bits=32)))
        if len(words) == 4:
            removed.add(found[-1].topic_id)
    if len(found) != parse_number(lines[1]):
        raise ValueError(f"{lines[1]} entries announced, {len(found)} found")
    return frozenset(found), frozenset(removed)


class RemotePartitions:
    """The file and its content.

    Shape   removed are the topics of `entries` that are known to have been removed
    Errors  OSError from everything that uses the disk; ValueError from `load` if the file is malformed
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = f"{directory}/{FILE_NAME}"
        self.entries: frozenset[TopicIdPartition] = frozenset()
        self.removed: frozenset[UUID] = frozenset()

    def load(self) -> None:
        """Read the file; a missing file is empty."""
        try:
            data = read_file(self._disk, self.path)
        except FileNotFoundError:
            return
        self.entries, self.removed = parse_partitions(data.decode())

    def store(self, entries: frozenset[TopicIdPartition], removed: frozenset[UUID]) -> None:
        """Replace the file, durably."""
        write_atomically(self._disk, self.path, format_partitions(entries, removed).encode())
        self.entries, self.removed = entries, removed
