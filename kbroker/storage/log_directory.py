"""One log directory: its identity, its lock, its checkpoints, and one directory for each partition.

    meta.properties                      the cluster and node that own the directory
    .lock                                locked while a broker uses the directory
    .kafka_cleanshutdown                 written last at shutdown, removed first at startup
    recovery-point-offset-checkpoint     the offset up to which each log is durable
    log-start-offset-checkpoint          start offsets that the first segment's name does not give; all of tiered logs
    replication-offset-checkpoint        the high watermarks
    cleaner-offset-checkpoint            up to where compacted logs are clean; only if there are any
    kbroker.reserve                      disk space for deleting topics when the disk is full (see reserve.py)
    kbroker.failed                       the directory failed: the next start writes the logs again (see rewriting.py)
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

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import TopicPartition, read_file, write_atomically
from kbroker.storage.directory_names import (
    CLEAN_SHUTDOWN,
    DELETED,
    FAILED,
    PARTITION,
    STRAY,
    deleted_name,
    is_trace_of_use,
    stray_name,
)
from kbroker.storage.doomed import Doomed
from kbroker.storage.durable import lacks_space, sync_names
from kbroker.storage.files import DEFAULT_LIMIT, FilePool
from kbroker.storage.formatting import (
    PARTITION_METADATA,
    format_partition_metadata,
    identify,
    lock,
    make_first_reserve,
    parse_partition_metadata,
    read_clean_shutdown,
    write_clean_shutdown,
)
from kbroker.storage.log import Log, no_jitter
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_files import ignore
from kbroker.storage.offset_checkpoints import OffsetCheckpoints
from kbroker.storage.plans import DirectoryState
from kbroker.storage.recovering import RecoveredLog
from kbroker.storage.reserve import SpaceReserve
from kbroker.storage.rewriting import marking, write_again
from wire.errors import ErrorCode, KafkaError
from wire.types import uuid_to_text


class LogDirectory:
    """See the module docstring.

    Shape  logs maps (topic, partition) to the open logs
    Note   was_clean: the last shutdown was clean. previous_broker_epoch is the epoch in its marker, -1 if absent.
           was_used: a broker has run here, so a metadata log must exist. stray_count is the number of stray directories
    """

    def __init__(
        self,
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
    ) -> None:
        """Lock the directory for this node and format it if it is new. Without `begins` the caller must call `begin`
        before anything else is written.

        If `cluster_id` is None, the stored one is accepted, and a new directory gets `new_cluster_id` or a random one.
        `reserve_bytes` stay allocated for writes on a full disk; a new directory without room for them is refused.
        Errors  KafkaError: KAFKA_STORAGE_ERROR if another broker runs here or the disk fails,
                INCONSISTENT_CLUSTER_ID, INVALID_CONFIG if it belongs to another node or meta.properties cannot be read
        """
        self.path = path
        self.disk = disk
        self.files = FilePool(disk, open_files_limit)
        self.state = DirectoryState(marking(disk, path, on_failure))
        self.logs: dict[TopicPartition, Log] = {}
        self.recovered: dict[TopicPartition, RecoveredLog] = {}
        self._report = report
        self._jitter_ms = jitter_ms
        self._lock, is_new = lock(disk, path)
        try:
            self.reserve = SpaceReserve(disk, path, reserve_bytes)
            if is_new:
                make_first_reserve(self.reserve, disk, path)
            new_id = new_cluster_id or uuid_to_text(new_uuid())
            self.identity = identify(
                disk, path, node_id=node_id, cluster_id=cluster_id, new_cluster_id=new_id, directory_id=new_uuid()
            )
            self.checkpoints = OffsetCheckpoints(path, disk, self.logs, write=self._write_checkpoint, report=report)
            names = disk.list(path)
            if FAILED in names:
                report(f"{path} has failed before; data that may be only in memory is written to the disk again")
                write_again(disk, path, self.checkpoints.recovery_points)
                names = disk.list(path)
            self.was_clean = CLEAN_SHUTDOWN in names
            self.previous_broker_epoch = read_clean_shutdown(disk, path) if self.was_clean else -1
            self.was_used = any(is_trace_of_use(name) for name in names)
            self.stray_count = sum(STRAY.fullmatch(name) is not None for name in names)
            self._doomed = Doomed((0, name) for name in names if DELETED.fullmatch(name))
            # After an unclean shutdown the names of new partitions may not be durable yet.
            self._has_unsynced_names = not self.was_clean
            if begins:
                self.begin()
        except OSError as error:
            self._lock.close()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot use {path}: {error.strerror or error}") from error
        except KafkaError:
            self._lock.close()
            raise

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

    # --- partitions ---

    def log_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/{topic}-{partition}"

    def stored_partitions(self) -> list[TopicPartition]:
        """The partitions that have a directory here, whether open or not."""
        matches = (PARTITION.fullmatch(name) for name in self.disk.list(self.path))
        return [(match[1], int(match[2])) for match in matches if match is not None]

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
            cleaned_offset=None if is_new else self.checkpoints.cleaned_offsets.get(key),
            timestamp_ms=timestamp_ms,
            pool=self.files,
            state=self.state,
            jitter_ms=self._jitter_ms,
            report=self._report,
            recovered=self.recovered.pop(key, None),
        )
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

    def _write_checkpoint(self, name: str, data: bytes) -> None:
        """Replace a file, unless the directory has failed."""
        if self.state.failure is None:
            try:
                # Retention of tiered logs and DeleteRecords free space, but need checkpoints first.
                self.reserve.spend_on(lambda: write_atomically(self.disk, f"{self.path}/{name}", data), keeps_half=True)
            except OSError as error:
                raise self._failure(f"write {name}", error) from error

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
                self.checkpoints.write_cleaned_offsets()
                if high_watermarks is not None:
                    self.checkpoints.write_high_watermarks(high_watermarks)
                self.reserve.spend_on(lambda: write_clean_shutdown(self.disk, self.path, broker_epoch), keeps_half=True)
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
            self.state.total_bytes = self.disk.total_bytes(self.path)
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
