"""ConsumerGroupDescribe, for the groups of one shard.

Source: ConsumerGroup.asDescribedGroup of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from kbroker.coordinator.consumer.member import NO_PARTITIONS, ConsumerMember, Partitions
from kbroker.coordinator.consumer.migrating import known_consumer_group
from kbroker.coordinator.context import Context
from kbroker.metadata.image import Image
from wire.errors import KafkaError
from wire.messages.consumer_group_describe import Assignment, DescribedGroup, Member, TopicPartitions

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def describe_consumer_group(context: Context, group_id: str) -> tuple[DescribedGroup, Iterator[Member]]:
    """Describe a consumer group; GROUP_ID_NOT_FOUND in the result if there is none. Its members follow one by one, as
    they are now: the caller adds them.
    """
    try:
        group = known_consumer_group(context, group_id)
    except KafkaError as error:
        missing = DescribedGroup(
            group_id=group_id,
            error_code=error.code,
            error_message=error.message,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=[],
        )
        return missing, iter(())
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or context.settings.group_consumer_assignors[0],
        members=[],
    )
    image, members = context.image, list(group.members.values())
    targets = [group.target.get(member.member_id, NO_PARTITIONS) for member in members]
    return described, (_described(member, target, image) for member, target in zip(members, targets, strict=True))


def _described(member: ConsumerMember, target: Partitions, image: Image) -> Member:
    """A member. Partitions that it must still give up belong to its assignment."""
    owned: dict[UUID, list[int]] = {topic_id: list(of_topic) for topic_id, of_topic in member.assigned.items()}
    for topic_id, of_topic in member.pending_revocation.items():
        owned.setdefault(topic_id, []).extend(of_topic)
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(owned, image),
        target_assignment=_assignment(target, image),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(partitions: Mapping[UUID, Iterable[int]], image: Image) -> Assignment:
    """Partitions with the names of their topics; those of deleted topics are left out."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(of_topic))
            for topic_id, of_topic in partitions.items()
            if (topic := image.topics_by_id.get(topic_id)) is not None
        ]
    )
