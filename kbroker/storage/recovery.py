"""Recovery: read what a crash may have damaged and truncate the log at the first damaged batch.

A batch is valid if its header is plausible, its CRC is right and its offsets ascend. At the first invalid batch
recovery truncates the log and deletes all later segments. It also deletes segments after a gap: without compaction a
gap means that a loss of power took the end of a segment. Recovery is idempotent, so a crash during it does no harm.

Source  LogLoader.recoverLog of Apache Kafka 4.3.1; gaps are treated more strictly than there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.storage.batches import BatchHeader
from kbroker.storage.durable import sync
from kbroker.storage.index import CorruptIndex
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.segment import Segment
from kbroker.storage.segment_recovery import RecoveredSegment, recover_segment
from kbroker.storage.segments import SegmentList, unlink_newest_first

Report = Callable[[str], None]


class Recovery:
    """Recovers one log's segments and epochs in place; blocking.

    Shape  segments_read has the result for each segment that was read, by its base_offset
    """

    def __init__(self, segments: SegmentList, epochs: LeaderEpochs, *, tolerates_gaps: bool, report: Report) -> None:
        self._segments = segments
        self._epochs = epochs
        self._tolerates_gaps = tolerates_gaps
        self._report = report
        self._end = -1
        self.segments_read: dict[int, RecoveredSegment] = {}

    def recover_from(self, recovery_point: int) -> None:
        """Read all segments that may hold data after the recovery point."""
        if not self._segments:
            return
        doubtful = self._segments.from_offset(recovery_point)
        # The epoch checkpoint may be newer than the rest of the log; the batches decide.
        self._epochs.truncate_from_end(max(recovery_point, doubtful[0].base_offset) + 1)
        self._end = -1
        for at, segment in enumerate(doubtful):
            if self._end not in (-1, segment.base_offset) and not self._tolerates_gaps:
                self._report(
                    f"{segment.log_path} does not follow offset {self._end}: it and later segments are removed"
                )
                self.remove(doubtful[at:])
                return
            recovered = self.segments_read[segment.base_offset] = recover_segment(segment, self._epochs)
            self._end, cut = recovered.next_offset, recovered.cut_bytes
            if cut:
                # Sync at once, so that the old bytes cannot reappear after new ones.
                sync(segment.open().file)
                self._report(
                    f"{segment.log_path}: truncated {cut} bytes after offset {self._end} that are not valid batches"
                )
                self.remove(doubtful[at + 1 :])
                return

    def find_end(self) -> tuple[int, BatchHeader | None]:
        """Prepare the active segment for writing; returns (log_end_offset or -1, its last batch)."""
        if not self._segments:
            return -1, None
        active = self._segments.active
        try:
            last = active.resume()
        except CorruptIndex as error:
            # Only after a clean shutdown, if something else has modified the file since.
            self._report(f"{error}: the segment is recovered")
            self.recover_from(active.base_offset)
            last = active.resume()
        return active.base_offset if last is None else last.next_offset, last

    def remove(self, doomed: Sequence[Segment]) -> None:
        """Delete segments at the end of the log, or all of them."""
        unlink_newest_first(doomed)
        self._segments.remove(doomed)
