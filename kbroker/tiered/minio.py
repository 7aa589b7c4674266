"""The storage manager for MinIO and other S3 stores.

    <prefix>/<names of kbroker.tiered.layout>

A copy stores the indexes and the segment in parallel, then the manifest. So if the manifest exists, all objects that it
names exist. Each object is sent with its CRC-32C, which the store verifies. An object counts as stored only after a
HEAD request has confirmed its size and checksum: a lost reply or a false success leads to a retry and not to data loss.
Large segments are sent in parts; nothing is held in memory as a whole.

A read requests one range and checks that the answer is exactly this range. If the stream breaks, another request
continues from there.

The first call, which is `check_store` at the start of a broker, connects. So a broker starts while the store is down.

Known limits: MinIO ignores lifecycle rules that abort old uploads, and lists uploads only by their exact name, so a
deletion lists them by name. Object listings are not authoritative. In a versioned bucket a deletion frees no space.

Source  KIP-405; the S3 API
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import BinaryIO, cast

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.env import RealEnv
from kbroker.runtime.ports import Disk, File
from kbroker.tiered.api import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
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
    object_name,
    sources,
    stored_size,
)
from kbroker.tiered.minio_connections import Body
from kbroker.tiered.minio_credentials import KeySource
from kbroker.tiered.minio_objects import Objects
from kbroker.tiered.minio_settings import MinioSettings


class MinioRemoteStorage:
    """See `kbroker.tiered.api.ListingRemoteStorageManager`, and the settings in `kbroker.tiered.minio_settings`."""

    def __init__(
        self,
        *,
        disk: Disk | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], int] = RealEnv.now_ns,
        wall_clock: Callable[[], int] = RealEnv.timestamp_ms,
    ) -> None:
        self._disk, self._clock, self._wall_clock = disk or RealDisk(), clock, wall_clock
        self._environment = os.environ if environment is None else environment
        self._lock = threading.Lock()
        self._probing = threading.Lock()
        self._settings: MinioSettings | None = None
        self._keys: KeySource | None = None
        self._cluster_id = self._broker_id = ""
        self._made: Objects | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"MinioRemoteStorage({self._settings!r})"

    def configure(self, configs: Mapping[str, str]) -> None:
        settings = MinioSettings.parse(configs)
        self._keys = KeySource(settings, environment=self._environment, disk=self._disk)
        self._settings = settings
        self._cluster_id, self._broker_id = configs.get("cluster.id", ""), configs.get("broker.id", "")
        self._threads = ThreadPoolExecutor(settings.parallel_uploads, thread_name_prefix="kbroker-minio")

    def check_store(self) -> None:
        """See CheckedRemoteStorageManager."""
        try:
            self._store().check()
        except StoreMisconfigured:
            raise
        except RetriableRemoteStorageError as error:
            raise RetriableRemoteStorageError(f"{error} (rsm.config.endpoint)") from error

    def check_writes(self) -> None:
        """See CheckedRemoteStorageManager."""
        objects, name = self._store(), f"{PROBE}-{self._broker_id}"
        deadline = objects.deadline("probing the store")
        try:
            with self._probing:  # topics may be made at the same time
                objects.put(name, PROBE.encode(), deadline)
                if objects.read_whole(name) != PROBE.encode():
                    raise RemoteStorageError(f"{name} differs from what was written")
                objects.delete([name], deadline)
        except StoreMisconfigured:
            raise
        except RemoteStorageError as error:
            raise RetriableRemoteStorageError(f"{error} (rsm.config.bucket and the keys)") from error

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        opened: dict[str, File | bytes] = {}
        try:
            for kind, source in sources(data).items():
                opened[kind] = source if isinstance(source, bytes) else self._disk.open(source, writable=False)
            self._copy(metadata, opened)
        except OSError as error:
            raise RemoteStorageError(f"A file of the segment cannot be read: {error}") from error
        finally:
            for file in opened.values():
                if not isinstance(file, bytes):
                    file.close()
        return None

    def _copy(self, metadata: RemoteLogSegmentMetadata, files: dict[str, File | bytes]) -> None:
        objects = self._store()
        segment, name = files[SEGMENT], object_name(metadata, SEGMENT)
        assert not isinstance(segment, bytes)
        size = segment.size()
        deadline = objects.deadline(f"copying {name}", size=size)
        upload = None
        steps: list[Callable[[], object]] = []
        if size > objects.settings.part_size(size):
            files = {kind: source for kind, source in files.items() if kind != SEGMENT}
            upload = objects.upload(name, segment, deadline)
            steps = [partial(upload.send, part) for part in upload.parts]
        stored: dict[str, StoredFile] = {}

        def put(kind: str, source: File | bytes) -> None:
            body = objects.put(object_name(metadata, kind), source, deadline)
            stored[kind] = StoredFile(len(body), body.crc32c)

        # Remove objects of an earlier copy with this id that this copy does not replace.
        outdated = [object_name(metadata, kind) for kind in KINDS if kind not in files and kind != SEGMENT]
        steps.append(partial(objects.delete, outdated, deadline))
        self._all([*steps, *(partial(put, kind, source) for kind, source in files.items())])
        if upload is not None:
            upload.complete()
            stored[SEGMENT] = StoredFile(size, Body(segment).crc32c)
        manifest = Manifest(metadata, self._cluster_id, {kind: stored[kind] for kind in KINDS if kind in stored})
        objects.put(object_name(metadata, MANIFEST), manifest.to_bytes(), deadline)

    def _all(self, steps: Sequence[Callable[[], object]]) -> None:
        """Run all steps in parallel. After the first error, pending steps are cancelled and running ones awaited."""
        with self._lock:
            if self._closed:
                raise RemoteStorageError("closed")
            assert self._threads is not None, "configure comes first"
            running = [self._threads.submit(step) for step in steps]
        ended, others = wait(running, return_when=FIRST_EXCEPTION)
        for future in others:
            future.cancel()
        wait(others)
        for future in [*ended, *others]:
            if future.cancelled():
                continue
            if (error := future.exception()) is not None:
                raise error
        if others:
            raise RemoteStorageError("closed")

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        size = metadata.segment_size_in_bytes
        end = size - 1 if end_position is None else min(end_position, size - 1)
        if not 0 <= start_position <= end:
            raise ValueError(f"bytes {start_position} to {end_position} of a segment of {size}")
        name, stored = object_name(metadata, SEGMENT), stored_size(metadata)
        return cast(BinaryIO, self._store().read(name, start_position, end, stored))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        manifest_name = object_name(metadata, MANIFEST)

        def stored(manifest: bytes) -> StoredFile | None:
            with suppress(RemoteStorageError):
                return Manifest.parse_named(manifest, manifest_name).files.get(index_type.value)
            return None

        return self._store().read_whole(object_name(metadata, index_type.value), (manifest_name, stored))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        objects, name = self._store(), object_name(metadata, SEGMENT)
        deadline = objects.deadline(f"deleting {name}")
        objects.abort_uploads(name, deadline)
        objects.delete([object_name(metadata, kind) for kind in KINDS], deadline)

    def list_objects(self) -> Iterator[StoredObject]:
        return self._store().listed()

    def read_manifest(self, name: str) -> bytes:
        return self._store().read_whole(name)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            objects, threads = self._made, self._threads
        if objects is not None:
            objects.close()
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)

    def _store(self) -> Objects:
        """The S3 client, created on first use."""
        assert self._settings is not None, "configure comes first"
        assert self._keys is not None
        with self._lock:
            if self._closed:
                raise RemoteStorageError("closed")
            if self._made is None:
                self._made = Objects(self._settings, self._keys, clock=self._clock, wall_clock=self._wall_clock)
            return self._made
