"""Consumer groups in random histories: members join, change their topics, lose answers, hang, leave and crash, topics
grow, appends fail, and coordinators change.

After each step no partition belongs to two members, on the coordinator and in what the clients believe. Then the faults
end: the group becomes stable, and each partition of a subscribed topic has one owner.
"""

from __future__ import annotations

import os

import pytest

from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.targets import INLINE_ELEMENTS
from kbroker.testing.draws import Draws
from tests.coordinator.consumer.world import ConsumerWorld, Member, settle
from tests.coordinator.world import GROUP
from wire.errors import ErrorCode

MEMBERS = 5
STEPS = 250
HISTORIES = int(os.environ.get("KBROKER_CONSUMER_GROUP_HISTORIES", "12"))
TOPICS = ("orders", "events", "clicks")
HAPPENINGS = ("leave", "leave for a while", "crash", "topics", "topics", "grow", "reload", "append fails", "job", "job")


class Run:
    """One history.

    Shape   believed maps members to the partitions that their clients may use: they forget them when they are fenced,
            or when they have sent no heartbeat for a session
    """

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.world = ConsumerWorld(group_consumer_assignment_interval_ms=draws.choice([0, 1000]))
        for name in TOPICS[1:]:
            self.world.create(name, 3)
        if draws.chance(0.4):
            self.world.create("orders", INLINE_ELEMENTS)  # a thread computes the target assignment
        self.created = 0
        self.static = draws.below(MEMBERS + 1)
        self.members = [self.new_member(index) for index in range(MEMBERS)]
        self.last_beat: dict[str, int] = {}

    def new_member(self, index: int) -> Member:
        self.created += 1
        instance_id = f"static-{index}" if index < self.static else None
        topics, regex = self.subscription()
        assignor = self.draws.choice([None, "range", "uniform"])
        return Member(self.world, f"m{self.created}", topics, regex=regex, instance_id=instance_id, assignor=assignor)

    def subscription(self) -> tuple[list[str] | None, str | None]:
        if self.draws.chance(0.15):
            return None, self.draws.choice(["o.*", "events|clicks", ".*"])
        return [name for name in TOPICS if self.draws.chance(0.6)] or ["orders"], None

    def step(self) -> None:
        draws, world = self.draws, self.world
        index = draws.below(MEMBERS)
        member = self.members[index]
        world.holds_jobs = draws.chance(0.2)
        match draws.choice(HAPPENINGS) if draws.chance(0.25) else "beat":
            case "beat":
                self.beat(member)
            case "leave" if member.epoch > 0:
                world.beat(member.member_id, -1, instance_id=member.instance_id)
                self.members[index] = self.new_member(index)
            case "leave for a while" if member.epoch > 0 and member.instance_id is not None:
                world.beat(member.member_id, -2, instance_id=member.instance_id)
                self.members[index] = self.new_member(index)
            case "crash":
                self.members[index] = self.new_member(index)
            case "topics" if member.epoch > 0:
                topics, regex = self.subscription()
                self.beat(member, topics=topics or [], regex=regex or "")
            case "grow":
                name = draws.choice(TOPICS)
                world.create(name, len(world.image.topics_by_name[name].partitions) + 1)
            case "reload":
                world.reload()
            case "append fails":
                world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
            case "job" if world.jobs:
                world.do_job()
        if draws.chance(0.3):
            world.advance(draws.choice([100, 1_000, 5_000, 20_000]))
        self.check()

    def beat(self, member: Member, **more: object) -> None:
        member.keeps = self.draws.chance(0.3)
        if self.draws.chance(0.1):  # the answer is lost, but a client that joins asks again
            answer = member.world.beat(
                member.member_id, member.epoch, owned=member.owned, instance_id=member.instance_id
            )
            assert answer.error_code != ErrorCode.UNKNOWN_SERVER_ERROR
            return
        answer = member.beat(**more)
        assert answer.error_code != ErrorCode.UNKNOWN_SERVER_ERROR
        self.last_beat[member.member_id] = self.world.now_ms

    def check(self) -> None:
        group = self.world.shard.group(GROUP)
        if group is None:
            return
        assert isinstance(group, ConsumerGroup)
        owners: dict[object, str] = {}
        for member_id, member in group.members.items():
            for epochs in (member.assigned, member.pending_revocation):
                for topic_id, partitions in epochs.items():
                    for partition in partitions:
                        assert owners.setdefault((topic_id, partition), member_id) == member_id, "two owners"
        assert {(id, one) for id, of in group.owned.items() for one in of} == set(owners)
        assert set(group.target) <= set(group.members)
        names = [name for member in group.members.values() for name in member.subscribed_topic_names]
        assert sum(group.subscriptions.by_name.values()) == len(names)
        self.check_clients(group)

    def check_clients(self, group: ConsumerGroup) -> None:
        """A client uses only partitions that no other client may use."""
        users: dict[tuple[str, int], str] = {}
        for member in self.members:
            since_ms = self.world.now_ms - self.last_beat.get(member.member_id, 0)
            if since_ms < 45_000 and member.epoch > 0 and member.member_id in group.members:
                for place in member.partitions:
                    assert users.setdefault(place, member.member_id) == member.member_id, "two users"

    def heal(self) -> None:
        world = self.world
        world.fail_with, world.holds_jobs = None, False
        while world.jobs:
            world.do_job()
        world.advance(120_000)  # the sessions of those that crashed are over
        for member in self.members:
            member.keeps = False
        for _ in range(20):
            for member in self.members:
                if member.error is ErrorCode.FENCED_INSTANCE_ID:
                    member.epoch, member.error = 0, ErrorCode.NONE
                member.beat()
            world.advance(10_001)
        settle(*self.members)
        group = world.consumer_group()
        assert set(group.members) == {member.member_id for member in self.members}
        wanted = {
            (name, index)
            for name in TOPICS
            if group.is_subscribed_to(name)
            for index in world.image.topics_by_name[name].partitions
        }
        owned = [place for member in self.members for place in member.partitions]
        assert sorted(owned) == sorted(wanted)
        world.reload()
        settle(*self.members)
        assert sorted(place for member in self.members for place in member.partitions) == sorted(wanted)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_k10_partitions_have_one_owner_in_random_histories(seed: int) -> None:
    """K10, for groups of KIP-848."""
    run = Run(Draws("consumer group", seed))
    for _ in range(STEPS):
        run.step()
    run.heal()
    assert run.world.consumer_group().group_epoch > 10, "too few changes"
