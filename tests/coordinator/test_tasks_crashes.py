"""Crash a node at each operation on its group files, and check what the next start finds.

Commits continue while the log is cleaned. After a process crash every acknowledged
commit is there. After a power loss everything that was synced is there, and nothing that was never committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.draws import Draws
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import create_topic
from tests.handlers.groups import beat, commit, find, form, offsets_of
from wire.messages.join_group import JoinGroupResponse

SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 2048,
    "log.cleaner.backoff.ms": 1000,
    "log.flush.interval.ms": 1000,
    "log.segment.delete.delay.ms": 0,
}
GROUPS = ("a", "b", "c")
ROUNDS = 24
POWER = (Loss.ONLY_SYNCED, Loss.PREFIX, Loss.TORN, Loss.SECTORS, Loss.NAMES_LOST)


@dataclass(frozen=True)
class Crash:
    """The disk after a crash, and the least and the most that must be on it, by group."""

    operation: str
    loss: Loss
    disk: SimulatedDisk
    least: dict[str, int]
    most: dict[str, int]


class Watcher:
    """Crashes a copy of the disk at each operation on the group files.

    Shape  acknowledged and attempted are the offsets of each group; synced is what was acknowledged when the whole log
           was last synced
    """

    def __init__(self, broker: MemoryBroker, losses: Sequence[Loss]) -> None:
        self.acknowledged = dict.fromkeys(GROUPS, -1)
        self.attempted = dict.fromkeys(GROUPS, -1)
        self.synced = dict.fromkeys(GROUPS, -1)
        self.crashes: list[Crash] = []
        self._disk = broker.disk
        self._losses = losses
        self._pending: dict[str, int] | None = None
        self._disk.observer = self._observe

    def _observe(self, operation: Operation) -> None:
        if self._pending is not None and operation.name != "sync_directory":
            # A new segment is durable only with its name, which is synced next.
            self.synced, self._pending = self._pending, None
        if "__consumer_offsets-0" not in operation.path and "cleaner-offset-checkpoint" not in operation.path:
            return
        draws = Draws("groups", operation.number)
        loss = draws.choice(self._losses)
        least = self.acknowledged if loss is Loss.PROCESS_DEATH else self.synced
        disk = self._disk.crash(loss, seed=operation.number, during=operation)
        self.crashes.append(Crash(str(operation), loss, disk, dict(least), dict(self.attempted)))
        if operation.name == "sync" and operation.path.endswith(self._active_segment()):
            self._pending = dict(self.acknowledged)

    def _active_segment(self) -> str:
        names = [path for path in self._disk.image("/data/__consumer_offsets-0") if path.endswith(".log")]
        return max(names)


async def commit_for_long(client: Client, joined: JoinGroupResponse, watcher: Watcher) -> None:
    for offset in range(ROUNDS):
        for group_id in GROUPS:
            watcher.attempted[group_id] = offset
            assert await commit(client, {("t", 0): offset}, group_id=group_id, metadata="x" * 40) == {("t", 0): 0}
            watcher.acknowledged[group_id] = offset
        await trio.sleep(1)
        await beat(client, joined, group_id="members")


async def survive(crash: Crash, joined: JoinGroupResponse) -> str | None:
    """Start from the crashed disk. Returns what is wrong, or None."""
    async with memory_broker(crash.disk, settings=SETTINGS, stops_cleanly=False) as broker:
        client = await broker.connect()
        for group_id in GROUPS:
            offset = (await offsets_of(client, group_id)).get(("t", 0), -1)
            if not crash.least[group_id] <= offset <= crash.most[group_id]:
                return f"{group_id} is at {offset}, not in {crash.least[group_id]}..{crash.most[group_id]}"
        if min(crash.least.values()) >= 0 and await beat(client, joined, group_id="members") != 0:
            return "a stable group has lost its member"
    return None


@pytest.mark.long
@pytest.mark.parametrize("losses", [[Loss.PROCESS_DEATH], POWER], ids=["process", "power"])
async def test_d6_d7_k10_a_crash_at_any_operation_loses_no_commit(
    losses: Sequence[Loss], autojump_clock: MockClock
) -> None:
    """Also during a cleaning (D6); after a power loss, nothing that was synced is lost (D7)."""
    async with memory_broker(settings=SETTINGS, stops_cleanly=False) as broker:
        client = await broker.connect()
        await find(client)
        await create_topic(client, "t")
        joined = await form(client, "members")
        watcher = Watcher(broker, losses)
        await commit_for_long(client, joined, watcher)
        broker.disk.observer = None
        assert broker.node.broker is not None
        held = broker.node.broker.groups.led[0].partition.log
        assert held.cleaned_offset is not None
        assert held.cleaned_offset > 40, "the log was cleaned more than once"
        assert len(held.segments) < 5, "old segments were replaced"
    crashes = watcher.crashes
    assert len(crashes) > 100
    assert {crash.loss for crash in crashes} == set(losses)
    assert max(min(crash.least.values()) for crash in crashes) > 10, "something was synced"
    wrong = [(crash.operation, crash.loss, found) for crash in crashes if (found := await survive(crash, joined))]
    assert not wrong
