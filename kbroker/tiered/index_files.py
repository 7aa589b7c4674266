"""The directory of cached indexes: which files it has, and whether they are intact.

    remote-log-index-cache/42_Pu5u8wLPTpiyKGBvGcRVHA.index      Kafka's names: first offset, segment id
                           42_Pu5u8wLPTpiyKGBvGcRVHA.timeindex
                           42_Pu5u8wLPTpiyKGBvGcRVHA.txnindex   empty if the segment has none
                           42_Pu5u8wLPTpiyKGBvGcRVHA.checksums  kbroker's own: size and CRC-32C of the three

Nothing is synced, because this is a cache: the checksums are written last, and detect damage by a crash or a flipped
bit.

Source  RemoteIndexCache of Apache Kafka 4.3.1
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final
from uuid import UUID

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import TEMPORARY_SUFFIX, read_file
from kbroker.storage.index import CorruptIndex
from kbroker.storage.segment import DELETED_SUFFIX, INDEX_SUFFIX, INDEX_SUFFIXES
from wire.crc32c import crc32c
from wire.types import uuid_from_text, uuid_to_text

CHECKSUMS_SUFFIX: Final = ".checksums"
SUFFIXES: Final = (*INDEX_SUFFIXES, CHECKSUMS_SUFFIX)
_NAME: Final = re.compile(r"(\d{1,19}_[A-Za-z0-9_-]{22})(\.[a-z]+)")


def stem_of(start_offset: int, segment_id: UUID) -> str:
    """The common start of the names of a segment's files."""
    return f"{start_offset}_{uuid_to_text(segment_id)}"


class IndexFiles:
    """See the module's docstring. Blocking; the caller ensures that one thread at a time writes and removes files."""

    def __init__(self, disk: Disk, directory: str, report: Callable[[str], None]) -> None:
        self.directory = directory
        self._disk = disk
        self._report = report

    def find(self) -> list[tuple[UUID, str, int]]:
        """(segment id, stem, size in bytes) of the complete entries, oldest first. Leftovers are removed."""
        if not self._disk.exists(self.directory):
            return []
        suffixes: defaultdict[str, set[str]] = defaultdict(set)
        for name in self._disk.list(self.directory):
            match = _NAME.fullmatch(name)
            if match is not None and match[2] in SUFFIXES:
                suffixes[match[1]].add(match[2])
            elif name.endswith((TEMPORARY_SUFFIX, DELETED_SUFFIX)):
                self._disk.unlink(f"{self.directory}/{name}")
        complete = [stem for stem, present in suffixes.items() if present == set(SUFFIXES)]
        for stem in suffixes.keys() - complete:
            self.remove(stem)
        complete.sort(key=lambda stem: self._disk.modified_ms(self._path(stem, INDEX_SUFFIX)))
        return [(uuid_from_text(stem.partition("_")[2]), stem, self._size(stem)) for stem in complete]

    def read(self, stem: str) -> list[bytes]:
        """The offset, time and transaction index. Errors: OSError; CorruptIndex if the checksums do not match."""
        files = [read_file(self._disk, self._path(stem, suffix)) for suffix in SUFFIXES]
        if files != with_checksums(*files[:-1]):
            raise CorruptIndex("the files are not what was written")
        return files[:-1]

    def write(self, stem: str, files: Sequence[bytes]) -> None:
        """Write the files that `with_checksums` returned. After an OSError none is left."""
        if not self._disk.exists(self.directory):
            self._disk.make_directory(self.directory)
        try:
            for suffix, data in zip(SUFFIXES, files, strict=True):
                with closing(self._disk.open(self._path(stem, suffix), create=True)) as file:
                    file.pwrite(data, 0)
        except OSError:
            self.remove(stem)
            raise

    def remove(self, stem: str) -> None:
        """Remove the checksums first: without them the others are invalid. Failures are reported."""
        for suffix in reversed(SUFFIXES):
            try:
                self._disk.unlink(self._path(stem, suffix))
            except FileNotFoundError:
                pass
            except OSError as error:
                self._report(f"{self._path(stem, suffix)} cannot be removed: {error}")

    def _size(self, stem: str) -> int:
        return sum(self._disk.size(self._path(stem, suffix)) for suffix in SUFFIXES)

    def _path(self, stem: str, suffix: str) -> str:
        return f"{self.directory}/{stem}{suffix}"


def with_checksums(*indexes: bytes) -> list[bytes]:
    """The files of a segment, by SUFFIXES. Checksums: version 0, then one line per index: suffix, size and CRC-32C."""
    lines = [
        f"{suffix[1:]} {len(data)} {crc32c(data):08x}\n" for suffix, data in zip(INDEX_SUFFIXES, indexes, strict=True)
    ]
    return [*indexes, "".join(["0\n", *lines]).encode()]
