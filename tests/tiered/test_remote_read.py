"""Reading records from the tier: `kbroker.tiered.remote_read`, over the directory plug-in and the metadata topic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.replication.partition import Partition
from kbroker.storage.index import OFFSET_ENTRY, TRANSACTION_ENTRY
from kbroker.testing.remote_metadata import DELETED, DELETING, copy, update_to
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentState,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.chunk_reader import ChunkReader
from kbroker.tiered.partition import RemotePartition
from kbroker.tiered.tools import id_of
from tests.tiered.reading_site import CHUNK, Change, ReadingSite, reader_settings
from tests.tiered.tier_site import tiered_config
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import batches

SIZES = (100, 20, 700, 1, 300)


def flip(at: int) -> Change:
    """Change one bit of a byte."""
    return lambda data: data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :] if at < len(data) else data


# What is read


async def test_a_read_starts_with_the_batch_of_its_offset(autojump_clock: MockClock) -> None:
    """Every offset, even within batches, and across boundaries of chunks and segments."""
    site = ReadingSite(config=tiered_config(segment_bytes=2_000))
    async with site.reading():
        partition = await site.tiered(sizes=SIZES)
        for offset in range(partition.log.local_log_start_offset):
            assert await site.read_all(partition, offset) == site.expected(partition, offset)
            site.forget_chunks()


@pytest.mark.parametrize("max_bytes", [1, 100, 333, 1_000, 5_000])
async def test_only_the_first_batch_may_exceed_max_bytes(max_bytes: int, autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered(sizes=SIZES)
        offset = 0
        while offset < partition.log.local_log_start_offset:
            found = await site.read(partition, offset, max_bytes)
            got = list(batches(bytes(found.records)))
            assert found.size == len(bytes(found.records))
            assert got[0].base_offset == offset
            assert found.size <= max_bytes or len(got) == 1
            assert found.next_offset == got[-1].next_offset
            offset = found.next_offset


async def test_without_at_least_one_batch_max_bytes_is_strict(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        first = next(iter(batches(site.expected(partition, 0)))).size
        assert (await site.read(partition, 0, first - 1, at_least_one_batch=False)).size == 0
        assert (await site.read(partition, 0, first, at_least_one_batch=False)).size == first


async def test_a_batch_may_span_many_chunks(autojump_clock: MockClock) -> None:
    site = ReadingSite(tier=reader_settings(kbroker_remote_chunk_cache_bytes=CHUNK))
    async with site.reading():
        partition = await site.tiered(sizes=(5_000,))
        assert await site.read_all(partition, 0, 1) == site.expected(partition, 0)
        assert site.reader.cache.used_bytes <= CHUNK, "chunks beyond the memory limit were freed"


async def test_missing_records_at_the_end_of_a_segment_are_skipped(autojump_clock: MockClock) -> None:
    """KAFKA-15388: an offset after the last batch of the segment that covers it is looked up in the next segment."""
    site = ReadingSite()
    async with site.reading():
        partition = site.add()
        await site.changed()
        site.append(partition, 3)
        leave_out(partition, 4)
        site.close_segment(partition)
        site.append(partition, 3)
        leave_out(partition, 2)
        site.close_segment(partition)
        site.append(partition, 1)
        await site.rounds(2)
        await site.retain(partition)
        assert partition.log.local_log_start_offset == 12
        for offset in range(3, 8):
            found = await site.read(partition, offset)
            assert [one.base_offset for one in batches(bytes(found.records))] == [7, 8, 9], offset
        for offset in range(10, 12):
            found = await site.read(partition, offset)
            assert (found.size, found.next_offset) == (0, 12), "the local log continues"


def leave_out(partition: Partition, count: int) -> None:
    """Omit offsets, as compaction may: the next batch starts that much later."""
    partition.log.log_end_offset += count
    partition.log.restart_reading()


async def test_overlapping_segments_of_other_histories_are_not_read(autojump_clock: MockClock) -> None:
    """KAFKA-15168: a leader of another history has copied the same offsets; its segment is ignored."""
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered(count=12)
        site.lead(partition)
        site.append(partition, 12)
        await site.rounds(2)
        await site.retain(partition)
        own = site.segments(partition)[1]
        foreign = replace(
            own,
            remote_log_segment_id=own.remote_log_segment_id._replace(id=site.env.new_uuid()),
            segment_leader_epochs=((9, own.start_offset),),
            start_offset=own.start_offset,
            end_offset=own.end_offset + 2,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        )
        await copy(site.metadata, foreign)
        assert await site.read_all(partition, 0) == site.expected(partition, 0)
        assert len({one[1] for one in partition.log.leader_epochs.entries}) == 2, "it crossed an epoch boundary"


async def test_aborted_transactions_come_from_the_tiers_indexes(autojump_clock: MockClock) -> None:
    """KAFKA-16780, KAFKA-17801: markers may be in later segments; only segments with an index are searched."""
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        segments = site.segments(partition)
        first, _, third, fourth = segments[:4]
        # A transaction of producer 7 over the first three segments, one of producer 8 within the fourth.
        site.watched.transactions = {
            third.start_offset: TRANSACTION_ENTRY.pack(0, 7, 1, third.start_offset + 1, 1),
            fourth.start_offset: TRANSACTION_ENTRY.pack(
                0, 8, fourth.start_offset, fourth.end_offset, fourth.start_offset
            ),
        }
        for one in (third, fourth):
            new_id = one.remote_log_segment_id._replace(id=site.env.new_uuid())
            state = RemoteLogSegmentState.COPY_SEGMENT_STARTED
            new = replace(
                one, remote_log_segment_id=new_id, txn_index_empty=False, state=state, event_timestamp_ms=1 << 50
            )
            site.move_objects(one, new)
            await copy(site.metadata, new)

        async def aborted(offset: int) -> list[tuple[int, int]]:
            found = await site.read(partition, offset, 1, read_committed=True)
            return [(one.producer_id, one.first_offset) for one in found.aborted]

        assert await aborted(0) == [], "it started after the first record"
        assert await aborted(1) == [(7, 1)]
        assert await aborted(first.end_offset + 1) == [(7, 1)]
        assert await aborted(third.start_offset + 2) == [], "it had finished before"
        assert await aborted(fourth.start_offset) == [(8, fourth.start_offset)]
        assert await aborted(fourth.end_offset + 1) == []
        assert (await site.read(partition, 1, 1)).aborted == (), "not requested"
        asked = {start for start, kind in site.watched.index_reads if kind is IndexType.TRANSACTION}
        assert asked == {third.start_offset, fourth.start_offset}


# What is in the way


async def test_m5_a_damaged_batch_is_fetched_again(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        expected = site.expected(partition, 0)
        site.watched.changes = [flip(200)]
        assert await site.read_all(partition, 0, 1) == expected
        assert site.reader.counters.damaged_batches == 1
        assert await site.read_all(partition, 0, 1) == expected
        assert site.reader.counters.damaged_batches == 1, "damaged bytes are not cached"


@pytest.mark.parametrize("at", [0, 3, 7, 8, 11, 12, 15, 16, 17, 22, 26, 60, 150])
async def test_m5_a_batch_that_stays_damaged_is_a_storage_error(at: int, autojump_clock: MockClock) -> None:
    """Bytes 0 to 15 (offset, length and leader epoch) are outside the CRC."""
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        site.watched.every_change = flip(at)
        with pytest.raises(KafkaError) as caught:
            await site.read(partition, 0)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert site.remote(partition).counters.fetch_errors == 1
        assert "offset 0 of orders-0 cannot be read from the tier: segment " in site.remote(partition).last_error
        site.watched.every_change = None
        assert await site.read_all(partition, 0) == site.expected(partition, 0), "the error is not cached"


async def test_m5_good_batches_before_a_damaged_one_are_returned(autojump_clock: MockClock) -> None:
    site = ReadingSite(tier=reader_settings(kbroker_remote_chunk_bytes=4_096))
    async with site.reading():
        partition = await site.tiered()
        first = next(iter(batches(site.expected(partition, 0)))).size
        site.watched.every_change = flip(first + 100)
        found = await site.read(partition, 0)
        assert (found.size, found.next_offset) == (first, 1)
        with pytest.raises(KafkaError):
            await site.read(partition, 1)


@pytest.mark.parametrize("at", [10, 100], ids=["header", "records"])
async def test_m5_the_segment_before_a_damaged_one_is_readable(at: int, autojump_clock: MockClock) -> None:
    """Even if it is in memory already, because it was read ahead."""
    site = ReadingSite(tier=reader_settings(kbroker_remote_chunk_bytes=4_096))
    async with site.reading():
        partition = await site.tiered()
        second = site.segments(partition)[1]
        site.watched.every_change = flip(at)
        with pytest.raises(KafkaError):
            await site.read(partition, second.start_offset)
        assert site.reader.cache.has(second, 0)
        site.watched.every_change = None
        reads = len(site.watched.reads)
        found = await site.read(partition, 0)
        assert found.next_offset == second.start_offset
        assert bytes(found.records) == site.expected(partition, 0)[: found.size]
        assert [start for start, _, _ in site.watched.reads[reads:]] == [0], "the next read fetches it again"
        assert await site.read_all(partition, second.start_offset) == site.expected(partition, second.start_offset)


async def test_the_segment_before_an_unknown_one_is_readable(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        second = site.segments(partition)[1]
        for state in (DELETING, DELETED):
            await site.metadata.update_remote_log_segment_metadata(update_to(second, state))
        found = await site.read_all_up_to(partition, 0, second.start_offset)
        assert found == site.expected(partition, 0)[: len(found)]
        with pytest.raises(KafkaError, match="no segment in the tier holds offset"):
            await site.read(partition, second.start_offset)


async def test_missing_chunks_of_later_batches_do_not_delay_an_answer(autojump_clock: MockClock) -> None:
    """Only a part of a batch of the next segment is in memory."""
    site = ReadingSite(tier=reader_settings(kbroker_remote_read_ahead_bytes=0))
    async with site.reading():
        partition = await site.tiered(sizes=(CHUNK,))
        second = site.segments(partition)[1]
        with ChunkReader(site.reader.cache, second) as chunks:
            await chunks.get(0)
        await site.read(partition, 0)
        site.slow.read_latency_ms = 1_000
        began = trio.current_time()
        assert (await site.read(partition, 0)).next_offset == second.start_offset
        assert trio.current_time() == began


async def test_a_seek_waits_for_one_chunk_only(autojump_clock: MockClock) -> None:
    """Small batches in a chunk with many batches, all in one segment; the answer has room for all of them."""
    site = ReadingSite(
        tier=reader_settings(kbroker_remote_chunk_bytes=4_096),
        config=tiered_config(segment_bytes=40_000, index_interval_bytes=300),
    )
    async with site.reading():
        partition = await site.tiered(count=400)
        first = site.segments(partition)[0]
        seek = await site.read(partition, 60)
        assert seek.next_offset < first.end_offset
        assert [size for _, _, size in site.watched.reads] == [4_096]
        await site.read(partition, seek.next_offset)
        assert sum(size for _, _, size in site.watched.reads) > 6 * 4_096


async def test_a_seek_requests_all_chunks_of_its_batch(autojump_clock: MockClock) -> None:
    site = ReadingSite(
        tier=reader_settings(kbroker_remote_chunk_bytes=4_096), config=tiered_config(segment_bytes=90_000)
    )
    async with site.reading():
        partition = await site.tiered(sizes=(9_000,) * 12)
        site.slow.read_latency_ms = 1_000
        began = trio.current_time()
        assert (await site.read(partition, 5, 10_000)).next_offset == 6
        assert trio.current_time() - began == pytest.approx(2), "its indexes, and then all of its chunks in parallel"


@pytest.mark.parametrize("kept", [0, 1, 100])
async def test_m5_a_truncated_body_is_requested_again(kept: int, autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        site.watched.changes = [lambda data: data[:kept]]
        assert await site.read_all(partition, 0) == site.expected(partition, 0)
        site.forget_chunks()
        site.watched.every_change = lambda data: data[:kept]
        reads = len(site.watched.reads)
        with pytest.raises(KafkaError) as caught:
            await site.read(partition, 0, 1)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert len(site.watched.reads) == reads + 2
        assert site.watched.open_streams == 0


async def test_m5_a_wrong_range_is_detected(autojump_clock: MockClock) -> None:
    site = ReadingSite(config=tiered_config(segment_bytes=4_000))
    async with site.reading():
        partition = await site.tiered()
        site.watched.every_change = lambda data: data[100:] + data[:100]
        with pytest.raises(KafkaError) as caught:
            await site.read(partition, 7)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_m3_a_missing_segment_is_an_error_and_never_skipped(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        second = site.segments(partition)[1]
        site.watched.delete_log_segment_data(second)
        found = await site.read_all_up_to(partition, 0, second.start_offset)
        assert found == site.expected(partition, 0)[: len(found)]
        for offset in (second.start_offset, second.end_offset):
            with pytest.raises(KafkaError) as caught:
                await site.read(partition, offset)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert site.reader.counters.missing_segments == 2
        after = second.end_offset + 1
        assert await site.read_all(partition, after) == site.expected(partition, after)


@pytest.mark.parametrize(
    "error", [RetriableRemoteStorageError("503"), RemoteStorageError("403"), OSError("reset"), ZeroDivisionError("bug")]
)
async def test_m3_every_store_failure_is_a_storage_error(error: Exception, autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        site.watched.errors = [error]
        with pytest.raises(KafkaError) as caught:
            await site.read(partition, 0, 1)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert await site.read_all(partition, 0) == site.expected(partition, 0)
        assert site.watched.open_streams == 0


async def test_a_segment_deleted_during_the_read_is_out_of_range(autojump_clock: MockClock) -> None:
    """Write point "tier delete": the reader gets OFFSET_OUT_OF_RANGE, because the start rises before the deletion."""
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        first = site.segments(partition)[0]
        site.slow.read_latency_ms = 1_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out_of_range, site, partition)
            await wait_all_tasks_blocked()
            partition.log.raise_log_start_offset(first.end_offset + 1)
            site.watched.delete_log_segment_data(first)
        assert site.remote(partition).counters.fetch_errors == 0


async def out_of_range(site: ReadingSite, partition: Partition) -> None:
    with pytest.raises(KafkaError) as caught:
        await site.read(partition, 0)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_replaced_segment_is_read_from_its_replacement(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        old = site.segments(partition)[0]
        new_id = old.remote_log_segment_id._replace(id=site.env.new_uuid())
        new = replace(old, remote_log_segment_id=new_id, event_timestamp_ms=old.event_timestamp_ms + 1)
        site.move_objects(old, new)
        site.slow.read_latency_ms = 1_000
        got: list[bytes] = []

        async def read() -> None:
            got.append(bytes((await site.read(partition, 0, 1)).records))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            await copy(site.metadata, replace(new, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
        assert got[0] == next(iter(site.written[partition.key].values()))


async def test_a_leader_deposed_during_a_read_returns_nothing(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await site.tiered()
        site.slow.read_latency_ms = 1_000
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                with pytest.raises(KafkaError) as caught:
                    await site.read(partition, 0)
                assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            partition.apply(None)


# Indexes


async def test_a_wrong_index_is_rebuilt_from_the_segment(autojump_clock: MockClock) -> None:
    """M13: the entry points to a different batch."""
    site = ReadingSite(config=tiered_config(segment_bytes=4_000, index_interval_bytes=1))
    async with site.reading():
        partition = await site.tiered()

        def shifted(data: bytes) -> bytes:
            entries = list(OFFSET_ENTRY.iter_unpack(data))
            return b"".join(OFFSET_ENTRY.pack(offset, position + 1) for offset, position in entries)

        site.watched.index_changes[IndexType.OFFSET] = shifted
        for offset in range(partition.log.local_log_start_offset):
            site.forget_chunks()
            assert await site.read_all(partition, offset, 1_000) == site.expected(partition, offset)
        assert site.indexes.counters.rebuilt > 0


@pytest.mark.parametrize("change", [lambda data: data[:-3], lambda data: b"\xff" * len(data), lambda data: b""])
async def test_m13_reads_work_with_a_damaged_index(change: Change, autojump_clock: MockClock) -> None:
    site = ReadingSite(config=tiered_config(segment_bytes=4_000, index_interval_bytes=1))
    async with site.reading():
        partition = await site.tiered()
        site.watched.index_changes = {IndexType.OFFSET: change, IndexType.TIMESTAMP: change}
        for offset in (3, 17, 30):
            assert await site.read_all(partition, offset) == site.expected(partition, offset)


# Waiting


async def test_m4_a_cancelled_read_continues_into_the_cache(autojump_clock: MockClock) -> None:
    site = ReadingSite(tier=reader_settings(kbroker_remote_chunk_bytes=4_096))
    async with site.reading():
        partition = await site.tiered()
        site.slow.read_latency_ms = 2_000
        for _ in range(2):
            with trio.move_on_after(0.5) as scope:
                await site.read(partition, 5, 1)
            assert scope.cancelled_caught
            await trio.sleep(5)
        began = trio.current_time()
        reads = len(site.watched.reads)
        assert (await site.read(partition, 5, 1)).size
        assert trio.current_time() == began, "the indexes came with the first read, the records with the second"
        assert len(site.watched.reads) == reads


async def test_nothing_is_read_before_the_metadata_are_known(autojump_clock: MockClock) -> None:
    """KAFKA-15181, KAFKA-19599: the read waits; it neither uses incomplete metadata nor fails."""
    site = ReadingSite()
    partition = site.add()
    partition.remote = RemotePartition(id_of(partition))
    with trio.move_on_after(1_000) as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(site.metadata.run)
            await nursery.start(site.reader.cache.run)
            assert not site.reader.is_ready(partition)
            site.topic.set_reachable(False)
            await site.metadata.on_partition_leadership_changes([id_of(partition)], [])
            await site.read(partition, 0)
    assert scope.cancelled_caught
