"""A shard with topics, and members of consumer groups that send heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.coordinator.caller import Caller
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.metadata.image import Image
from kbroker.metadata.parts import PartitionImage, TopicImage
from tests.coordinator.world import GROUP, World
from wire.errors import ErrorCode
from wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

PARTITION = PartitionImage((1,), (1,), 1, 0, 0)
REBALANCE_MS = 30_000


class ConsumerWorld(World):
    """Groups of KIP-848. The assignment interval is 0 unless given.

    may_describe  tells which topics the members may know of; None means all
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"group_consumer_assignment_interval_ms": 0, **settings})
        self.may_describe: Callable[[str], bool] | None = None
        self.create("orders", 4)

    def create(self, name: str, partitions: int, *, topic_id: UUID | None = None) -> UUID:
        """Create a topic, or add partitions to it."""
        known = self.image.topics_by_name.get(name)
        topic = TopicImage(
            name,
            topic_id or (known.id if known is not None else UUID(int=1000 + self.image.offset)),
            dict.fromkeys(range(partitions), PARTITION),
        )
        self.follow(
            self.image._replace(
                offset=self.image.offset + 1,
                topics_by_name={**self.image.topics_by_name, name: topic},
                topics_by_id={**self.image.topics_by_id, topic.id: topic},
            ),
            name,
            is_new=known is None,
        )
        return topic.id

    def delete(self, name: str) -> None:
        by_name, by_id = dict(self.image.topics_by_name), dict(self.image.topics_by_id)
        del by_id[by_name.pop(name).id]
        self.follow(
            self.image._replace(offset=self.image.offset + 1, topics_by_name=by_name, topics_by_id=by_id),
            name,
            is_new=False,
        )

    def follow(self, image: Image, *changed: str, is_new: bool) -> None:
        self.image = image
        self.shard.on_image(image, changed, has_new_topics=is_new)

    def id_of(self, name: str) -> UUID:
        return self.image.topics_by_name[name].id

    def consumer_group(self, group_id: str = GROUP) -> ConsumerGroup:
        group = self.shard.group(group_id)
        assert isinstance(group, ConsumerGroup), f"{group} is no consumer group"
        return group

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: Iterable[str] | None = None,
        regex: str | None = None,
        owned: dict[str, Iterable[int]] | None = None,
        instance_id: str | None = None,
        rebalance_ms: int = -1,
        assignor: str | None = None,
        version: int = 1,
        group_id: str = GROUP,
        **more: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat, with the fields that are given."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance_id,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                TopicPartitions(topic_id=self.id_of(name), partitions=list(of))
                for name, of in owned.items()
                if name in self.image.topics_by_name
            ],
            **more,
        )
        response: ConsumerGroupHeartbeatResponse = self.decide(
            request, Caller("client", "/127.0.0.1", version, may_describe=self.may_describe)
        )
        return response

    def member(self, member_id: str, *topics: str, **more: Any) -> Member:
        """A member that has not joined yet."""
        return Member(self, member_id, topics or ("orders",), **more)


@dataclass
class Member:
    """A client: it reports what it owns, and gives up at once what its assignment lacks.

    Shape  owned maps topic names to partitions; keeps: it does not give partitions up
    """

    world: ConsumerWorld
    member_id: str
    topics: Iterable[str] | None
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    group_id: str = GROUP
    epoch: int = 0
    owned: dict[str, set[int]] = field(default_factory=dict)
    keeps: bool = False
    error: ErrorCode = ErrorCode.NONE

    def beat(self, **more: Any) -> ConsumerGroupHeartbeatResponse:
        """Join, or send a heartbeat with what it owns, and take the answer."""
        fields: dict[str, Any] = {"owned": self.owned, "instance_id": self.instance_id, "group_id": self.group_id}
        if self.epoch == 0:
            self.owned = {}
            fields |= {
                "topics": self.topics,
                "regex": self.regex,
                "rebalance_ms": REBALANCE_MS,
                "assignor": self.assignor,
                "owned": {},
            }
        answer = self.world.beat(self.member_id, self.epoch, **{**fields, **more})
        self.take(answer)
        return answer

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.error = ErrorCode(answer.error_code)
        if self.error is not ErrorCode.NONE:
            if self.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
                self.epoch, self.owned = 0, {}
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            by_id = self.world.image.topics_by_id
            given = {
                by_id[one.topic_id].name: set(one.partitions)
                for one in answer.assignment.topic_partitions
                if one.topic_id in by_id
            }
            if self.keeps:
                for name, partitions in self.owned.items():
                    given[name] = given.get(name, set()) | partitions
            self.owned = given

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return sorted((name, partition) for name, of in self.owned.items() for partition in of)


def settle(*members: Member, rounds: int = 10) -> None:
    """Send heartbeats of all members until their group is stable."""
    group_of = members[0].world.consumer_group
    for _ in range(rounds):
        for member in members:
            member.beat()
        members[0].world.advance(100)
        if group_of(members[0].group_id).state_name == "Stable":
            for member in members:
                member.beat()
            return
    raise AssertionError(f"{group_of(members[0].group_id)} does not settle: {members}")
