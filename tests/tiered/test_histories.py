"""Generated histories of one tiered partition: K9 holds after every step, whatever fails or restarts in between."""

from __future__ import annotations

import os

import pytest
import trio
from trio.testing import MockClock

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import POWER_LOSSES, Loss
from kbroker.testing.draws import Draws
from kbroker.tiered.api import RemoteLogSegmentState, RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.tools import id_of
from tests.tiered.tier_site import Site, tiered_config

HISTORIES = int(os.environ.get("KBROKER_TIER_HISTORIES", "12"))
STEPS = 40
LIVES = 4

_STEPS = [
    ("append", 12), ("age", 3), ("roll", 3), ("lead", 3), ("round", 8), ("retain", 6), ("delete_records", 2),
    ("fail_copies", 3), ("fail_deletions", 2), ("break_down", 2), ("recover", 3), ("lose_metadata", 1),
    ("find_metadata", 2), ("stop_copying", 1), ("go_on_copying", 2), ("limit", 2), ("leave", 1), ("flush", 1),
]  # fmt: skip


class History:
    """Several broker processes in succession, on one disk."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.number = 0
        self.site = Site(config=tiered_config(), seed=seed)
        self.orders = self.site.add()
        self.steps: list[str] = []
        self.copied = 0

    async def run(self) -> None:
        await self.site.have_metadata_topic()
        for life in range(LIVES):
            draws = Draws("life", self.seed, life)
            is_last = life == LIVES - 1
            async with self.site.at_work(stops=draws.chance(0.5) or is_last):
                for _ in range(STEPS // LIVES):
                    await self.step()
                if is_last:
                    await self.come_to_rest()
                self.copied += len(self.site.storage.copied)
            if not is_last:
                self.restart(draws)

    def restart(self, draws: Draws) -> None:
        """Stop cleanly, crash, or lose power."""
        site = self.site
        assert isinstance(site.disk, SimulatedDisk)
        loss = draws.choice([None, Loss.PROCESS_DEATH, draws.choice(POWER_LOSSES)])
        if loss is None:
            disk = site.disk
            site.close()
        else:
            disk = site.disk.crash(loss, seed=self.seed * 1_000 + self.number)
        self.steps.append("stopped" if loss is None else loss.value)
        self.site = site.again(disk, config=self.orders.log.config, seed=self.seed * 1_000 + self.number)
        self.orders = self.site.add()
        written = self.site.written.get(self.orders.key, {})
        for base in [base for base in written if base >= self.orders.log.log_end_offset]:
            assert loss in POWER_LOSSES, f"seed {self.seed} after {self.steps}: {base} is lost"
            del written[base]

    async def step(self) -> None:
        self.number += 1
        draws = Draws("step", self.seed, self.number)
        name = draws.weighted(_STEPS)
        self.steps.append(name)
        await getattr(self, f"_{name}")(draws)
        await self.site.settle()
        self.judge(orphans=False)

    def judge(self, *, orphans: bool) -> None:
        if not self.site.metadata.is_ready(id_of(self.orders)):
            assert not orphans, self.steps
            return  # it is not tiered, or the tier's metadata are not known yet
        found = self.site.complaints(self.orders, orphans=orphans)
        assert not found, f"seed {self.seed} after {self.steps}: {found}"

    async def come_to_rest(self) -> None:
        """After all faults end, the backlog is copied, and no partial copy or orphan is left."""
        site = self.site
        site.storage.copies, site.storage.deletions, site.storage.down = [], [], None
        site.topic.set_reachable(True)
        site.reconfigure(
            self.orders, remote_storage_enable=True, remote_log_copy_disable=False, retention_ms=-1, retention_bytes=-1
        )
        site.append(self.orders, 3)
        site.close_segment(self.orders)
        await site.changed()
        await trio.sleep(60)
        await site.rounds(4)
        self.judge(orphans=True)
        remote = site.remote(self.orders)
        assert remote.last_error == "", self.steps
        assert remote.copy_lag_segments == 0, self.steps
        states = {one.state for one in site.segments(self.orders)}
        assert states <= {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}, self.steps

    # Steps

    async def _append(self, draws: Draws) -> None:
        self.site.append(self.orders, draws.between(1, 9), size=draws.choice([20, 100, 400]))

    async def _age(self, draws: Draws) -> None:
        await trio.sleep(draws.choice([1, 60, 3_600]))

    async def _roll(self, draws: Draws) -> None:
        self.site.close_segment(self.orders)

    async def _lead(self, draws: Draws) -> None:
        self.site.lead(self.orders)

    async def _round(self, draws: Draws) -> None:
        await self.site.rounds(draws.between(1, 2))

    async def _retain(self, draws: Draws) -> None:
        await self.site.retain(self.orders)

    async def _delete_records(self, draws: Draws) -> None:
        log = self.orders.log
        log.raise_log_start_offset(draws.between(log.log_start_offset, log.log_end_offset))

    async def _fail_copies(self, draws: Draws) -> None:
        self.site.storage.after = draws.chance(0.5)
        kinds = [RemoteStorageError("403"), RetriableRemoteStorageError("503"), KeyError("a bug of the plug-in"), None]
        self.site.storage.copies = [draws.choice(kinds) for _ in range(draws.between(1, 4))]

    async def _fail_deletions(self, draws: Draws) -> None:
        kinds = [RemoteStorageError("403"), RetriableRemoteStorageError("503"), None]
        self.site.storage.deletions = [draws.choice(kinds) for _ in range(draws.between(1, 4))]

    async def _break_down(self, draws: Draws) -> None:
        self.site.storage.down = RetriableRemoteStorageError("connection refused")

    async def _recover(self, draws: Draws) -> None:
        self.site.storage.down = None

    async def _lose_metadata(self, draws: Draws) -> None:
        self.site.topic.set_reachable(False)

    async def _find_metadata(self, draws: Draws) -> None:
        self.site.topic.set_reachable(True)
        await trio.sleep(10)

    async def _stop_copying(self, draws: Draws) -> None:
        await self._configure(remote_log_copy_disable=True)

    async def _go_on_copying(self, draws: Draws) -> None:
        await self._configure(remote_log_copy_disable=False, remote_storage_enable=True)

    async def _limit(self, draws: Draws) -> None:
        await self._configure(
            retention_bytes=draws.choice([-1, 2_000, 5_000]),
            retention_ms=draws.choice([-1, 1_800_000]),
            local_retention_bytes=draws.choice([0, 1_000, -2]),
            local_retention_ms=draws.choice([-2, 60_000]),
        )

    async def _leave(self, draws: Draws) -> None:
        await self._configure(remote_storage_enable=False, remote_log_delete_on_disable=True)

    async def _flush(self, draws: Draws) -> None:
        await trio.sleep(1)
        await self._configure(kbroker_remote_flush_timestamp_ms=self.site.env.timestamp_ms())

    async def _configure(self, **config: object) -> None:
        self.site.reconfigure(self.orders, **config)
        await self.site.changed()


@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_k9_m1_m8_m12_no_history_leaves_a_gap_between_the_tiers(seed: int, autojump_clock: MockClock) -> None:
    history = History(seed)
    await history.run()
    assert history.number == STEPS
    assert history.copied
