"""Groups whose members join, sync, commit, pause, leave, crash and return, with coordinators that stop and crash.

The group checker judges each history (K10). Then the faults end and the group must settle: every member in one
generation, every partition with one owner. Seeded histories behave like real groups with occasional faults; those of
hypothesis take the steps in any order.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.testing.draws import Draws
from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import Function, Type
from tests.coordinator.members import PARTITIONS, Client, CoordinatorDied, RecordingWorld, settle
from wire.errors import ErrorCode

CLIENTS = 4
HISTORIES = int(os.environ.get("KBROKER_GROUP_HISTORIES", "40"))
Step = tuple[str, int, int]

FAULTS = ("coordinator dies", "coordinator dies in append", "append fails")
ACTIONS = (
    *("step",) * 8,
    *("commit",) * 3,
    *("advance",) * 4,
    "round",
    "round",
    "read",
    "commit untold",
    "leave",
    "die",
    "follow",
    "rejoin",
    "reload",
    *FAULTS,
)
HAPPENINGS = (*("leave", "die", "follow", "reload", "rejoin"), *FAULTS)


class Run:
    """One history."""

    def __init__(self, *, initial_delay_ms: int, static: int) -> None:
        self.world = RecordingWorld(group_initial_rebalance_delay_ms=initial_delay_ms)
        self.created = 0
        self.clients = [self.new_client(f"static-{index}" if index < static else None) for index in range(CLIENTS)]
        self.zombies: list[Client] = []
        self.paused: dict[str, int] = {}

    def new_client(self, instance_id: str | None) -> Client:
        self.created += 1
        return Client(self.world, f"c{self.created}", instance_id)

    def take(self, action: str, index: int, amount: int) -> None:
        world, client = self.world, self.clients[index % CLIENTS]
        partition = amount % PARTITIONS
        match action:
            case "step":
                client.step()
            case "round":
                for each in [*self.clients, *self.zombies]:
                    each.step()
            case "commit":
                client.commit(partition)
                for zombie in self.zombies:
                    zombie.commit(partition)
            case "commit untold":
                client.commit(partition, gets_answer=False)
            case "advance":
                self.advance(amount * 100)
            case "read":
                world.read("admin", partition)
            case "rejoin":
                client.rejoin()
            case "leave":
                client.leave()
            case "die":
                self.clients[index % CLIENTS] = self.new_client(client.instance_id)
            case "follow":
                self.zombies = [*self.zombies[-1:], client]
                self.clients[index % CLIENTS] = self.new_client(client.instance_id)
            case "reload":
                world.reload()
            case "coordinator dies":
                world.die()
                self.disconnect()
            case "coordinator dies in append":
                world.dies_in_append = True
            case "append fails":
                world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
        world.check()

    def live(self, draws: Draws) -> None:
        """One round: every client that is not paused takes its next step, and time passes."""
        for client in [*self.clients, *self.zombies]:
            if self.paused.get(client.name, 0) > self.world.now_ms:
                continue
            # After a pause, a client may commit before it learns of a rebalance.
            if draws.chance(0.4):
                client.commit(draws.below(PARTITIONS), gets_answer=draws.chance(0.9))
            if draws.chance(0.85):
                client.step()
            self.world.check()
        if draws.chance(0.3):
            self.world.read("admin", draws.below(PARTITIONS))
        if draws.chance(0.1):
            paused = self.clients[draws.below(CLIENTS)]
            self.paused[paused.name] = self.world.now_ms + draws.choice([3_000, 9_000, 15_000, 40_000])
        if draws.chance(0.1):
            busy = self.clients[draws.below(CLIENTS)]
            busy.is_busy = not busy.is_busy
        if draws.chance(0.2):
            self.take(draws.choice(HAPPENINGS), draws.below(CLIENTS), draws.below(100))
        self.advance(draws.choice([100, 500, 1_000, 3_000]))

    def advance(self, ms: int) -> None:
        try:
            self.world.advance(ms)
        except CoordinatorDied:
            self.world.die()
        self.disconnect()

    def disconnect(self) -> None:
        """Clients that wait for a crashed coordinator notice that it is gone."""
        for client in [*self.clients, *self.zombies]:
            if client.waiting is not None and not self.is_parked(client):
                client.disconnected()

    def is_parked(self, client: Client) -> bool:
        return any(
            client.waiting in (member.awaiting_join, member.awaiting_sync)
            for group_id in self.world.shard.group_ids()
            if (group := self.world.shard.group(group_id)) is not None
            for member in group.members.values()
        )

    def heal(self) -> None:
        world = self.world
        world.dies_in_append, world.fail_with = False, None
        self.disconnect()
        self.zombies = []
        settle(world, self.clients)
        owned = sorted(partition for client in self.clients for partition in client.owned or [])
        assert owned == list(range(PARTITIONS))
        for partition in range(PARTITIONS):
            world.read("admin", partition)
        world.reload()
        for partition in range(PARTITIONS):
            world.read("auditor", partition)
        for client in self.clients:
            for partition in client.owned or []:
                client.commit(partition)
                world.read("admin", partition)


def judge(run: Run) -> None:
    assert check_groups(run.world.events) == []
    done = {event.function for event in run.world.events if event.type is Type.OK}
    assert done == {Function.OWN, Function.COMMIT, Function.COMMITTED}, "the history lacks operations"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_k10_r11_r14_hold_in_random_group_histories(seed: int) -> None:
    """K10, with R11 (the coordinator crashes in joins, syncs and commits) and R14 (paused members, static twins)."""
    draws = Draws("group", seed)
    run = Run(initial_delay_ms=draws.choice([0, 3_000]), static=draws.below(CLIENTS + 1))
    for _ in range(300):
        run.live(draws)
    run.heal()
    judge(run)
    generations = {event.epoch for event in run.world.events if event.function is Function.OWN}
    assert len(generations) > 3, "too few rebalances"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, CLIENTS - 1), st.integers(0, 120)), min_size=20, max_size=160
    ),
    st.sampled_from([0, 3_000]),
    st.integers(0, 2),
)
def test_k10_holds_for_steps_in_any_order(steps: list[Step], initial_delay_ms: int, static: int) -> None:
    """K10, for unlikely histories."""
    run = Run(initial_delay_ms=initial_delay_ms, static=static)
    for action, index, amount in steps:
        run.take(action, index, amount)
    run.heal()
    judge(run)
