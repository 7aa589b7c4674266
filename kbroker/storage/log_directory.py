"""One log directory: its identity, its lock, its checkpoints, and one directory for each partition.

    meta.properties                      the cluster and node that own the directory
    .lock                                locked while a broker uses the directory
    .kafka_cleanshutdown                 written last at shutdown, removed first at startup
    recovery-point-offset-checkpoint     the offset up to which each log is durable
    log-start-offset-checkpoint          start offsets that the first segment's name does not give; all of tiered logs
    replication-offset-checkpoint        the high watermarks
    kbroker.reserve                      disk space for deleting topics when the disk is full (see reserve.py)
    <topic>-<partition>/                 a log, with partition.metadata (the topic's id) and leader-epoch-checkpoint
    <topic>-<partition>.<32 hex>-delete/ a log that is being deleted
    <topic>-<partition>.<32 hex>-stray/  a log that the metadata does not list; it is kept and never loaded

A start removes directories that are being deleted before it writes anything, because they may be what fills the disk.

All functions block. A malformed checkpoint does not make the directory unusable: recovery points and log starts then
count as 0, which lengthens recovery, and high watermarks count as unknown and rise from the start again.

The node opens the directory without `begin` and calls `begin` once the metadata is complete. So a refused start leaves
the directory unchanged.

Source  LogManager, LocalLog, MetaProperties, PartitionMetadataFile, CleanShutdownFileHandler of Apache Kafka 4.3.1
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from kbroker.runtime.ports import Disk, File
from kbroker.storage.checkpoint import (
    TopicPartition,
    read_file,
    write_atomically,
)
from kbroker.storage.directory_names import (
    CLEAN_SHUTDOWN,
    DELETED,
    LOCK,
    PARTITION,
    STRAY,
    deleted_name,
    is_trace_of_use,
    stray_name,
)
from kbroker.storage.doomed import Doomed
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.files import DEFAULT_LIMIT, FilePool
from kbroker.storage.formatting import identify, make_first_reserve, make_with_parents
from kbroker.storage.identity import (
    META_PROPERTIES,
    PARTITION_METADATA,
    DirectoryIdentity,
    format_partition_metadata,
    parse_partition_metadata,
)
from kbroker.storage.log import Log, ignore, no_jitter
from kbroker.storage.log_config import LogConfig
from kbroker.storage.offset_checkpoints import OffsetCheckpoints
from kbroker.storage.plans import DirectoryState
from kbroker.storage.recovering import RecoveredLog
from kbroker.storage.reserve import SpaceReserve
from wire.errors import ErrorCode, KafkaError
from wire.types import uuid_to_text


class LogDirectory:
    """See the module docstring. Use `LogDirectory.open` to create one.

    Shape  logs maps (topic, partition) to the open logs
    Note   was_clean: the last shutdown was clean. previous_broker_epoch is the epoch in its marker, -1 if absent.
           was_used: a broker has run here, so a metadata log must exist. stray_count is the number of stray directories
    """

    def __init__(
        self,
        path: str,
        *,
        files: FilePool,
        lock: File,
        identity: DirectoryIdentity,
        state: DirectoryState,
        reserve: SpaceReserve,
        report: Callable[[str], None],
        jitter_ms: Callable[[int], int],
    ) -> None:
        self.path = path
        self.files = files
        self.disk = files.disk
        self.identity = identity
        self.state = state
        self.reserve = reserve
        self.logs: dict[TopicPartition, Log] = {}
        self.was_clean = False
        self.previous_broker_epoch = -1
        self.was_used = False
        self.stray_count = 0
        self.checkpoints = OffsetCheckpoints(
            path, self.disk, self.logs, reserve=reserve, state=state, report=report, failure=self._failure
        )
        self.recovered: dict[TopicPartition, RecoveredLog] = {}
        self._doomed = Doomed()
        self._has_unsynced_names = False
        self._lock = lock
        self._report = report
        self._jitter_ms = jitter_ms

    @classmethod
    def open(
        cls,
        path: str,
        *,
        disk: Disk,
        node_id: int,
        cluster_id: str | None = None,
        new_cluster_id: str | None = None,
        new_uuid: Callable[[], uuid.UUID],
        open_files_limit: int = DEFAULT_LIMIT,
        reserve_bytes: int = 0,
        on_failure: Callable[[OSError], None] | None = None,
        report: Callable[[str], None] = ignore,
        jitter_ms: Callable[[int], int] = no_jitter,
        begins: bool = True,
    ) -> LogDirectory:
        """Lock the directory for this node and format it if it is new. Without `begins` the caller must call `begin`
        before anything else is written.

        If `cluster_id` is None, the stored one is accepted, and a new directory gets `new_cluster_id` or a random one.
        `reserve_bytes` stay allocated for writes on a full disk; a new directory without room for them is refused.
        Errors  KafkaError: KAFKA_STORAGE_ERROR if another broker runs here or the disk fails,
                INCONSISTENT_CLUSTER_ID, INVALID_CONFIG if it belongs to another node or meta.properties cannot be read
        """
        try:
            make_with_parents(disk, path)
            is_new = not disk.exists(f"{path}/{META_PROPERTIES}")
            if is_new:
                # New, or left by an interrupted first start. Its own name has to be durable before its contents.
                sync_names(disk, path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))
            lock = disk.lock(f"{path}/{LOCK}")
        except BlockingIOError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"another broker is running on {path}") from error
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot use {path}: {error}") from error
        reserve = SpaceReserve(disk, path, reserve_bytes)
        try:
            if is_new:
                make_first_reserve(reserve, disk, path)
            new_id = new_cluster_id or uuid_to_text(new_uuid())
            identity = identify(
                disk, path, node_id=node_id, cluster_id=cluster_id, new_cluster_id=new_id, directory_id=new_uuid()
            )
            directory = cls(
                path,
                files=FilePool(disk, open_files_limit),
                lock=lock,
                identity=identity,
                state=DirectoryState(on_failure),
                reserve=reserve,
                report=report,
                jitter_ms=jitter_ms,
            )
            directory.checkpoints.read()
            directory._read_clean_shutdown()
            # After an unclean shutdown the names of new partitions may not be durable yet.
            directory._has_unsynced_names = not directory.was_clean
            names = disk.list(path)
            directory._doomed = Doomed((0, name) for name in names if DELETED.fullmatch(name))
            directory.stray_count = sum(STRAY.fullmatch(name) is not None for name in names)
            directory.was_used = any(is_trace_of_use(name) for name in names)
            if begins:
                directory.begin()
        except OSError as error:
            lock.close()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot use {path}: {error}") from error
        except KafkaError:
            lock.close()
            raise
        return directory

    def begin(self) -> None:
        """Remove directories that are being deleted, allocate the reserve, and remove the clean-shutdown marker.

        From here on, any crash counts as an unclean shutdown.

        Errors  OSError
        """
        self._remove_deleted_directories()
        self._make_reserve()
        if self.was_clean:
            self.disk.unlink(f"{self.path}/{CLEAN_SHUTDOWN}")
            sync_names(self.disk, self.path)

    def _remove_deleted_directories(self) -> None:
        """Remove directories that an earlier process renamed for deletion; failures are retried later."""
        try:
            self._doomed.remove_due(0, self._remove_directory)
        except OSError as error:
            self._report(f"cannot remove a deleted partition in {self.path}: {error}")

    def _make_reserve(self) -> None:
        try:
            self.reserve.make()
        except OSError as error:
            held, size = self.reserve.held_bytes, self.reserve.size_bytes
            self._report(
                f"{self.path} reserves only {held} of {size} bytes (kbroker.metadata.reserve.bytes) for deleting "
                f"topics on a full disk until more space is free: {error}"
            )

    def _read_clean_shutdown(self) -> None:
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        try:
            text = read_file(self.disk, path)
        except FileNotFoundError:
            return
        self.was_clean = True
        with suppress(ValueError, KeyError, TypeError):
            self.previous_broker_epoch = int(json.loads(text)["brokerEpoch"])

    # --- partitions ---

    def log_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/{topic}-{partition}"

    def stored_partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here, whether open or not."""
        found = []
        for name in self.disk.list(self.path):
            match = PARTITION.fullmatch(name)
            if match is not None:
                found.append((match[1], int(match[2])))
        return found

    def stored_topic_id(self, topic: str, partition: int) -> uuid.UUID | None:
        """The topic id in the partition's directory; None if it is missing or malformed."""
        path = f"{self.log_path(topic, partition)}/{PARTITION_METADATA}"
        try:
            return parse_partition_metadata(read_file(self.disk, path).decode())
        except FileNotFoundError:
            return None
        except ValueError as error:
            self._report(f"{path} is ignored: {error}")
            return None

    def open_log(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: uuid.UUID,
        config: LogConfig,
        timestamp_ms: int,
        syncs_name: bool = True,
    ) -> Log:
        """Open the stored log of a partition, recovering it if necessary, or create a new one.

        A caller that opens many logs passes `syncs_name=False` and calls `sync_partition_names` before any append.
        Errors  KAFKA_STORAGE_ERROR; INCONSISTENT_TOPIC_ID if the stored log belongs to another topic of that name
        """
        key = topic, partition
        found = self.logs.get(key)
        if found is not None:
            return found
        path = self.log_path(topic, partition)
        try:
            is_new = not self.disk.exists(path)
            stored_id = topic_id if is_new else self.stored_topic_id(topic, partition)
            if is_new:
                self.disk.make_directory(path)
                self._has_unsynced_names = True
            if is_new or stored_id is None:
                metadata = format_partition_metadata(topic_id).encode()
                write_atomically(self.disk, f"{path}/{PARTITION_METADATA}", metadata, sync=not is_new)
        except OSError as error:
            raise self._failure(f"make {path}", error) from error
        if stored_id not in (None, topic_id):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{path} belongs to topic {stored_id}, not {topic_id}")
        log = Log(
            path,
            disk=self.disk,
            config=config,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            clean_shutdown=self.was_clean or is_new,
            recovery_point=0 if is_new else self.checkpoints.recovery_points.get(key, 0),
            log_start_offset=None if is_new else self.checkpoints.log_starts.get(key),
            timestamp_ms=timestamp_ms,
            pool=self.files,
            state=self.state,
            jitter_ms=self._jitter_ms,
            report=self._report,
            recovered=self.recovered.pop(key, None),
        )
        if not is_new and self.was_clean:
            # After an unclean shutdown the checkpoint that was read may not be durable.
            log.persisted_log_start_offset = self.checkpoints.log_starts.get(key)
        if syncs_name:
            self.sync_partition_names()
        self.logs[key] = log
        return log

    def sync_partition_names(self) -> None:
        """Make the creation and renaming of partition directories durable. Errors: KAFKA_STORAGE_ERROR."""
        if self._has_unsynced_names:
            self._has_unsynced_names = False
            try:
                sync_names(self.disk, self.path)
            except OSError as error:
                raise self._failure("sync the partition directories", error) from error

    def delete_log(
        self,
        topic: str,
        partition: int,
        *,
        unique_id: uuid.UUID,
        now_ms: int,
        delay_ms: int = 60_000,
        syncs_name: bool = True,
    ) -> None:
        """Close a partition, rename its directory at once, and let `remove_doomed` remove it after `delay_ms`.

        A caller that deletes many passes `syncs_name=False` and calls `sync_partition_names` at the end.
        """
        name = deleted_name(topic, partition, unique_id)
        if self._rename(topic, partition, name, self._rename_or_remove):
            self._doomed.add(now_ms + delay_ms, name)
        if syncs_name:
            self.sync_partition_names()

    def set_aside(self, topic: str, partition: int, *, unique_id: uuid.UUID) -> str:
        """Rename a partition's directory to a stray; returns the new name. `sync_partition_names` makes it durable."""
        name = stray_name(topic, partition, unique_id)

        def rename(old: str, new: str) -> None:
            self.reserve.spend_on(lambda: self.disk.rename(old, new), keeps_half=True)

        self.stray_count += self._rename(topic, partition, name, rename)
        return name

    def _rename(self, topic: str, partition: int, name: str, rename: Callable[[str, str], None]) -> bool:
        """Close a partition's log and rename its directory; False if there is no directory."""
        log = self.logs.pop((topic, partition), None)
        path = self.log_path(topic, partition)
        if log is not None:
            log.abandon()
        else:
            self.files.forget_directory(path)
        self.checkpoints.forget((topic, partition))
        try:
            rename(path, f"{self.path}/{name}")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._failure(f"rename {path}", error) from error
        self._has_unsynced_names = True
        return True

    def _rename_or_remove(self, path: str, doomed: str) -> None:
        """Rename a directory. If the disk is full, remove it at once: a longer name may need another block."""
        try:
            self.disk.rename(path, doomed)
        except OSError as error:
            if not lacks_space(error):
                raise
            self._remove_directory(path.rpartition("/")[2])

    def remove_doomed(self, now_ms: int) -> int:
        """Remove the directories whose delay is over and return how many were removed."""
        try:
            return self._doomed.remove_due(now_ms, self._remove_directory)
        except OSError as error:
            raise self._failure("remove deleted partitions", error) from error

    def _remove_directory(self, name: str) -> None:
        path = f"{self.path}/{name}"
        for file_name in self.disk.list(path):
            self.disk.unlink(f"{path}/{file_name}")
        self.disk.remove_directory(path)

    # --- closing ---

    def close_waiting(self, waiting: deque[Log]) -> None:
        """Close logs from a queue until it is empty; several threads may share one queue.

        Errors  KAFKA_STORAGE_ERROR; for a full disk only after all other logs were closed
        """
        full: KafkaError | None = None
        while waiting:
            try:
                log = waiting.popleft()
            except IndexError:
                break  # another thread took the last log
            try:
                self.reserve.spend_on(log.close, keeps_half=True)
            except KafkaError as error:
                if not lacks_space(error):
                    raise
                full = error
        if full is not None:
            raise full

    def close(self, *, broker_epoch: int = -1, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Close every log, write the checkpoints, and write the clean-shutdown marker once all of that is durable.

        On a full disk the shutdown counts as unclean: the next start recovers what could not be written.
        Errors  KAFKA_STORAGE_ERROR
        """
        try:
            if self.state.failure is None:
                self.close_waiting(deque(self.logs.values()))
                self.checkpoints.write_recovery_points()
                self.checkpoints.write_log_starts()
                if high_watermarks is not None:
                    self.checkpoints.write_high_watermarks(high_watermarks)
                marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
                path = f"{self.path}/{CLEAN_SHUTDOWN}"
                self.reserve.spend_on(lambda: write_atomically(self.disk, path, marker), keeps_half=True)
        except (OSError, KafkaError) as error:
            if lacks_space(error) and self.state.failure is None:
                self._report(f"the disk is full, so the next start recovers the logs of {self.path}: {error}")
            elif isinstance(error, OSError):
                raise self._failure(f"close {self.path}", error) from error
            else:
                raise
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release files and lock without writing anything, as in a crash."""
        self.logs.clear()
        self.files.close()
        self._lock.close()

    def check_space(self, floor_bytes: int) -> int:
        """Refuse client appends while less than `floor_bytes` are free, so that reads and deletions keep working. Grows
        the reserve back first. Returns the free bytes.
        """
        try:
            free = self.disk.free_bytes(self.path)
            if self.state.failure is None and self.reserve.held_bytes < self.reserve.size_bytes:
                with suppress(OSError):  # another process took the space
                    self.reserve.grow_back(free)
                free = self.disk.free_bytes(self.path)
        except OSError as error:
            raise self._failure("check the free space", error) from error
        self.state.note_space(free, floor_bytes=floor_bytes)
        return free

    def space(self) -> tuple[int, int]:
        """The total and free bytes of the disk. Blocking. Errors: KAFKA_STORAGE_ERROR."""
        if self.state.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} is offline: {self.state.failure}")
        try:
            return self.disk.total_bytes(self.path), self.disk.free_bytes(self.path)
        except OSError as error:
            raise self._failure("check the free space", error) from error

    def _failure(self, what: str, error: OSError) -> KafkaError:
        self.state.note(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot {what} in {self.path}: {error}")

    def open_logs(self) -> Iterable[Log]:
        """A snapshot of the open logs, so that the caller may wait between two of them."""
        return tuple(self.logs.values())
