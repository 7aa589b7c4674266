"""Files of the data directory are lost, or cannot be read or written for a while: the tier keeps its data."""

from __future__ import annotations

import errno

import pytest
from trio.testing import MockClock

from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.tiered.tools import id_of
from tests.tiered.tier_site import DATA, INTERVAL_MS, Site


def lose(site: Site, ending: str) -> None:
    """Remove the files of the data directory whose path has this suffix."""
    assert isinstance(site.disk, SimulatedDisk)
    found = [path for path, data in site.disk.image(DATA).items() if data is not None and path.endswith(ending)]
    assert found
    for path in found:
        site.disk.unlink(path)


async def test_losing_local_files_deletes_nothing_in_the_tier(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka treats the tier's data as another history, and deletes them within one round."""
    site = Site()
    orders = site.add()
    site.append(orders, 40)
    async with site.at_work():
        await site.retain(orders)
        before = site.finished(orders)
        assert len(before) == 9
    assert "has lost records" not in caplog.text
    site.close()
    lose(site, ".log")
    again = site.again(written={})
    orders = again.add()
    async with again.at_work():
        assert orders.log.log_end_offset == 0
        assert "has lost records" in caplog.text
        again.append(orders, 6)
        await again.rounds(3)
        assert again.finished(orders) == [0, *before]
        orders.log.raise_log_start_offset(4)
        await again.rounds(2)
        assert again.finished(orders) == before[1:], "segments below the log start are deleted as usual"


async def test_lost_epochs_are_restored_from_the_tier(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    for _ in range(4):
        site.append(orders, 12)
        site.lead(orders)
    async with site.at_work():
        site.close_segment(orders)
        await site.rounds()
        await site.retain(orders)
        before = site.finished(orders)
        assert orders.log.local_log_start_offset == 48
    site.close()
    lose(site, "/orders-0/leader-epoch-checkpoint")
    again = site.again()
    orders = again.add()
    async with again.at_work():
        again.append(orders, 1)
        await again.rounds()
        assert again.finished(orders) == before
        assert again.remote(orders).highest_offset_in_remote_storage == 47
        assert not again.complaints(orders)


async def test_a_registry_that_cannot_be_opened_is_read_later(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    async with site.at_work():
        known = site.manager._registry.entries
        assert known == {id_of(orders)}
    site.close()
    assert isinstance(site.disk, SimulatedDisk)
    site.disk.inject(Fault(errno.EMFILE, name="open", path="*remote-partitions*", times=3))
    again = site.again()
    orders = again.add()
    async with again.at_work():
        assert again.manager._registry.entries == known
        assert not again.manager._is_registry_lost
        assert again.finished(orders) == [0, 4, 8, 12]


async def test_d9_a_deletion_that_cannot_be_registered_backs_off(autojump_clock: MockClock) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 20)
    assert isinstance(site.disk, SimulatedDisk)
    async with site.at_work():
        fault = Fault(errno.ENOSPC, name="write", path="*remote-partitions*", times=1_000)
        site.disk.inject(fault)
        site.delete_topic(orders)
        await site.changed()
        await site.rounds(10)
        assert site.objects() == set()
        assert 0 < 1_000 - fault.times <= 12, f"once in {INTERVAL_MS} ms"
        site.disk.heal()
        await site.rounds(2)
        assert site.manager._registry.entries == set()
