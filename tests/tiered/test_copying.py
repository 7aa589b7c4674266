"""Copying segments: in order, whole, once, and without damage."""

from __future__ import annotations

import struct

import pytest
import trio
from trio.testing import MockClock

from kbroker.storage.checkpoint import read_file
from kbroker.storage.leader_epoch import parse_epochs
from kbroker.storage.producer_state import parse_snapshot
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentState,
)
from kbroker.tiered.tools import id_of
from tests.storage.logs import batch
from tests.tiered.tier_site import FaultyStorage, Site, bases, settings, tiered_config

State = RemoteLogSegmentState


async def test_closed_segments_are_copied_in_order_with_all_their_files(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 10)
    site.lead(orders)
    site.append(orders, 12)
    closed = bases(site)[:-1]
    async with site.at_work():
        assert site.storage.copied == closed == site.finished(orders)
        assert site.remote(orders).highest_offset_in_remote_storage == bases(site)[-1] - 1
        assert not site.complaints(orders)
        segments = site.segments(orders)
        assert segments[0].segment_leader_epochs == ((1, 0),)
        assert any(len(one.segment_leader_epochs) == 2 for one in segments), "a segment has records of both epochs"
        for one in segments:
            assert one.txn_index_empty
            epochs = parse_epochs(site.storage.fetch_index(one, IndexType.LEADER_EPOCH).decode())
            assert epochs == [entry for entry in orders.log.leader_epochs.entries if entry[1] <= one.end_offset]
            assert parse_snapshot(site.storage.fetch_index(one, IndexType.PRODUCER_SNAPSHOT)) == []
            local = next(each for each in orders.log.segments if each.base_offset == one.start_offset)
            assert site.storage.fetch_index(one, IndexType.OFFSET) == read_file(site.disk, local.offset_index.path)
            assert site.storage.fetch_index(one, IndexType.TIMESTAMP) == read_file(site.disk, local.time_index.path)
        counters = site.remote(orders).counters
        assert counters.copy_requests == len(closed)
        assert counters.copy_bytes == sum(one.segment_size_in_bytes for one in segments)
        assert (site.remote(orders).copy_lag_bytes, site.remote(orders).copy_lag_segments) == (0, 0)


async def test_segments_with_undecided_transactions_are_not_copied(autojump_clock: MockClock) -> None:
    """last_stable_offset is the limit: a segment with an open transaction is not copied."""
    site = Site()
    orders = site.add()
    site.append(orders, 5)
    open_transaction = batch(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    orders.log.append(open_transaction, leader_epoch=orders.leader_epoch, timestamp_ms=site.env.timestamp_ms())
    orders.on_append()
    first_open = orders.last_stable_offset
    assert first_open == 5
    site.append(orders, 10)
    async with site.at_work():
        assert site.finished(orders)
        assert site.remote(orders).highest_offset_in_remote_storage < first_open
        assert site.remote(orders).copy_lag_segments > 0


async def test_copying_continues_after_a_restart(autojump_clock: MockClock) -> None:
    site = Site()
    site.append(site.add(), 9)
    async with site.at_work():
        copied = list(site.storage.copied)
    site.close()
    again = site.again()
    orders = again.add()
    again.append(orders, 8)
    async with again.at_work():
        assert again.storage.copied
        assert again.storage.copied[0] > copied[-1]
        assert again.finished(orders) == copied + again.storage.copied == bases(again)[:-1]
        assert not again.complaints(orders)


async def test_a_segment_is_durable_locally_before_its_copy(autojump_clock: MockClock) -> None:
    """Otherwise a power loss could make the log end before the tier, and continue with other records."""
    site = Site()
    orders = site.add()
    site.append(orders, 9)
    assert orders.log.recovery_point == 0
    async with site.at_work():
        highest = site.remote(orders).highest_offset_in_remote_storage
        assert highest is not None
        assert highest >= 7
        assert orders.log.recovery_point > highest


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["cut", "missing", "wrong", "longer"])
async def test_kafka_15401_a_damaged_local_index_is_rebuilt_and_never_copied(
    suffix: str, damage: str, autojump_clock: MockClock
) -> None:
    site = Site(config=tiered_config(index_interval_bytes=0, segment_bytes=1_500))
    orders = site.add()
    site.append(orders, 20)
    path = orders.log.segments.first.path(suffix)
    sound = read_file(site.disk, path)
    assert len(sound) >= 24
    orders.log.flush()
    orders.log.files.pool.forget(path)
    if damage == "missing":
        site.disk.unlink(path)
    else:
        file = site.disk.open(path)
        if damage == "cut":
            file.truncate(len(sound) - 3)
        elif damage == "longer":
            file.pwrite(bytes(24), len(sound))
        else:
            file.pwrite(struct.pack(">i", 77), 4)
        file.close()
    async with site.at_work():
        first = site.segments(orders)[0]
        kind = IndexType.OFFSET if suffix == ".index" else IndexType.TIMESTAMP
        assert site.storage.fetch_index(first, kind) == sound
        assert read_file(site.disk, path) == sound
        assert any("rebuilt" in one for one in site.reports)
        assert not site.complaints(orders)


async def test_d10_a_damaged_segment_is_not_copied(autojump_clock: MockClock) -> None:
    """One bit of a closed segment is flipped: neither the segment nor any later one is copied."""
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    second = list(orders.log.segments)[1]
    orders.log.flush()
    file = site.disk.open(second.log_path)
    position = second.size - 20
    sound = file.pread(1, position)
    file.pwrite(bytes([sound[0] ^ 4]), position)
    async with site.at_work():
        assert site.finished(orders) == [0]
        assert "damaged" in site.remote(orders).last_error
        assert site.remote(orders).counters.copy_errors == 1
        assert [one.state for one in site.segments(orders)] == [State.COPY_SEGMENT_FINISHED], "not started"
        lag = site.remote(orders).copy_lag_segments
        assert lag == len(bases(site)) - 2
        await site.retain(orders)
        assert bases(site)[0] == second.base_offset, "uncopied segments are kept"
        file.pwrite(sound, position)  # an operator repairs the file
        await site.rounds()
        assert site.finished(orders)[-1] + 1 > second.base_offset
        assert site.remote(orders).last_error == ""
        assert site.remote(orders).copy_lag_segments == 0
        assert not site.complaints(orders)


@pytest.mark.parametrize("how", ["missing", "damaged"])
async def test_a_missing_producer_snapshot_is_made_from_the_log(how: str, autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    for sequence in range(9):
        data = batch(producer_id=7, producer_epoch=0, base_sequence=sequence)
        orders.log.append(data, leader_epoch=orders.leader_epoch, timestamp_ms=site.env.timestamp_ms())
        orders.on_append()
    border = bases(site)[1]
    path = f"{orders.log.directory}/{border:020d}.snapshot"
    sound = read_file(site.disk, path)
    assert len(parse_snapshot(sound)) == 1
    if how == "missing":
        site.disk.unlink(path)
    else:
        file = site.disk.open(path)
        file.pwrite(b"\xff", 7)
        file.close()
    async with site.at_work():
        first = site.segments(orders)[0]
        assert site.storage.fetch_index(first, IndexType.PRODUCER_SNAPSHOT) == sound
        assert read_file(site.disk, path) == sound


async def test_an_unexpected_plug_in_exception_affects_only_its_partition(autojump_clock: MockClock) -> None:
    site = Site()
    orders, others = site.add(), site.add("others")
    site.append(orders, 9)
    site.append(others, 9)
    site.storage.copies = [ZeroDivisionError("a bug of a plug-in")]
    async with site.at_work():
        await site.rounds()
        assert site.finished(orders)
        assert site.finished(others)
        assert site.remote(orders).counters.copy_errors + site.remote(others).counters.copy_errors == 1


async def test_too_large_custom_metadata_stop_the_copying_of_the_partition(autojump_clock: MockClock) -> None:
    site = Site(tier=settings(remote_log_metadata_custom_metadata_max_bytes=8))
    orders = site.add()
    site.append(orders, 9)
    site.storage.custom_metadata = b"12345678"
    async with site.at_work():
        assert all(one.custom_metadata == b"12345678" for one in site.segments(orders))
        count = len(site.segments(orders))
        site.storage.custom_metadata = b"123456789"
        site.append(orders, 9)
        await site.rounds()
        assert len(site.segments(orders)) == count, "surplus copies are deleted"
        assert "9 bytes of custom metadata" in site.remote(orders).last_error
        tried = site.remote(orders).counters.copy_requests
        site.storage.custom_metadata = None
        await site.rounds(5)
        assert site.remote(orders).counters.copy_requests == tried, "its copying stops until the next start"
        assert not site.complaints(orders)


async def test_custom_metadata_are_passed_to_later_calls(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 9)
    site.storage.custom_metadata = b"etag"
    async with site.at_work():
        assert {one.custom_metadata for one in site.segments(orders)} == {b"etag"}


async def test_records_without_timestamps_age_from_their_files_modification(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    for _ in range(9):
        orders.log.append(batch(timestamp=-1, size=150), leader_epoch=1, timestamp_ms=site.env.timestamp_ms())
        orders.on_append()
    async with site.at_work():
        expected = site.disk.modified_ms(orders.log.segments.first.log_path)
        assert site.segments(orders)[0].max_timestamp_ms == expected


async def test_deleting_records_during_their_copy_is_no_error(autojump_clock: MockClock) -> None:
    """The segment's files are renamed between the plan and the copy."""

    class Deleting(FaultyStorage):
        def copy_log_segment_data(self, metadata, data):  # type: ignore[no-untyped-def]
            if metadata.start_offset == 0 and not self.copied:
                orders.log.raise_log_start_offset(8)
                self.copied.append(-1)
                plan = orders.log.plan_retention(high_watermark=8, timestamp_ms=0, highest_offset_in_remote_storage=-1)
                orders.log.apply_retention(plan, now_ms=0, timestamp_ms=0)
            return super().copy_log_segment_data(metadata, data)

    site = Site()
    site.storage = storage = Deleting(site.disk)
    storage.configure({"dir": "/tier", "log.dir": "/data"})
    site.manager.tools.storage = storage
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        await site.rounds(2)
        assert orders.log.log_start_offset == 8
        assert site.finished(orders)
        assert site.finished(orders)[-1] == bases(site)[-2]
        assert not site.complaints(orders)


async def test_each_partition_has_one_copy_at_a_time(autojump_clock: MockClock) -> None:
    """Each copy takes a minute: two threads, four partitions with two segments each."""
    running: set[str] = set()
    most = 0

    class SlowThreads:
        def __init__(self, limit: int) -> None:
            self.limiter = trio.CapacityLimiter(limit)

        async def run_blocking(self, function, *arguments):  # type: ignore[no-untyped-def]
            nonlocal most
            async with self.limiter:
                if function.__name__ == "_copy_data":
                    name = arguments[1].remote_log_segment_id.topic_id_partition.topic
                    assert name not in running
                    running.add(name)
                    most = max(most, len(running))
                    await trio.sleep(60)
                    running.discard(name)
                return function(*arguments)

        def resize(self, limit: int) -> None:
            self.limiter.total_tokens = limit

    site = Site(tier=settings(remote_log_manager_copier_thread_pool_size=2))
    site.manager.tools.copy_threads = SlowThreads(10)
    for number in range(4):
        site.append(site.add(f"topic{number}"), 9)
    began = trio.current_time()
    async with site.at_work():
        await trio.sleep(8 * 60 / 2 + 30)
        await site.settle()
        assert most == 2
        assert all(site.remote(one).copy_lag_segments == 0 for one in site.partitions.values())
        assert trio.current_time() - began < 300
        site.manager.reconfigure(settings(remote_log_manager_copier_thread_pool_size=4))
        for one in site.partitions.values():
            site.append(one, 9)
        await trio.sleep(3 * 60 + 30)
        assert most == 4
        assert site.metadata.list_remote_log_segments(id_of(site.partitions["topic0", 0]))
