"""Groups whose members join, sync, commit, pause, leave, die and come back, with coordinators that stop and die.

Each history is judged by the checker of groups (K10); then the faults end, and the group has to settle: every member
in one generation, every partition with one owner.
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kbroker.testing.group_checker import check_groups
from kbroker.testing.history import Function, Type
from tests.coordinator.members import PARTITIONS, Client, CoordinatorDied, RecordingWorld, settle
from wire.errors import ErrorCode

CLIENTS = 4
Step = tuple[str, int, int]

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
    "reload",
    "coordinator dies",
    "coordinator dies in append",
    "append fails",
)


class Run:
    """One history."""

    def __init__(self, *, initial_delay_ms: int, static: int) -> None:
        self.world = RecordingWorld(group_initial_rebalance_delay_ms=initial_delay_ms)
        self.created = 0
        self.clients = [self.new_client(f"static-{index}" if index < static else None) for index in range(CLIENTS)]
        self.zombies: list[Client] = []

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
                client.commit(partition, is_told=False)
            case "advance":
                self.advance(amount * 100)
            case "read":
                world.read("admin", partition)
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

    def advance(self, ms: int) -> None:
        try:
            self.world.advance(ms)
        except CoordinatorDied:
            self.world.die()
        self.disconnect()

    def disconnect(self) -> None:
        """Who waited for a coordinator that is gone finds that out."""
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


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, CLIENTS - 1), st.integers(0, 120)), min_size=20, max_size=160
    ),
    st.sampled_from([0, 3_000]),
    st.integers(0, 2),
)
@example([("round", 0, 0)] * 12 + [("commit", 0, 0), ("coordinator dies in append", 0, 0), ("commit", 0, 0)], 0, 1)
@example([("round", 0, 0)] * 12 + [("follow", 0, 0), ("round", 0, 0), ("commit", 0, 0), ("round", 0, 0)], 0, 2)
def test_k10_holds_whatever_members_and_coordinators_do(steps: list[Step], initial_delay_ms: int, static: int) -> None:
    """K10, R11, R14: also of members that pause beyond their sessions, and of two with one static id."""
    run = Run(initial_delay_ms=initial_delay_ms, static=static)
    for action, index, amount in steps:
        run.take(action, index, amount)
    run.heal()
    assert check_groups(run.world.events) == []
    done = {event.function for event in run.world.events if event.type is Type.OK}
    assert done == {Function.OWN, Function.COMMIT, Function.COMMITTED}, "and work was done"
