"""Which partitions have, or may have, something in the tier: a small file in the data directory.

A deletion has to find what a deleted topic left in the tier, also when the broker died between the two, and when its
topic, its log and its settings are long gone. So a partition is written down, durably, before anything of it is copied,
and taken out when nothing of it is left. That asks nothing of the metadata manager, which may be anybody's.

Blocking, through the injected disk. One writer at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import read_file, write_atomically
from kbroker.tiered.api import TopicIdPartition
from wire.types import uuid_from_text, uuid_to_text

FILE_NAME: Final = "remote-partitions"


def format_partitions(partitions: Iterable[TopicIdPartition]) -> str:
    """The text of the file: version 0, the count, then `topic_id partition topic` lines."""
    lines = [f"{uuid_to_text(one.topic_id)} {one.partition} {one.topic}" for one in sorted(partitions)]
    return "\n".join(["0", str(len(lines)), *lines]) + "\n"


def parse_partitions(text: str) -> frozenset[TopicIdPartition]:
    """The partitions in the text; ValueError if it is not such a text."""
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != "0" or not text.endswith("\n"):
        raise ValueError("it does not begin with version 0 and a count, or is cut short")
    found = []
    for line in lines[2:]:
        words = line.split(" ")
        if len(words) != 3:
            raise ValueError(f"line {line!r}")
        found.append(TopicIdPartition(uuid_from_text(words[0]), words[2], int(words[1])))
    if len(found) != int(lines[1]):
        raise ValueError(f"{lines[1]} entries announced, {len(found)} found")
    return frozenset(found)


class RemotePartitions:
    """The file and what it says.

    Errors  OSError from everything that touches the disk; ValueError from `load` where the file is none of ours
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.path = f"{directory}/{FILE_NAME}"
        self.entries: frozenset[TopicIdPartition] = frozenset()

    def load(self) -> None:
        """Read the file; a missing one is empty."""
        try:
            data = read_file(self._disk, self.path)
        except FileNotFoundError:
            return
        self.entries = parse_partitions(data.decode())

    def store(self, entries: frozenset[TopicIdPartition]) -> None:
        """Replace the file, durably."""
        if entries != self.entries:
            write_atomically(self._disk, self.path, format_partitions(entries).encode())
            self.entries = entries
