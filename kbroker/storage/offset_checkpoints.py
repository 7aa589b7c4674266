"""The offset checkpoints of one log directory: recovery points, log start offsets, high watermarks, cleaned offsets.

Each file has an entry for every partition that needs one. A partition that is not open yet keeps the entry of the
previous broker.

Source  LogManager, ReplicaManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kbroker.runtime.ports import Disk
from kbroker.storage.checkpoint import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    TopicPartition,
    format_offsets,
    read_offsets,
)
from kbroker.storage.log import Log


class OffsetCheckpoints:
    """See the module's docstring.

    Shape  recovery_points, log_starts, high_watermarks and cleaned_offsets are the contents of the files at the start;
           `logs` maps the partitions to the open logs and follows their changes; `write` replaces a file of the
           directory
    """

    def __init__(
        self,
        path: str,
        disk: Disk,
        logs: Mapping[TopicPartition, Log],
        *,
        write: Callable[[str, bytes], None],
        report: Callable[[str], None],
    ) -> None:
        """Read the files. A malformed one counts as empty. Errors: OSError."""
        self._logs = logs
        self._write = write
        self._written: dict[str, dict[TopicPartition, int]] = {}  # the contents of each file

        def read(name: str, consequence: str) -> dict[TopicPartition, int]:
            try:
                found = read_offsets(disk, f"{path}/{name}")
            except ValueError as error:
                report(f"{error}; {consequence}")
                found = {}
            self._written[name] = dict(found)
            return found

        self.recovery_points = read(RECOVERY_POINT_CHECKPOINT, "all logs are recovered from their start")
        self.log_starts = read(LOG_START_CHECKPOINT, "all logs start at their first segment")
        self.high_watermarks = read(REPLICATION_OFFSET_CHECKPOINT, "all high watermarks rise from the log start")
        self.cleaned_offsets = read(CLEANER_CHECKPOINT, "compacted logs are cleaned from their start")

    def forget(self, partition: TopicPartition) -> None:
        """Leave a partition out of the files from their next writing on."""
        for offsets in (self.recovery_points, self.log_starts, self.high_watermarks, self.cleaned_offsets):
            offsets.pop(partition, None)

    def write_recovery_points(self) -> None:
        """Write the recovery point of each open log. Values that were read before the write stay valid."""
        logs = tuple(self._logs.items())  # this runs in a thread while partitions may be opened and closed
        points = {key: log.recovery_point for key, log in logs}
        self._write_offsets(RECOVERY_POINT_CHECKPOINT, {**self._absent(self.recovery_points), **points})
        for key, log in logs:
            log.persisted_recovery_point = points[key]

    def write_log_starts(self) -> None:
        """Write the log_start_offsets that segment names do not give.

        Segment names never give the start of a tiered log. An unknown start is not written, because the next start
        would trust it.
        """
        logs = tuple(self._logs.items())
        starts = {key: log.log_start_offset for key, log in logs if _needs_start_entry(log)}
        self._write_offsets(LOG_START_CHECKPOINT, {**self._absent(self.log_starts), **starts})
        for key, log in logs:
            log.persisted_log_start_offset = starts.get(key)

    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the high watermark of each partition."""
        self._write_offsets(REPLICATION_OFFSET_CHECKPOINT, {**self._absent(self.high_watermarks), **high_watermarks})

    def write_cleaned_offsets(self) -> None:
        """Write up to where each log is clean, if that has changed. Logs that were never cleaned have no entry."""
        logs = tuple(self._logs.items())
        cleaned = {key: log.cleaned_offset for key, log in logs if log.cleaned_offset is not None}
        offsets = {**self._absent(self.cleaned_offsets), **cleaned}
        if offsets != self._written[CLEANER_CHECKPOINT]:
            self._write_offsets(CLEANER_CHECKPOINT, offsets)

    def forget_earlier(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the entries of earlier partitions with these names from the checkpoints, before new ones are created.

        Otherwise, after a crash, the next process would apply a deleted log's start or recovery point to the new log.
        Errors  KAFKA_STORAGE_ERROR
        """
        gone = set(partitions)
        for key in gone:
            self.forget(key)
        for name, written in tuple(self._written.items()):
            if gone & written.keys():
                self._write_offsets(name, {key: offset for key, offset in written.items() if key not in gone})

    def _absent(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The previous broker's entries of partitions that are not open yet; still needed if this one crashes."""
        return {key: offset for key, offset in tuple(offsets.items()) if key not in self._logs}

    def _write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._write(name, format_offsets(offsets).encode())
        self._written[name] = dict(offsets)


def _needs_start_entry(log: Log) -> bool:
    if log.config.remote_storage_enable:
        return log.is_log_start_known
    return bool(log.retired) or log.log_start_offset != log.segments.first.base_offset
