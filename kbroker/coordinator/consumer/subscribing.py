"""What a group subscribes to, and when that raises the group epoch.

A hash of the subscribed topics (name, id, number of partitions) is stored with the epoch. When one of them is created,
deleted or gets partitions, the next heartbeat of the group computes the hash again. The hash is not Kafka's XXH3: after
a group has moved from Apache Kafka to this broker, its epoch rises once.

Source: updateSubscriptionMetadata of GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from kbroker.coordinator.consumer.group import ConsumerGroup, Subscriptions, drop
from kbroker.coordinator.consumer.member import ConsumerMember
from kbroker.coordinator.consumer.records import epoch_record, partition_metadata_tombstone
from kbroker.coordinator.context import Context
from kbroker.metadata.image import Image


class Change(NamedTuple):
    """The group after a member changed; not stored yet.

    Shape   old is None for a new member; subscriptions are those of the group with the new member
    """

    group: ConsumerGroup
    old: ConsumerMember
    new: ConsumerMember
    group_epoch: int
    subscriptions: Subscriptions


def subscriptions_after(group: ConsumerGroup, old: ConsumerMember | None, new: ConsumerMember | None) -> Subscriptions:
    """The subscriptions of the group after one member has changed, joined or left."""
    changed = group.subscriptions
    if old is not None and new is not None and old.subscribes_as(new):
        return changed
    changed = changed.copy()
    changed.replace(old, new)
    if old is not None and (regex := old.subscribed_topic_regex) and regex not in changed.regexes:
        resolved = group.resolved.get(regex)
        drop(changed.by_regex, () if resolved is None else resolved.topics)
    return changed


def compare_topics(
    context: Context, group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, *, raises_epoch: bool
) -> tuple[int, Subscriptions]:
    """Raise the group epoch if the caller says so or the subscribed topics have changed.

    Returns the epoch and the subscriptions with the changed member.
    """
    subscriptions = subscriptions_after(group, old, new)
    found = metadata_hash(subscriptions.topics(), context.image)
    epoch = group.group_epoch
    if raises_epoch or found != group.metadata_hash:
        epoch += 1
        context.records.append(epoch_record(group.group_id, epoch, found))
        context.counts.consumer_rebalances += 1
    group.refreshed_epoch = epoch
    if group.has_partition_metadata:
        context.records.append(partition_metadata_tombstone(group.group_id))
    return epoch, subscriptions


def metadata_hash(topics: Iterable[str], image: Image) -> int:
    """A hash of those topics that exist, as int64; 0 if none does."""
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(topics):
        topic = image.topics_by_name.get(name)
        if topic is not None:
            is_empty = False
            digest.update(f"{name}\0{topic.id}\0{len(topic.partitions)}\n".encode())
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)


def topic_ids(topics: Iterable[str], image: Image) -> dict[UUID, None]:
    """The ids of those topics that exist, in the order of their names."""
    by_name = image.topics_by_name
    return {by_name[name].id: None for name in sorted(topics) if name in by_name}
