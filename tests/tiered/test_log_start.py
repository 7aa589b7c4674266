"""The start of a tiered log is stored, and the tier's metadata cannot override it later."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kbroker.replication.partition import Partition
from kbroker.storage.checkpoint import read_offsets
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from tests.tiered.tier_site import DATA, METADATA, Site, tiered_config

CHECKPOINT = f"{DATA}/log-start-offset-checkpoint"
WARNING = "the tier's metadata lack segments"


def disk_of(site: Site) -> SimulatedDisk:
    assert isinstance(site.disk, SimulatedDisk)
    return site.disk


def lose_metadata(disk: SimulatedDisk) -> None:
    """Lose the whole of `__remote_log_metadata` and its snapshots."""
    for path, data in disk.image(METADATA).items():
        if data is not None:
            disk.unlink(path)


def written_start(disk: SimulatedDisk) -> int | None:
    return read_offsets(disk, CHECKPOINT).get(("orders", 0))


async def copy_more(site: Site, orders: Partition) -> None:
    """Copy new segments to the tier and delete them locally."""
    site.append(orders, 12)
    await site.rounds(2)
    await site.retain(orders)


@pytest.mark.parametrize("dies", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("start", [0, 6])
async def test_a_log_keeps_its_start_after_a_metadata_loss(
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
            assert WARNING in caplog.text, round_
            await copy_more(site, orders)
            assert site.storage.deleted == []
            assert site.finished(orders)
        if dies:
            disk = disk.crash(Loss.PROCESS_DEATH)
        else:
            site.close()


async def test_an_unstored_start_is_stored_after_the_metadata_are_read(autojump_clock: MockClock) -> None:
    """The checkpoint was lost, or was written by a broker that omitted starts of 0."""
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


async def test_a_follower_of_a_new_tiered_log_finds_its_start_when_it_leads(autojump_clock: MockClock) -> None:
    """The log was loaded as a tiered log after its first segments were deleted, and the tier has nothing of it."""
    site = Site(config=tiered_config(remote_storage_enable=False, retention_bytes=2_000))
    orders = site.add()
    site.append(orders, 30)
    await site.retain(orders)
    began = orders.log.log_start_offset
    assert began > 10
    site.close()
    site = site.again(config=tiered_config())
    orders = site.add()
    assert orders.log.log_start_offset == 0 < orders.log.local_log_start_offset
    site.lead(orders, leader=2)
    async with site.at_work():
        await site.rounds()
        site.lead(orders)
        await site.rounds()
        assert orders.log.log_start_offset == orders.log.local_log_start_offset == began
        assert not site.complaints(orders)


async def test_an_uncertain_start_is_not_stored(autojump_clock: MockClock) -> None:
    """The next start would trust it, whatever the tier has."""
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
    await site.write_log_starts()  # the retention loop may run first
    assert written_start(disk_of(site)) is None
    site = site.again(disk_of(site).crash(Loss.PROCESS_DEATH))
    orders = site.add()
    async with site.at_work():
        assert orders.log.log_start_offset == 8, "as much as the tier has"
        assert written_start(disk_of(site)) == 8


@pytest.mark.long
async def test_m8_local_deletions_follow_the_stored_start_at_every_crash(autojump_clock: MockClock) -> None:
    """At each disk operation the process dies and the metadata are lost: the log start is never higher than before, and
    stays, although new segments are copied and the broker restarts.
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
