"""The single pass of recovery over a segment, compared with a simple reader of the same batches."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kbroker.runtime.disk import RealDisk
from kbroker.storage.batches import scan_headers
from kbroker.storage.files import FilePool
from kbroker.storage.leader_epoch import LeaderEpochs
from kbroker.storage.producer_state import ProducerState
from kbroker.storage.segment import Segment
from kbroker.storage.segment_recovery import MAX_PRODUCERS, RecoveredSegment, producer_headers, recover_segment
from tests.storage.logs import batch

BASE = 1_000
CHUNKS = (64, 333, 4_096, 1 << 20)


def segment_in(directory: Path, interval_bytes: int = 500) -> Segment:
    return Segment(FilePool(RealDisk()), str(directory), BASE, interval_bytes=interval_bytes)


def write_batches(directory: Path, draws: Random, count: int = 300) -> bytes:
    """A segment of batches of random sizes, with gaps, three leader epochs, and producers with several epochs."""
    data, offset, sequences = bytearray(), BASE, dict[tuple[int, int], int]()
    for number in range(count):
        producer_id = draws.choice((-1, 7, 8, 9))
        epoch = -1 if producer_id < 0 else number // 100
        records = draws.randint(1, 3)
        sequence = sequences.get((producer_id, epoch), 0)
        sequences[producer_id, epoch] = sequence + records
        data += batch(
            records,
            timestamp=draws.randint(1, 5_000),
            size=draws.choice((1, 50, 400, 6_000)),
            base_offset=offset,
            partition_leader_epoch=number // 120,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=-1 if producer_id < 0 else sequence,
        )
        offset += records + draws.choice((0, 0, 5))
    (directory / f"{BASE:020d}.log").write_bytes(data)
    return bytes(data)


def plain_reading(directory: Path) -> tuple[Segment, LeaderEpochs, ProducerState, int]:
    """What the pass should find, read one batch at a time. Also writes the indexes."""
    segment, epochs, producers, next_offset = segment_in(directory), LeaderEpochs(), ProducerState(), BASE
    segment.begin_indexes()
    file = segment.open().file
    for position, header in scan_headers(file, 0, file.size(), chunk_bytes=1 << 20, checks_crc=True):
        if header.base_offset < next_offset:
            break
        segment.note_batch(header, position)
        producers.note(header)
        next_offset = header.next_offset
        if epochs.epoch_for_offset(header.base_offset) != header.partition_leader_epoch:
            epochs.assign(header.partition_leader_epoch, header.base_offset)
    segment.finish_indexes()
    return segment, epochs, producers, next_offset


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("chunk_bytes", CHUNKS)
def test_one_pass_finds_the_same_as_a_simple_reader(tmp_path: Path, seed: int, chunk_bytes: int) -> None:
    draws = Random(seed)
    data = write_batches(tmp_path, draws)
    if seed % 3 == 1:
        data = data[: draws.randrange(len(data))]
    elif seed % 3 == 2:
        at = draws.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ 1 << draws.randrange(8)]) + data[at + 1 :]
    (tmp_path / f"{BASE:020d}.log").write_bytes(data)
    plain, plain_epochs, plain_producers, next_offset = plain_reading(tmp_path)
    expected = plain.offset_index.read_all(), plain.time_index.read_all()

    segment, epochs = segment_in(tmp_path), LeaderEpochs()
    found = recover_segment(segment, epochs, chunk_bytes=chunk_bytes)

    assert found.next_offset == next_offset
    assert found.cut_bytes == len(data) - plain.size
    assert (tmp_path / f"{BASE:020d}.log").stat().st_size == segment.size == plain.size
    assert (segment.offset_index.read_all(), segment.time_index.read_all()) == expected
    for name in ("max_timestamp", "max_timestamp_offset", "first_timestamp", "last_index_position", "index_entries"):
        assert getattr(segment, name) == getattr(plain, name), name
    assert epochs.entries == plain_epochs.entries
    producers = ProducerState()
    assert found.producer_batches is not None
    for header in producer_headers(segment, found.producer_batches):
        producers.note(header)
    assert windows(producers) == windows(plain_producers)


def windows(producers: ProducerState) -> dict[int, tuple[object, ...]]:
    return {entry.producer_id: (entry.producer_epoch, *entry.batches) for entry in producers.producers.values()}


def recovered(directory: Path, data: bytes) -> RecoveredSegment:
    (directory / f"{BASE:020d}.log").write_bytes(data)
    return recover_segment(segment_in(directory), LeaderEpochs())


def test_a_segment_with_transactions_is_read_again_for_producers(tmp_path: Path) -> None:
    sent = batch(base_offset=BASE, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert recovered(tmp_path, bytes(sent)).producer_batches is None


def test_batches_are_not_remembered_for_too_many_producers(tmp_path: Path) -> None:
    data = b"".join(
        batch(size=1, base_offset=BASE + number, producer_id=number, producer_epoch=0, base_sequence=0)
        for number in range(MAX_PRODUCERS + 1)
    )
    assert recovered(tmp_path, data).producer_batches is None


def test_a_batch_length_beyond_the_file_truncates_it(tmp_path: Path) -> None:
    good, torn = bytes(batch(base_offset=BASE)), bytearray(batch(base_offset=BASE + 1))
    torn[8:12] = (1 << 30).to_bytes(4, "big")
    found = recovered(tmp_path, good + torn)
    assert (found.next_offset, found.cut_bytes) == (BASE + 1, len(torn))
