"""Where a tiered log begins is written down, and then no metadata of the tier can say otherwise."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kbroker.replication.partition import Partition
from kbroker.storage.checkpoint import read_offsets
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from tests.tiered.tier_site import DATA, METADATA, Site, tiered_config

CHECKPOINT = f"{DATA}/log-start-offset-checkpoint"
TOLD = "the tier knows nothing of what it should have"


def disk_of(site: Site) -> SimulatedDisk:
    assert isinstance(site.disk, SimulatedDisk)
    return site.disk


def lose_metadata(disk: SimulatedDisk) -> None:
    """The whole of `__remote_log_metadata` is gone, its snapshots too."""
    for path, data in disk.image(METADATA).items():
        if data is not None:
            disk.unlink(path)


def written_start(disk: SimulatedDisk) -> int | None:
    return read_offsets(disk, CHECKPOINT).get(("orders", 0))


async def copy_more(site: Site, orders: Partition) -> None:
    """New segments get into the tier, and go here."""
    site.append(orders, 12)
    await site.rounds(2)
    await site.retain(orders)


@pytest.mark.parametrize("dies", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("start", [0, 6])
async def test_a_log_whose_tier_lost_its_metadata_keeps_its_start_over_copies_and_restarts(
    dies: bool, start: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 30)
    await site.have_metadata_topic()
    async with site.at_work():
        await site.retain(orders)
        orders.log.raise_log_start_offset(start)
        await site.write_log_starts()
    site.close()
    disk = disk_of(site)
    lose_metadata(disk)
    for round_ in range(3):
        caplog.clear()
        site = site.again(disk)
        orders = site.add()
        async with site.at_work(stops=not dies):
            assert orders.log.log_start_offset == start < orders.log.local_log_start_offset
            assert TOLD in caplog.text, round_
            await copy_more(site, orders)
            assert site.storage.deleted == []
            assert site.finished(orders)
        if dies:
            disk = disk.crash(Loss.PROCESS_DEATH)
        else:
            site.close()


async def test_a_start_that_was_never_written_down_is_once_the_tier_was_asked(autojump_clock: MockClock) -> None:
    """As where the checkpoint was lost, or written by a broker that left starts of 0 out of it."""
    site = Site()
    orders = site.add()
    site.append(orders, 30)
    await site.have_metadata_topic()
    async with site.at_work():
        await site.retain(orders)
        assert written_start(disk_of(site)) == 0
    site.close()
    disk_of(site).unlink(CHECKPOINT)
    lose_metadata(disk_of(site))
    for _ in range(2):
        site = site.again()
        orders = site.add()
        async with site.at_work():
            assert orders.log.log_start_offset == 0 < orders.log.local_log_start_offset
            await copy_more(site, orders)
        site.close()


async def test_a_start_that_is_not_known_for_certain_is_not_written_down(autojump_clock: MockClock) -> None:
    """The next start would believe it, and keep to it whatever the tier has."""
    site = Site()
    orders = site.add()
    site.append(orders, 30)
    async with site.at_work():
        await site.retain(orders)
        orders.log.raise_log_start_offset(9)
        await site.rounds()
        assert site.finished(orders)[0] == 8
    site.close()
    disk_of(site).unlink(CHECKPOINT)
    site = site.again()
    orders = site.add()
    assert orders.log.log_start_offset == 0
    await site.write_log_starts()  # the loop of the storage may come first
    assert written_start(disk_of(site)) is None
    site = site.again(disk_of(site).crash(Loss.PROCESS_DEATH))
    orders = site.add()
    async with site.at_work():
        assert orders.log.log_start_offset == 8, "as much as the tier has"
        assert written_start(disk_of(site)) == 8


async def test_m8_at_no_crash_is_anything_gone_here_whose_start_is_not_written_down(autojump_clock: MockClock) -> None:
    """At each operation of the disk the process dies and takes the metadata along: the start is never higher than it
    was, and stays, though new segments are copied and the broker starts once more.
    """
    site = Site(config=tiered_config(index_interval_bytes=0))
    orders = site.add()
    site.append(orders, 9)
    await site.have_metadata_topic()
    crashes: list[tuple[str, SimulatedDisk, int, dict[int, bytes]]] = []

    def observe(operation: Operation) -> None:
        if operation.path.startswith(DATA):
            disk = disk_of(site).crash(Loss.PROCESS_DEATH, during=operation, done=0.0)
            crashes.append((str(operation), disk, orders.log.log_start_offset, dict(site.written[orders.key])))

    disk_of(site).observer = observe
    async with site.at_work():
        await site.retain(orders)
        site.append(orders, 9)
        orders.log.raise_log_start_offset(6)
        await site.rounds()
        await site.retain(orders)
    disk_of(site).observer = None
    assert {name for name, *_ in crashes if "log-start-offset-checkpoint" in name}
    for name, disk, most, written in crashes:
        lose_metadata(disk)
        found = []
        for seed in (500, 501):
            again = Site(
                disk, config=site.config, written={orders.key: written}, leader_epoch=site.leader_epoch, seed=seed
            )
            partition = again.add()
            assert partition.log.log_start_offset <= most, name
            async with again.at_work():
                await copy_more(again, partition)
                found.append(partition.log.log_start_offset)
            again.close()
        assert found[0] == found[1] <= most, name
