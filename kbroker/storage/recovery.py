"""Reading what a crash may have damaged, and cutting a log where it stops making sense.

Batches are taken while their headers make sense, their CRC is right and their offsets ascend. At the first that fails
the log is cut and all later segments go; so do segments behind a gap, because without a compaction a gap means that the
end of a segment was lost with the power. Doing it twice gives the same, so a crash during recovery is only a crash.

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
    """Repairs one log's segments and epochs in place; blocking.

    Shape  segments_read has what was found in each segment that was read, by its base_offset
    """

    def __init__(self, segments: SegmentList, epochs: LeaderEpochs, *, tolerates_gaps: bool, report: Report) -> None:
        self._segments = segments
        self._epochs = epochs
        self._tolerates_gaps = tolerates_gaps
        self._report = report
        self._end = -1
        self.segments_read: dict[int, RecoveredSegment] = {}

    def recover_from(self, recovery_point: int) -> None:
        """Read everything that the recovery point does not vouch for."""
        if not self._segments:
            return
        doubtful = self._segments.from_offset(recovery_point)
        # The checkpoint of the epochs may be newer than what is left of the log: the batches say what holds.
        self._epochs.truncate_from_end(max(recovery_point, doubtful[0].base_offset) + 1)
        self._end = -1
        for at, segment in enumerate(doubtful):
            if self._end not in (-1, segment.base_offset) and not self._tolerates_gaps:
                self._report(f"{segment.log_path} does not follow offset {self._end}: it and all behind it are removed")
                self.remove(doubtful[at:])
                return
            recovered = self.segments_read[segment.base_offset] = recover_segment(segment, self._epochs)
            self._end, cut = recovered.next_offset, recovered.cut_bytes
            if cut:
                # Synced at once, lest the old bytes come back behind new ones.
                sync(segment.open().file)
                self._report(
                    f"{segment.log_path}: {cut} bytes behind offset {self._end} are no valid batches and were cut"
                )
                self.remove(doubtful[at + 1 :])
                return

    def find_end(self) -> tuple[int, BatchHeader | None]:
        """(log_end_offset or -1, the active segment's last batch), and what writing that segment needs."""
        if not self._segments:
            return -1, None
        active = self._segments.active
        try:
            last = active.resume()
        except CorruptIndex as error:
            # Only after a stop that was called clean: then somebody else has been at the file.
            self._report(f"{error}: the segment is read anew")
            self.recover_from(active.base_offset)
            last = active.resume()
        return active.base_offset if last is None else last.next_offset, last

    def remove(self, doomed: Sequence[Segment]) -> None:
        """Take out the end of the log, or all of it."""
        unlink_newest_first(doomed)
        self._segments.remove(doomed)
