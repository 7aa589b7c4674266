"""A directory as the tier: the storage plug-in that needs only a file system.

    <dir>/orders-kS2mDpo7RkS0cUkCAYyBDA/3/00000000000000000042-Pu5u8wLPTpiyKGBvGcRVHA.log
                                          00000000000000000042-Pu5u8wLPTpiyKGBvGcRVHA.index
                                          ... .timeindex .snapshot .leader-epoch-checkpoint [.txnindex]
                                          00000000000000000042-Pu5u8wLPTpiyKGBvGcRVHA.manifest.json

A copy writes `<name>.tmp` files, syncs each, reads each back and compares size and CRC-32C with what was sent. Then it
renames the files, syncs the directory, and writes the manifest in the same way. A manifest therefore proves that the
segment was complete. A failed copy removes its files. Renamed files may stay if the disk fails or the process dies;
then `copying` deletes them. A deletion removes temporary files first, then the manifest, then the rest, and removes
empty directories.

Files are moved in pieces and synced in steps, so a large segment never causes a flood of dirty pages that delays
appends.

Source  `kbroker.tiered.layout` for names and manifest
"""

from __future__ import annotations

import errno
import posixpath
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final, cast
from uuid import UUID
from weakref import WeakValueDictionary

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.ports import Disk, Runner, run_here
from kbroker.storage.checkpoint import TEMPORARY_SUFFIX, read_file
from kbroker.tiered.api import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoredObject,
    StoreMisconfigured,
)
from kbroker.tiered.layout import (
    KINDS,
    MANIFEST,
    PROBE,
    SEGMENT,
    Manifest,
    StoredFile,
    kind_of,
    object_name,
    partition_prefix,
    sources,
    stored_object,
)
from kbroker.tiered.moving import move_files, publish_files, unlink_files
from kbroker.tiered.streams import FileStream
from wire.crc32c import crc32c

KNOWN_KEYS: Final = frozenset({"dir", "log.dir", "broker.id", "cluster.id"})
DEFAULT_SUFFIX: Final = "-tier"
"""Without `dir` the tier is a sibling of the data directory: its name with this suffix."""
INSIDE: Final = "tier"
"""The only allowed name inside the data directory, for data volumes; Apache Kafka would refuse to start there."""

_PASSING: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ETIMEDOUT,
        errno.ESTALE,  # the last four: a file server does not answer, or was restarted
    }
)


class LocalRemoteStorage:
    """A RemoteStorageManager over a directory, also a listing and a limited one; see the module's docstring.

    Shape  `disk` is for tests; `run` moves files, perhaps in another process; settings: `dir`, by default
           `<log.dir>-tier`
    Units  copies leave `floor_bytes` free if the tier and the data directory share a file system
    """

    def __init__(self, disk: Disk | None = None, *, run: Runner = run_here, floor_bytes: int = 0) -> None:
        self._disk: Disk = RealDisk() if disk is None else disk
        self._floor_bytes = floor_bytes
        self._data = ""
        self._under_way_bytes = 0  # of running copies; partly written, so the free space is underestimated
        self._run = run
        self._root = ""
        self._cluster_id = self._broker_id = ""
        self._names = threading.Lock()  # held while directories are made or removed
        self._probing = threading.Lock()
        self._durable: set[str] = set()  # directories whose own names have been synced
        self._was_there = False  # whether the root was seen; before that it may be created, and has nothing to delete
        self._guard = threading.Lock()
        # The lock of a segment exists while a thread holds it or waits for it.
        self._in_use: WeakValueDictionary[UUID, threading.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"LocalRemoteStorage({self._root!r})"

    def configure(self, configs: Mapping[str, str]) -> None:
        """Errors: ValueError."""
        unknown = sorted(set(configs) - KNOWN_KEYS)
        if unknown:
            raise ValueError(f"rsm.config.{unknown[0]} is not a setting of the directory plug-in (rsm.config.dir is)")
        data = posixpath.normpath(configs["log.dir"]) if configs.get("log.dir") else ""
        root = configs.get("dir") or (data + DEFAULT_SUFFIX if data else "")
        if not root:
            raise ValueError("rsm.config.dir, the directory of the tier, is missing")
        self._root = posixpath.normpath(root)
        self._data = data
        if data and self._root != f"{data}/{INSIDE}" and (self._root + "/").startswith(data + "/"):
            raise ValueError(
                f"rsm.config.dir={root} is in the data directory {data}, which may hold only logs and {data}/{INSIDE}"
            )
        self._cluster_id, self._broker_id = configs.get("cluster.id", ""), configs.get("broker.id", "")

    def check_store(self) -> None:
        """See CheckedRemoteStorageManager. The first copy creates a missing directory."""
        try:
            place = self._root if self._disk.exists(self._root) else posixpath.dirname(self._root) or "."
            self._disk.list(place)
        except NotADirectoryError as error:
            raise StoreMisconfigured(f"rsm.config.dir: {place} is not a directory") from error
        except OSError as error:
            raise RetriableRemoteStorageError(f"rsm.config.dir: cannot use {place}: {error.strerror}") from error

    def check_writes(self) -> None:
        """See CheckedRemoteStorageManager. Before the first copy there is no directory to write to, and no check."""
        path = f"{self._root}/{PROBE}-{self._broker_id}{TEMPORARY_SUFFIX}"
        try:
            if not self._disk.exists(self._root):
                return
            with self._probing:  # topics may be made at the same time
                self._disk.open(path, create=True).close()
                self._disk.unlink(path)
        except OSError as error:
            raise RetriableRemoteStorageError(
                f"rsm.config.dir: cannot write to {self._root}: {error.strerror}"
            ) from error

    def close(self) -> None:
        """Nothing to close."""

    # --- copying ------------------------------------------------------------------------------------------------------

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """See RemoteStorageManager. There are no custom metadata: names and manifest are sufficient."""
        try:
            with self._alone_with(metadata):
                self._copy(metadata, sources(data))
        except OSError as error:
            raise _classified(error, f"copying {_describe(metadata)}") from error
        return None

    def _copy(self, metadata: RemoteLogSegmentMetadata, sources: Mapping[str, str | bytes]) -> None:
        temporary = {kind: self._path(metadata, kind) + TEMPORARY_SUFFIX for kind in [*sources, MANIFEST]}
        try:
            with self._names:
                self._make_directories(metadata)
                self._expect_room(metadata.segment_size_in_bytes)
                # The file makes the directory non-empty, so a concurrent deletion does not remove it.
                self._disk.open(temporary[SEGMENT], create=True).close()
                self._under_way_bytes += metadata.segment_size_in_bytes
            try:
                self._store(metadata, sources, temporary)
            finally:
                with self._names:
                    self._under_way_bytes -= metadata.segment_size_in_bytes
        except (OSError, RemoteStorageError):
            for path in temporary.values():
                with suppress(OSError):
                    self._disk.unlink(path)
            with suppress(OSError):
                self._remove_empty_directories(metadata)
            raise

    def _expect_root(self, what: str) -> None:
        """Check that the root exists: it may be temporarily unmounted. Errors: StoreMisconfigured, OSError."""
        if not self._disk.exists(self._root):
            raise StoreMisconfigured(f"{what}: {self._root} (rsm.config.dir) does not exist; is it mounted?")

    def expect_room(self, size_in_bytes: int) -> None:
        """See LimitedRemoteStorageManager."""
        self._expect_room(size_in_bytes)

    def _expect_room(self, size_in_bytes: int) -> None:
        """Check that a copy leaves the floor free: other programs write to this disk too."""
        disk, place = self._disk, self._root
        try:
            while not disk.exists(place):
                place = posixpath.dirname(place) or "."
            # Some file systems do not report their size.
            if not disk.total_bytes(place):
                return
            is_shared = bool(self._data) and disk.exists(self._data) and disk.device(place) == disk.device(self._data)
            kept = self._floor_bytes if is_shared else 0
            free = disk.free_bytes(place) - self._under_way_bytes
        except OSError as error:
            raise _classified(error, f"looking at {self._root}") from error
        if free - size_in_bytes >= kept:
            return
        message = f"{self._root} has no room for a segment of {size_in_bytes} bytes"
        if kept:
            message += f": it shares a file system with {self._data}, where kbroker.min.free.bytes={kept} stay free"
        raise RetriableRemoteStorageError(message)

    def _store(
        self, metadata: RemoteLogSegmentMetadata, sources: Mapping[str, str | bytes], paths: Mapping[str, str]
    ) -> None:
        """Write the files and the manifest, make them durable, compare them with the sent data, and publish them."""
        for path in paths.values():
            self._disk.open(path, create=True).close()
        moved = self._run(move_files, self._disk, {paths[kind]: source for kind, source in sources.items()})
        sent = {kind: StoredFile(*moved[paths[kind]]) for kind in sources}
        if sent[SEGMENT].size != metadata.segment_size_in_bytes:
            raise RemoteStorageError(
                f"{_describe(metadata)} has {sent[SEGMENT].size} bytes, not {metadata.segment_size_in_bytes}"
            )
        manifest = Manifest(metadata, self._cluster_id, sent)
        moved |= move_files(self._disk, {paths[MANIFEST]: manifest.to_bytes()})
        kinds = [MANIFEST, *(kind for kind in KINDS if kind not in paths)]
        replaced = [self._path(metadata, kind) for kind in kinds]
        names = [(paths[kind], self._path(metadata, kind)) for kind in [*sources, MANIFEST]]
        # Not repeatable: after a failed sync another sync would succeed without making anything durable.
        self._run(publish_files, self._disk, self._directory(metadata), moved, names, replaced, may_repeat=False)

    def _make_directories(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Create missing directories from the root down, and make their names durable. The name of an existing
        directory may not be durable either, so each directory is synced once.
        """
        directory = self._directory(metadata)
        if self._was_there:
            self._expect_root(f"copying {_describe(metadata)}")
        for path in (self._root, posixpath.dirname(directory), directory):
            if path in self._durable:
                continue
            with suppress(FileExistsError):
                self._disk.make_directory(path)
            self._disk.sync_directory(posixpath.dirname(path) or ".")
            self._durable.add(path)
        self._was_there = True

    # --- reading ------------------------------------------------------------------------------------------------------

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        """See RemoteStorageManager. A deletion does not affect open streams."""
        size = metadata.segment_size_in_bytes
        end = size if end_position is None else min(end_position + 1, size)
        if not 0 <= start_position < end:
            raise ValueError(f"no bytes from {start_position} to {end_position} in a segment of {size}")
        what = f"reading {_describe(metadata)}"
        try:
            file = self._disk.open(self._path(metadata, SEGMENT), writable=False)
        except OSError as error:
            raise self._not_read(error, what) from error
        self._was_there = True
        return cast(BinaryIO, FileStream(file, start_position, end, lambda error: _classified(error, what)))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """See RemoteStorageManager. Also RemoteStorageError if an index does not match the manifest."""
        kind = kind_of(index_type)
        what = f"reading the {kind} of {_describe(metadata)}"
        try:
            data = read_file(self._disk, self._path(metadata, kind))
        except OSError as error:
            raise self._not_read(error, what) from error
        self._was_there = True
        expected = self._manifest_entry(metadata, kind)
        if expected is not None and expected != StoredFile(len(data), crc32c(data)):
            raise RemoteStorageError(f"{what}: it is damaged")
        return data

    def _not_read(self, error: OSError, what: str) -> RemoteStorageError:
        if not isinstance(error, FileNotFoundError):
            return _classified(error, what)
        with suppress(OSError):
            self._expect_root(what)
        return RemoteResourceNotFound(f"{what}: {error.strerror}")

    def _manifest_entry(self, metadata: RemoteLogSegmentMetadata, kind: str) -> StoredFile | None:
        """The manifest's entry of a file; None if the manifest is missing, damaged or wrong: data come first."""
        with suppress(OSError, RemoteStorageError):
            data = read_file(self._disk, self._path(metadata, MANIFEST))
            manifest = Manifest.parse_named(data, object_name(metadata, MANIFEST))
            return manifest.files.get(kind)
        return None

    # --- deleting and listing -----------------------------------------------------------------------------------------

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """See RemoteStorageManager."""
        try:
            with self._alone_with(metadata):
                if self._was_there:
                    self._expect_root(f"deleting {_describe(metadata)}")
                paths = [self._path(metadata, kind) for kind in reversed(KINDS)]
                # Temporary files go first: a copy that is about to rename one then fails.
                unlink_files(self._disk, [path + suffix for suffix in (TEMPORARY_SUFFIX, "") for path in paths])
                # Also if nothing was there: an earlier deletion may have ended before this line.
                with suppress(FileNotFoundError):
                    self._disk.sync_directory(self._directory(metadata))
                self._remove_empty_directories(metadata)
        except OSError as error:
            raise _classified(error, f"deleting {_describe(metadata)}") from error

    def _remove_empty_directories(self, metadata: RemoteLogSegmentMetadata) -> None:
        directory = self._directory(metadata)
        with self._names:
            for path in (directory, posixpath.dirname(directory)):
                try:
                    self._disk.remove_directory(path)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    return
                self._durable.discard(path)

    def list_objects(self) -> Iterator[StoredObject]:
        """See ListingRemoteStorageManager."""
        try:
            for name in self._walk(""):
                path = f"{self._root}/{name}"
                try:
                    size, modified_ms = self._disk.size(path), self._disk.modified_ms(path)
                except FileNotFoundError:
                    continue
                known = stored_object(name.removesuffix(TEMPORARY_SUFFIX), size, modified_ms)
                if known.name != name and known.segment_id is not None:
                    known = known._replace(index_type=None, is_auxiliary=True)
                yield known._replace(name=name)
        except OSError as error:
            raise _classified(error, f"listing {self._root}") from error

    def read_manifest(self, name: str) -> bytes:
        """See DescribedRemoteStorageManager."""
        try:
            return read_file(self._disk, f"{self._root}/{name}")
        except OSError as error:
            raise self._not_read(error, f"reading {name}") from error

    def _walk(self, prefix: str) -> Iterator[str]:
        """The names of all files below the root; each directory is sorted."""
        try:
            names = self._disk.list(f"{self._root}/{prefix}")
        except NotADirectoryError:
            yield prefix.rstrip("/")
            return
        except FileNotFoundError:
            return
        for name in names:
            yield from self._walk(f"{prefix}{name}/")

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _directory(self, metadata: RemoteLogSegmentMetadata) -> str:
        return f"{self._root}/{partition_prefix(metadata.remote_log_segment_id.topic_id_partition)}"

    def _path(self, metadata: RemoteLogSegmentMetadata, kind: str) -> str:
        return f"{self._root}/{object_name(metadata, kind)}"

    @contextmanager
    def _alone_with(self, metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
        """Hold the lock of a segment, for writers."""
        with self._guard:
            lock = self._in_use.setdefault(metadata.remote_log_segment_id.id, threading.Lock())
        with lock:
            yield


def _describe(metadata: RemoteLogSegmentMetadata) -> str:
    segment = metadata.remote_log_segment_id
    return f"segment {segment.id} of {segment.topic_id_partition.name} at offset {metadata.start_offset}"


def _classified(error: OSError, doing: str) -> RemoteStorageError:
    """Convert a file system error to a tier error."""
    kind = RetriableRemoteStorageError if error.errno in _PASSING else RemoteStorageError
    return kind(f"{doing}: {error.strerror or error}")
