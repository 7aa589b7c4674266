"""Whether a recovered log is consistent: its files, indexes, epochs, producers and look-ups agree with its batches.

Everything here is recomputed from the bytes of the segments, in the simplest way, and compared with the log's answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kbroker.runtime.ports import Buffer, Disk
from kbroker.storage.index import CorruptIndex
from kbroker.storage.log import Log
from kbroker.storage.producer_state import ProducerEntry
from kbroker.storage.segment import Segment
from kbroker.testing.draws import Draws
from tests.sweep.log_model import window_of
from tests.sweep.log_transactions import judge_transactions
from wire.batch_header import MAX_SEQUENCE, BatchHeader
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import RecordBatch, batches

_LEFTOVERS = (".deleted", ".cleaned", ".swap", ".tmp")
_LOOKUPS = 6


def read_batches(log: Log, disk: Disk) -> list[RecordBatch]:
    """All batches of all segments, from the bytes of their files."""
    found: list[RecordBatch] = []
    for segment in log.segments:
        file = disk.open(segment.log_path, writable=False)
        data = file.pread(file.size(), 0)
        file.close()
        found += batches(data)
    return found


def complaints_about(
    log: Log,
    disk: Disk,
    found: Sequence[RecordBatch],
    draws: Draws,
    *,
    indexes_are_whole: bool = True,
) -> Iterator[str]:
    """Each disagreement, as a sentence.

    The first look-up that meets a damaged index rebuilds it. If indexes may be damaged (not indexes_are_whole), this
    checks only the look-ups and not the indexes themselves.
    """
    yield from _judge_files(log, disk)
    yield from _judge_segments(log, disk, found)
    if indexes_are_whole:
        yield from _judge_indexes(log, found)
    yield from _judge_epochs(log, found)
    yield from _judge_producers(log, found)
    yield from judge_transactions(log, found)
    yield from _judge_lookups(log, found, draws, every=not indexes_are_whole)


def _judge_files(log: Log, disk: Disk) -> Iterator[str]:
    names = disk.list(log.directory)
    logs = {name[:20] for name in names if name.endswith(".log")}
    for name in names:
        if name.endswith(_LEFTOVERS):
            yield f"{name} is a leftover"
        if name.endswith(("index", ".snapshot")) and not name[:20].isdecimal():
            yield f"{name} is not the name of a segment file"
        if name.endswith("index") and name[:20] not in logs:
            yield f"{name} is an index without a log"


def _judge_segments(log: Log, disk: Disk, found: Sequence[RecordBatch]) -> Iterator[str]:
    previous_end: int | None = None
    for segment in log.segments:
        size = disk.size(segment.log_path)
        if segment.size != size:
            yield f"{segment.log_path} has {size} bytes, but the log says {segment.size}"
        own = _batches_of(log, segment, found)
        if sum(batch.size for batch in own) != size:
            yield f"{segment.log_path} has {size} bytes, its batches have {sum(batch.size for batch in own)}"
        if previous_end is not None and segment.base_offset != previous_end:
            yield f"{segment.log_path} does not begin at {previous_end}, where the previous segment ends"
        if not own and segment is not log.segments.active:
            yield f"{segment.log_path} is empty but not the last"
        for before, after in pairwise(own):
            if before.next_offset != after.base_offset:
                yield f"{segment.log_path} jumps from offset {before.next_offset} to {after.base_offset}"
        previous_end = own[-1].next_offset if own else segment.base_offset


def _batches_of(log: Log, segment: Segment, found: Sequence[RecordBatch]) -> list[RecordBatch]:
    following = [other.base_offset for other in log.segments if other.base_offset > segment.base_offset]
    end = min(following, default=log.log_end_offset)
    return [batch for batch in found if segment.base_offset <= batch.base_offset < end]


def _judge_indexes(log: Log, found: Sequence[RecordBatch]) -> Iterator[str]:
    for segment in log.segments:
        own = _batches_of(log, segment, found)
        try:
            yield from _judge_index_pair(log, segment, own)
        except CorruptIndex as error:
            yield str(error)


def _judge_index_pair(log: Log, segment: Segment, own: Sequence[RecordBatch]) -> Iterator[str]:
    """The offset index is exactly what appending these batches gives; the time index has no wrong entry."""
    expected: list[tuple[int, int]] = []
    position = last = 0
    for batch in own:
        if position - last > log.config.index_interval_bytes:
            expected.append((batch.last_offset - segment.base_offset, position))
            last = position
        position += batch.size
    entries = segment.offset_index.read_all()
    if entries != expected:
        yield f"{segment.log_path}: the offset index holds {entries}, its batches give {expected}"
    previous = (-1, -1)
    for timestamp, relative in segment.time_index.read_all():
        offset = segment.base_offset + relative
        upto = [batch for batch in own if batch.base_offset <= offset]
        latest = max((batch.max_timestamp for batch in upto), default=-1)
        if (timestamp, relative) <= previous or timestamp <= previous[0]:
            yield f"{segment.log_path}: the time index goes from {previous} to {(timestamp, relative)}"
        if timestamp != latest or not any(batch.last_offset == offset for batch in upto):
            yield f"{segment.log_path}: the time index says {timestamp} for {offset}, it is {latest}"
        previous = (timestamp, relative)


def _judge_epochs(log: Log, found: Sequence[RecordBatch]) -> Iterator[str]:
    expected: list[tuple[int, int]] = []
    for batch in found:
        epoch = batch.partition_leader_epoch
        if batch.next_offset > log.log_start_offset and (not expected or epoch > expected[-1][0]):
            expected.append((epoch, max(batch.base_offset, log.log_start_offset)))
        elif expected and epoch < expected[-1][0]:
            yield f"the batch at {batch.base_offset} is of epoch {epoch}, after {expected[-1][0]}"
    # An epoch without batches is not in the expected list; an entry for it is correct.
    starts = dict(expected)
    entries = [(epoch, start) for epoch, start in log.leader_epochs.entries if epoch in starts]
    others = [(epoch, start) for epoch, start in log.leader_epochs.entries if epoch not in starts]
    if [(epoch, max(start, log.log_start_offset)) for epoch, start in entries] != expected:
        yield f"leader epochs are {log.leader_epochs.entries}, the batches give {expected}"
    for epoch, start in others:
        if start > log.log_end_offset:
            yield f"epoch {epoch} begins at {start}, after the end of the log at {log.log_end_offset}"
        following = min((base for later, base in expected if later > epoch), default=log.log_end_offset)
        if log.log_start_offset <= start < following:
            covered = [b.partition_leader_epoch for b in found if b.next_offset > start and b.base_offset < following]
            if covered:
                yield f"epoch {epoch} claims offsets {start} to {following}, which are of epoch {covered[0]}"


def _judge_producers(log: Log, found: Sequence[RecordBatch]) -> Iterator[str]:
    """The last five batches of each producer are duplicates, the next sequence is new, and a gap is refused."""
    for producer_id in sorted({batch.producer_id for batch in found if batch.producer_id >= 0}):
        window = window_of(found, producer_id)
        for sent in window:
            original = _outcome(log, sent.data)
            if original != sent.base_offset:
                yield f"resending the batch of producer {producer_id} at {sent.base_offset} gives {original}"
        if not window:
            continue  # its last batch is a marker that has raised its epoch
        batch = window[-1]
        entry = log.producers.producers.get(producer_id)
        if entry is None:
            continue
        if (entry.producer_epoch, entry.last_sequence, entry.last_offset) != (
            batch.producer_epoch,
            batch.last_sequence,
            batch.last_offset,
        ):
            yield f"producer {producer_id} is known by {entry.last_sequence} at {entry.last_offset}, not by {batch!r}"
        for skipped, expected in ((0, "a new batch"), (1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.name)):
            sequence = (batch.last_sequence + 1 + skipped) & MAX_SEQUENCE
            following = BatchHeader(batch.data)
            following.base_sequence = sequence
            answer = _answer(entry, following)
            if answer != expected:
                yield f"sequence {sequence} of producer {producer_id} after {batch!r} is {answer}, expected {expected}"
    for producer_id, entry in log.producers.producers.items():
        if entry.last_offset >= log.log_end_offset:
            yield f"producer {producer_id} is known by offset {entry.last_offset}, after the end {log.log_end_offset}"


def _answer(entry: ProducerEntry, header: BatchHeader) -> str:
    try:
        return "a new batch" if entry.check(header) is None else "a duplicate"
    except KafkaError as error:
        return error.code.name


def _outcome(log: Log, data: Buffer) -> int | str:
    """The offset at which the log says that it already has this batch."""
    try:
        plan = log.plan_append(bytearray(data), leader_epoch=max(log.leader_epochs.latest, 0), timestamp_ms=0)
    except KafkaError as error:
        return f"{error.code.name}"
    return plan.first_offset if plan.is_duplicate else "a new batch"


def _judge_lookups(log: Log, found: Sequence[RecordBatch], draws: Draws, *, every: bool) -> Iterator[str]:
    """Read by offset and by timestamp, at a few places or at every one."""
    readable = [batch for batch in found if batch.next_offset > log.local_log_start_offset]
    records = [
        (record.offset, record.timestamp, batch.partition_leader_epoch)
        for batch in readable
        for record in batch.records()
        if record.offset >= log.local_log_start_offset
    ]
    if every or not readable:
        reads, timestamps = readable, [timestamp for _, timestamp, _ in records]
    else:
        reads = [readable[0], readable[-1], *(draws.choice(readable) for _ in range(_LOOKUPS))]
        timestamps = [draws.choice(records)[1] + draws.between(-1, 1) for _ in range(_LOOKUPS if records else 0)]
    for batch in reads:
        offset = max(log.local_log_start_offset, draws.between(batch.base_offset, batch.last_offset))
        data = log.read(offset, max_bytes=1).read()
        if data != batch.data:
            yield f"a read at {offset} gives {len(data)} bytes that are not the batch at {batch.base_offset}"
    if log.read(log.log_end_offset, max_bytes=1).size:
        yield "a read at the end of the log returns data"
    for wanted in timestamps:
        expected = next((record for record in records if record[1] >= wanted), None)
        answer = log.offset_for_timestamp(wanted)
        if answer != expected:
            yield f"the first record at or after {wanted} is {expected}, the log says {answer}"
