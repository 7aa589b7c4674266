"""Plans of appends and flushes, and the state shared by all logs of a directory.

The event loop makes a plan, a thread may carry it out, and the event loop commits it.

Source  UnifiedLog.append, analyzeAndValidateRecords of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kbroker.runtime.ports import Buffer
from kbroker.storage.batches import WritableBuffer
from kbroker.storage.durable import is_fatal
from kbroker.storage.producer_state import ProducerEntry, ProducerState, RememberedBatch
from kbroker.storage.segment import Segment
from wire.batch_header import CRC_START, HEADER_SIZE, BatchHeader, header_struct
from wire.crc32c import crc32c
from wire.errors import ErrorCode, KafkaError

_MEMORYVIEW: Final = memoryview  # compiled code looks up the name of a builtin type at each use
_stamp: Final = header_struct(base_offset="q", batch_length="i", partition_leader_epoch="i").pack_into
INLINE_WRITE_BYTES: Final = 128 << 10
"""A write up to this size takes less time than the two thread hops needed to move it off the event loop."""
UNKNOWN_SPACE: Final = 1 << 62


class AppendPlan:
    """One append; made by `Log.plan_append`, passed to `write` and `commit`.

    Shape  data holds the batches; headers are their headers with the assigned offsets and epoch, which a leader's
           `stamp` writes into data
    Shape  first_offset..last_offset are the offsets of the records; timestamp_ms is -1, or the original's for a
           duplicate
    Shape  a duplicate (is_duplicate) writes nothing and has the offsets of the original
    Note   rolls, syncs and size tell the caller whether to run `write` in a thread
    """

    __slots__ = (
        "data",
        "first_offset",
        "headers",
        "is_duplicate",
        "next_offset",
        "rolls",
        "size",
        "syncs",
        "timestamp_ms",
        "wall_ms",
    )

    def __init__(
        self,
        data: WritableBuffer,
        size: int,
        headers: Sequence[BatchHeader],
        first_offset: int,
        next_offset: int,
        *,
        rolls: bool = False,
        syncs: bool = False,
        wall_ms: int = -1,
        timestamp_ms: int = -1,
        is_duplicate: bool = False,
    ) -> None:
        self.data = data
        self.size = size
        self.headers = headers
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.rolls = rolls
        self.syncs = syncs
        self.wall_ms = wall_ms
        self.timestamp_ms = timestamp_ms
        self.is_duplicate = is_duplicate

    @property
    def last_offset(self) -> int:
        return self.next_offset - 1

    def stamp(self) -> None:
        """Write the assigned offsets and epoch into `data`. Repeatable."""
        position = 0
        for header in self.headers:
            _stamp(self.data, position, header.base_offset, header.batch_length, header.partition_leader_epoch)
            position += header.size


def duplicate_plan(header: BatchHeader, original: RememberedBatch) -> AppendPlan:
    return AppendPlan(
        bytearray(),
        0,
        (header,),
        original.first_offset,
        original.last_offset + 1,
        timestamp_ms=original.timestamp_ms,
        is_duplicate=True,
    )


def writable(batches: Buffer) -> WritableBuffer:
    """The batches, copied if they are read-only."""
    if isinstance(batches, bytes) or (isinstance(batches, _MEMORYVIEW) and batches.readonly):
        return bytearray(batches)
    return batches


def assign_several(
    batches: Buffer, *, offset: int, leader_epoch: int, producers: ProducerState
) -> list[BatchHeader] | AppendPlan:
    """Assign consecutive offsets to several batches; one duplicate makes the whole append a duplicate, as in Kafka."""
    headers: list[BatchHeader] = []
    position = 0
    pending: dict[int, ProducerEntry] = {}
    while position < len(batches):
        header = BatchHeader(batches, position)
        header.base_offset, header.partition_leader_epoch = offset, leader_epoch
        original = producers.check(header, pending)
        if original is not None:
            return duplicate_plan(header, original)
        headers.append(header)
        offset = header.next_offset
        position += header.size
    assert position == len(batches), "only whole batches are appended"
    return headers


def followers_headers(batches: Buffer, log_end_offset: int, *, leader_epoch: int) -> tuple[list[BatchHeader], int]:
    """The headers of the batches that a follower appends, and the size of these batches in bytes.

    The leader may cut the last batch short: it is left out. So are batches of an epoch above leader_epoch, and
    everything after them: their leader is not the one that this follower knows (KAFKA-18723).
    Errors  CORRUPT_MESSAGE if a batch is damaged, or offsets do not ascend from log_end_offset
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(batches)
    view = memoryview(batches)
    while position + HEADER_SIZE <= end:
        header = BatchHeader(view, position)
        if not header.is_plausible:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no batch can begin with the bytes for {log_end_offset}")
        next_position = position + header.size
        if next_position > end or header.partition_leader_epoch > leader_epoch:
            break
        if header.base_offset < log_end_offset:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch at offset {header.base_offset} cannot follow {log_end_offset}",
            )
        if crc32c(view[position + CRC_START : next_position]) != header.crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} has a wrong CRC")
        log_end_offset = header.next_offset
        headers.append(header)
        position = next_position
    return headers, position


class FlushPlan(NamedTuple):
    """One flush; it makes everything below `offset` durable.

    Shape  segments are those to sync; of `active` only the log file is synced. writes_epochs: the epoch checkpoint
           lacks entries that batches below `offset` need
    Note   generation is the log's when the plan was made; a truncation since then invalidates the plan
    """

    offset: int
    segments: tuple[Segment, ...]
    active: Segment
    writes_epochs: bool
    generation: int


@dataclass(slots=True, eq=False)
class DirectoryState:
    """The state that all logs of one log directory share: whether it has failed or is nearly full.

    Units  spare_bytes is what clients may append until the next check of the disk; negative if the disk is nearly full
           or has failed. floor_bytes is the space that clients must leave free. free_bytes and total_bytes are the
           disk's at the last check, None before the first
    """

    on_failure: Callable[[OSError], None] | None = None
    failure: OSError | None = None
    is_short_of_space: bool = False
    spare_bytes: int = UNKNOWN_SPACE
    floor_bytes: int = 0
    free_bytes: int | None = None
    total_bytes: int | None = None

    def note_space(self, free_bytes: int, *, floor_bytes: int) -> None:
        """Record the free space; clients may use all but `floor_bytes` of it."""
        self.free_bytes = free_bytes
        self.is_short_of_space = free_bytes < floor_bytes
        self.floor_bytes = floor_bytes
        if self.failure is None:
            self.spare_bytes = free_bytes - floor_bytes

    def leaves(self, lowest_free_bytes: int) -> bool:
        """Whether this much is free, taking into account appends since the last check, and the disk works."""
        return self.failure is None and self.spare_bytes + self.floor_bytes >= lowest_free_bytes

    def note(self, error: OSError) -> None:
        """Take the directory offline unless the error may be temporary."""
        if is_fatal(error):
            self.fail(error)

    def fail(self, error: OSError) -> None:
        """Take the directory offline until a restart."""
        if self.failure is None:
            self.failure = error
            self.spare_bytes = -1
            if self.on_failure is not None:
                self.on_failure(error)
