"""Lookups by timestamp in the tier: `kbroker.tiered.remote_search`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from kbroker.replication.partition import Partition
from kbroker.tiered.remote_search import Found, RemoteSearch
from tests.tiered.reading_site import ReadingSite, reader_settings
from tests.tiered.tier_site import tiered_config
from wire.compression import Codec
from wire.record_batch import Record, batches, build_batch

BATCH = 3


async def written(site: ReadingSite, timestamps: Sequence[int], *, codec: Codec = Codec.NONE) -> Partition:
    """A partition with records of these timestamps, three to a batch; only its last segment is local."""
    partition = site.add()
    await site.changed()
    for start in range(0, len(timestamps), BATCH):
        records = [Record(timestamp=one, value=b"v" * 30) for one in timestamps[start : start + BATCH]]
        data = build_batch(records, codec=codec)
        plan = partition.log.append(data, leader_epoch=partition.leader_epoch, timestamp_ms=0)
        site.written.setdefault(partition.key, {})[plan.first_offset] = bytes(plan.data)
        partition.on_append()
    await site.rounds(2)
    await site.retain(partition)
    return partition


def records_in_tier(site: ReadingSite, partition: Partition) -> list[tuple[int, int]]:
    """(offset, timestamp) of the records that are only in the tier."""
    return [
        (record.offset, record.timestamp)
        for base, data in sorted(site.written[partition.key].items())
        for one in batches(data)
        for record in one.records()
        if partition.log.log_start_offset <= record.offset < partition.log.local_log_start_offset
    ]


def search(site: ReadingSite, partition: Partition) -> RemoteSearch:
    return RemoteSearch(site.reader, site.slow, partition)


def brief(found: Found | None) -> tuple[int, int] | None:
    return None if found is None else found[:2]


MIXED = [1_000 + (37 * number) % 101 for number in range(60)]


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_search_finds_the_first_record_with_the_timestamp(codec: Codec, autojump_clock: MockClock) -> None:
    site = ReadingSite(config=tiered_config(index_interval_bytes=1, segment_bytes=700))
    async with site.reading():
        partition = await written(site, MIXED, codec=codec)
        known = records_in_tier(site, partition)
        assert len({one.start_offset for one in site.segments(partition)}) > 1
        for timestamp in range(995, 1_105):
            expected = next(((offset, at) for offset, at in known if at >= timestamp), None)
            assert brief(await search(site, partition).first_at_or_after(timestamp)) == expected, timestamp


async def test_the_largest_timestamp_gives_the_first_such_record(autojump_clock: MockClock) -> None:
    """KAFKA-17552."""
    site = ReadingSite(config=tiered_config(segment_bytes=1_500))
    async with site.reading():
        partition = await written(site, [*MIXED[:20], 5_000, *MIXED[20:40], 5_000, *MIXED])
        assert brief(await search(site, partition).latest()) == (20, 5_000)


@pytest.mark.parametrize("start", [0, 1, 4, 19, 20, 21, 22, 30])
async def test_records_below_the_log_start_are_not_found(start: int, autojump_clock: MockClock) -> None:
    site = ReadingSite(config=tiered_config(segment_bytes=1_500))
    async with site.reading():
        partition = await written(site, [*MIXED[:20], 5_000, 4_000, *MIXED])
        partition.log.raise_log_start_offset(start)
        known = records_in_tier(site, partition)
        assert known[0][0] == start
        newest = max(at for _, at in known)
        expected = next(one for one in known if one[1] == newest)
        assert brief(await search(site, partition).latest()) == expected
        for timestamp in (0, 1_050, 4_500):
            first = next(((offset, at) for offset, at in known if at >= timestamp), None)
            assert brief(await search(site, partition).first_at_or_after(timestamp)) == first


async def test_a_search_decodes_one_batch_and_skips_old_segments(autojump_clock: MockClock) -> None:
    """KAFKA-16548: headers are sufficient; earlier segments are skipped by their metadata."""
    site = ReadingSite(
        config=tiered_config(segment_bytes=4_000, index_interval_bytes=200),
        tier=reader_settings(kbroker_remote_chunk_bytes=512),
    )
    async with site.reading():
        partition = await written(site, list(range(1_000, 1_300)))
        last = site.segments(partition)[-1]
        wanted = 1_000 + last.start_offset + 40
        assert await search(site, partition).first_at_or_after(wanted) is not None
        assert {start for start, _ in site.watched.index_reads} == {last.start_offset}
        assert {start for start, _, _ in site.watched.reads} == {last.start_offset}
        assert len(site.watched.reads) <= 2, "the index leads to the chunks of the batch only"


async def test_without_timestamps_there_is_no_latest_record(autojump_clock: MockClock) -> None:
    site = ReadingSite()
    async with site.reading():
        partition = await written(site, [-1] * 40)
        assert partition.log.local_log_start_offset > 0
        assert await search(site, partition).first_at_or_after(0) is None


@settings(max_examples=30, deadline=None)
@given(timestamps=st.lists(st.integers(0, 50), min_size=30, max_size=60), asked=st.integers(0, 51))
def test_a_search_finds_what_a_full_read_finds(timestamps: list[int], asked: int) -> None:
    """A property, over short logs with timestamps in any order."""

    async def compare() -> None:
        site = ReadingSite(config=tiered_config(segment_bytes=700, index_interval_bytes=1))
        async with site.reading():
            partition = await written(site, timestamps)
            known = records_in_tier(site, partition)
            newest = max((at for _, at in known), default=-1)
            latest = next((one for one in known if one[1] == newest), None)
            assert brief(await search(site, partition).latest()) == latest
            expected = next((one for one in known if one[1] >= asked), None)
            assert brief(await search(site, partition).first_at_or_after(asked)) == expected

    trio.run(compare, clock=MockClock(autojump_threshold=0))
