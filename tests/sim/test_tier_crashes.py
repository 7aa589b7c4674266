"""The tier, crashed at every disk operation of copying and deleting: rows M8 and D10, checker K9.

The log, the tier's directory and its metadata are on one simulated disk. At each operation the process dies, or the
power fails. The state of the next start must satisfy K9 before it runs any task, and it must settle: every closed
segment is in the tier, there are no orphans, and reads return what was written.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from kbroker.replication.partition import Partition
from kbroker.storage.checkpoint import TopicPartition
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import POWER_LOSSES, Loss
from kbroker.testing.draws import Draws
from kbroker.tiered.api import RemoteLogSegmentState, RemoteStorageError
from tests.tiered.tier_site import Site, settings, tiered_config

LOSSES = float(os.environ.get("KBROKER_TIER_SWEEP_LOSSES", "0.4"))
"""How many kinds of power loss each point meets in addition to the death of the process; drawn."""

COPY_POINTS = {
    "rlmm.started": ("write", "/metadata/*.log"),
    "rlmm.started synced": ("sync", "/metadata/*.log"),
    "part": ("write", "/tier/*.log.tmp"),
    "part synced": ("sync", "/tier/*.log.tmp"),
    "complete": ("rename", "/tier/*.log.tmp"),
    "aux.index": ("write", "/tier/*.index.tmp"),
    "aux.timeindex": ("write", "/tier/*.timeindex.tmp"),
    "aux.snapshot": ("write", "/tier/*.snapshot.tmp"),
    "aux.epochs": ("write", "/tier/*.leader-epoch-checkpoint.tmp"),
    "manifest": ("rename", "/tier/*.manifest.json.tmp"),
    "names": ("sync_directory", "/tier/*"),
    "local.delete": ("rename", "/data/orders-0/*.log"),
    "local.delete names": ("sync_directory", "/data/orders-0"),
}
DELETE_POINTS = {
    "log start": ("rename", "/data/log-start-offset-checkpoint.tmp"),
    "rlmm.del_started": ("write", "/metadata/*.log"),
    "object.delete": ("unlink", "/tier/*.log"),
    "object.delete manifest": ("unlink", "/tier/*.manifest.json"),
    "object.delete aux": ("unlink", "/tier/*.index"),
}


@dataclass(frozen=True)
class Crash:
    """A disk after a crash, and what had been written until then."""

    operation: Operation
    loss: Loss
    disk: SimulatedDisk
    written: dict[TopicPartition, dict[int, bytes]]
    start: int
    topic_exists: bool

    def __str__(self) -> str:
        return f"{self.loss.value} at {self.operation}"


class Sweep:
    """Runs a story once and collects its crashes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.crashes: list[Crash] = []
        self.points: set[str] = set()
        self.site: Site | None = None

    def watch(self, site: Site) -> None:
        """Collect a crash at each operation from now on."""
        assert isinstance(site.disk, SimulatedDisk)
        self.site = site
        site.disk.observer = self._observe

    def _observe(self, operation: Operation) -> None:
        site = self.site
        assert site is not None
        assert isinstance(site.disk, SimulatedDisk)
        for name, (kind, path) in {**COPY_POINTS, **DELETE_POINTS}.items():
            if operation.name == kind and fnmatch(operation.path, path):
                self.points.add(name)
        draws = Draws("tier", self.seed, operation.number)
        kinds = list(POWER_LOSSES)
        count = int(LOSSES) + draws.chance(LOSSES % 1)
        losses = [Loss.PROCESS_DEATH] + [kinds.pop(draws.below(len(kinds))) for _ in range(count)]
        orders = site.partitions.get(("orders", 0))
        for loss in losses:
            done = draws.choice([0.0, 0.5]) if operation.name == "write" else 0.0
            self.crashes.append(
                Crash(
                    operation,
                    loss,
                    site.disk.crash(loss, seed=operation.number, during=operation, done=done),
                    {key: dict(batches) for key, batches in site.written.items()},
                    orders.log.log_start_offset if orders is not None else 0,
                    orders is not None,
                )
            )

    async def recover(self, crash: Crash) -> list[str]:
        """The complaints about the state after the next start."""
        source = self.site
        assert source is not None
        site = source.again(crash.disk, written=crash.written, seed=1_000 + crash.operation.number)
        if not crash.topic_exists:
            async with site.at_work():
                await site.rounds(2)
                return [f"{len(site.objects())} objects of a deleted topic are left"] if site.objects() else []
        orders = site.add()
        log = orders.log
        batches = crash.written[orders.key]
        if crash.loss is Loss.PROCESS_DEATH and log.log_end_offset != max(batches) + 1:
            return [f"the log ends at {log.log_end_offset}, not after {max(batches)}"]
        for base in [base for base in batches if base >= log.log_end_offset]:
            del batches[base]  # never synced, and lost with the power
        found: list[str] = []
        if log.log_start_offset > crash.start:
            found.append(f"the log begins at {log.log_start_offset}, but began at {crash.start}")
        async with site.at_work():
            found += [f"at once: {one}" for one in site.complaints(orders, orphans=False)]
            site.append(orders, 5)
            await site.rounds(2)
            await site.retain(orders)
            found += [f"after settling: {one}" for one in site.complaints(orders)]
            if site.remote(orders).copy_lag_segments:
                found.append("not every closed segment is in the tier")
            unfinished = [one for one in site.segments(orders) if one.state is not _FINISHED]
            if unfinished:
                found.append(f"segments are unfinished: {[one.state.name for one in unfinished]}")
            found += _complaints_about_local(site, orders)
        return found


_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def _complaints_about_local(site: Site, orders: Partition) -> list[str]:
    offset, log = orders.log.local_log_start_offset, orders.log
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes=1 << 20).read()
        if not piece:
            return [f"nothing can be read at {offset}"]
        expected = b""
        while len(expected) < len(piece):
            batch = site.written[orders.key].get(offset)
            if batch is None:
                return [f"offset {offset} was never written"]
            expected += batch
            offset += 1
        if expected != piece:
            return [f"the read data before {offset} is not what was written"]
    return []


async def copy_and_retain(sweep: Sweep) -> None:
    """Segments are copied, and deleted locally once they are in the tier."""
    site = Site(config=tiered_config(index_interval_bytes=0), seed=sweep.seed)
    orders = site.add()
    site.append(orders, 9)
    await site.have_metadata_topic()
    sweep.watch(site)
    async with site.at_work():
        await site.retain(orders)
        site.lead(orders)
        site.append(orders, 5)
        await site.rounds()
        await site.retain(orders)
        assert orders.log.local_log_start_offset == 13


async def expire(sweep: Sweep) -> None:
    """Segments leave the tier by size, and because records were deleted."""
    site = Site(config=tiered_config(retention_bytes=1_900), seed=sweep.seed)
    orders = site.add()
    site.append(orders, 9)
    await site.have_metadata_topic()
    async with site.at_work():
        await site.retain(orders)
        sweep.watch(site)
        site.append(orders, 8)
        await site.rounds(2)
        await site.retain(orders)
        orders.log.raise_log_start_offset(13)
        await site.rounds()
        assert site.storage.deleted[:2] == [0, 4]
        assert site.finished(orders) == [13]


async def fail_and_tidy(sweep: Sweep) -> None:
    """Copies fail after all objects are written, and cleaning up fails too."""
    site = Site(config=tiered_config(), seed=sweep.seed)
    orders = site.add()
    site.append(orders, 9)
    site.storage.after = True
    site.storage.copies = [RemoteStorageError("507"), RemoteStorageError("507")]
    site.storage.deletions = [RemoteStorageError("no"), None]
    await site.have_metadata_topic()
    sweep.watch(site)
    async with site.at_work():
        await site.rounds(2)
        assert site.finished(orders) == [0, 4]
        assert len(site.storage.deleted) == 2


async def delete_topic(sweep: Sweep) -> None:
    """A topic with segments in the tier is deleted."""
    site = Site(config=tiered_config(), seed=sweep.seed)
    orders = site.add()
    site.append(orders, 9)
    await site.have_metadata_topic()
    async with site.at_work():
        await site.retain(orders)
        site.delete_topic(orders)  # durably in the cluster's metadata
        sweep.watch(site)
        await site.changed()
        await site.rounds()
        assert site.objects() == set()


async def leave_the_tier(sweep: Sweep) -> None:
    """remote.storage.enable is switched off, with remote.log.delete.on.disable."""
    site = Site(config=tiered_config(), seed=sweep.seed)
    orders = site.add()
    site.append(orders, 9)
    await site.have_metadata_topic()
    async with site.at_work():
        await site.retain(orders)
        site.config = tiered_config(remote_storage_enable=False, remote_log_delete_on_disable=True, segment_bytes=800)
        site.reconfigure(orders, remote_storage_enable=False, remote_log_delete_on_disable=True)
        sweep.watch(site)
        await site.changed()
        await site.rounds()
        assert site.objects() == set()


Story = Callable[[Sweep], Awaitable[None]]


def run(story: Story, seed: int) -> Sweep:
    sweep = Sweep(seed)
    trio.run(partial(story, sweep), clock=MockClock(autojump_threshold=0))
    return sweep


@pytest.mark.long
@pytest.mark.parametrize(
    ("story", "points"),
    [
        (copy_and_retain, set(COPY_POINTS)),
        (expire, set(DELETE_POINTS)),
        (fail_and_tidy, {"rlmm.started", "complete", "object.delete"}),
        (delete_topic, {"rlmm.del_started", "object.delete"}),
    ],
)
def test_m8_k9_m12_the_tier_recovers_from_a_crash_at_every_operation(story: Story, points: set[str]) -> None:
    sweep = run(story, 1)
    assert points <= sweep.points, "the story does not reach all of its points"
    wrong = []
    for crash in sweep.crashes:
        for complaint in trio.run(sweep.recover, crash, clock=MockClock(autojump_threshold=0)):
            wrong.append(f"{crash}: {complaint}")
    assert not wrong, "\n".join(wrong[:10])
    assert len(sweep.crashes) > 40


def test_m8_leaving_the_tier_survives_a_crash_at_every_operation() -> None:
    sweep = run(leave_the_tier, 1)
    assert {"log start", "object.delete"} <= sweep.points

    async def recover(crash: Crash) -> list[str]:
        assert sweep.site is not None
        site = sweep.site.again(crash.disk, written=crash.written, seed=1_000 + crash.operation.number)
        orders = site.add()
        found = []
        async with site.at_work():
            await site.rounds(2)
            if site.objects():
                found.append("something is left in the tier")
            if orders.log.log_start_offset != orders.log.local_log_start_offset:
                found.append("the log begins where it has no records")
            found += _complaints_about_local(site, orders)
        return found

    wrong = [
        f"{crash}: {complaint}"
        for crash in sweep.crashes
        for complaint in trio.run(recover, crash, clock=MockClock(autojump_threshold=0))
    ]
    assert not wrong, "\n".join(wrong[:10])
    assert sweep.crashes


def test_the_sweep_detects_a_local_segment_deleted_too_early() -> None:
    """A canary: retention that trusts a copy which has only begun."""

    async def too_early(sweep: Sweep) -> None:
        site = Site(config=tiered_config(), seed=sweep.seed, tier=settings())
        orders = site.add()
        site.append(orders, 9)
        await site.have_metadata_topic()
        sweep.watch(site)
        site.storage.copies = [RemoteStorageError("507")] * 9
        async with site.at_work():
            site.remote(orders).highest_offset_in_remote_storage = 7
            await site.retain(orders)

    sweep = run(too_early, 1)
    wrong = [
        one
        for crash in sweep.crashes[-3:]
        for one in trio.run(sweep.recover, crash, clock=MockClock(autojump_threshold=0))
    ]
    assert any("no finished segment with offset 0" in one for one in wrong)
