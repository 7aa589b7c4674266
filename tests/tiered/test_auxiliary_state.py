"""What a follower reads from the tier about records that the leader has deleted: `kbroker.tiered.auxiliary_state`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock

from kbroker.replication.partition import Partition
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.auxiliary_state import auxiliary_state
from tests.storage.logs import batch
from tests.tiered.tier_site import TIER, Site


@asynccontextmanager
async def copied() -> AsyncIterator[tuple[Site, Partition]]:
    """A partition with segments [0, 2], [3, 5] and [6, 7] of the epochs 1, 1 to 2, and 2 in the tier; the producer 7
    has written two batches to each epoch.
    """
    site = Site()
    partition = site.add()
    log = partition.log

    def append(sequence: int) -> None:
        now_ms = site.env.timestamp_ms()
        sent = batch(timestamp=now_ms, producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append(sent, leader_epoch=partition.leader_epoch, timestamp_ms=now_ms)
        partition.on_append()

    site.append(partition, 3)
    site.close_segment(partition)
    append(0)
    append(1)
    site.lead(partition)
    append(2)
    site.close_segment(partition)
    append(3)
    site.append(partition, 1)
    site.close_segment(partition)
    async with site.at_work():
        remote = partition.remote
        assert remote is not None
        assert remote.highest_offset_in_remote_storage == 7
        yield site, partition
    site.close()


async def test_the_state_is_that_at_the_end_of_the_segment(autojump_clock: MockClock) -> None:
    async with copied() as (site, partition):
        first = await auxiliary_state(site.manager.tools, partition, 1, 2)
        assert first == (3, [(1, 0)], [])
        second = await auxiliary_state(site.manager.tools, partition, 1, 4)
        assert (second.next_offset, second.leader_epochs) == (6, [(1, 0), (2, 5)])
        assert [(one.producer_id, one.last_sequence) for one in second.producers] == [(7, 2)]
        last = await auxiliary_state(site.manager.tools, partition, 2, 7)
        assert (last.next_offset, last.leader_epochs) == (8, [(1, 0), (2, 5)])
        assert [(one.producer_id, one.last_sequence, one.last_offset) for one in last.producers] == [(7, 3, 6)]


async def test_a_segment_of_another_lineage_is_not_used(autojump_clock: MockClock) -> None:
    async with copied() as (site, partition):
        for epoch, offset in ((3, 7), (1, 5), (2, 4), (2, 8)):
            with pytest.raises(RetriableRemoteStorageError, match="have no segment"):
                await auxiliary_state(site.manager.tools, partition, epoch, offset)


async def test_metadata_that_are_not_read_yet_are_awaited() -> None:
    site = Site()
    partition = site.add()
    with pytest.raises(RetriableRemoteStorageError, match="not read yet"):
        await auxiliary_state(site.manager.tools, partition, 1, 2)
    site.close()


@pytest.mark.parametrize("suffix", [".snapshot", ".leader-epoch-checkpoint"])
@pytest.mark.parametrize("how", ["damaged", "missing"])
async def test_an_index_that_cannot_be_used_is_an_error(suffix: str, how: str, autojump_clock: MockClock) -> None:
    async with copied() as (site, partition):
        assert isinstance(site.disk, SimulatedDisk)
        names = [path for path, data in site.disk.image(TIER).items() if data is not None and path.endswith(suffix)]
        assert len(names) == 3
        for path in names:
            if how == "missing":
                site.disk.unlink(path)
            else:
                site.disk.open(path).pwrite(b"\xff", 3)
        with pytest.raises(RemoteStorageError):
            await auxiliary_state(site.manager.tools, partition, 1, 2)
