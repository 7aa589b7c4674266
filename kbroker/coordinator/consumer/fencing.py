"""Members that leave a consumer group, or that are removed from it because a timer expired.

Source: consumerGroupFenceMembers of GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kbroker.coordinator.consumer import migrating, timing
from kbroker.coordinator.consumer.group import ConsumerGroup, drop
from kbroker.coordinator.consumer.member import ConsumerMember
from kbroker.coordinator.consumer.records import epoch_record, member_tombstones, regex_record
from kbroker.coordinator.consumer.subscribing import metadata_hash
from kbroker.coordinator.context import Context

MEMBERS_TOGETHER: Final = 20
"""The most members that one decision fences because of timers. It takes about 2 ms."""


def fence(context: Context, group: ConsumerGroup, members: Sequence[ConsumerMember]) -> None:
    """Remove members. If only members of the classic protocol remain, the group becomes a classic group."""
    if not members:
        return
    if migrating.becomes_classic_without(context, group, members):
        migrating.to_classic(context, group, leaving=members)
        return
    group_id = group.group_id
    for member in members:
        context.records += member_tombstones(group_id, member.member_id)
    subscriptions = group.subscriptions.copy()
    for member in members:
        subscriptions.replace(member, None)
    for regex in Counter(member.subscribed_topic_regex for member in members):
        if regex and regex not in subscriptions.regexes:
            context.records.append(regex_record(group_id, regex, None))
            if (resolved := group.resolved.get(regex)) is not None:
                drop(subscriptions.by_regex, resolved.topics)
    found = metadata_hash(subscriptions.topics(), context.image)
    context.records.append(epoch_record(group_id, group.group_epoch + 1, found))
    context.counts.consumer_rebalances += 1
    timing.end(context, group_id, members)


def fence_expired(context: Context) -> bool:
    """Fence members whose timers have expired, of one group. False if there are none."""
    while context.expired:
        group_id, member_ids = next(iter(context.expired.items()))
        now = list(member_ids)[:MEMBERS_TOGETHER]
        for member_id in now:
            del member_ids[member_id]
        if not member_ids:
            del context.expired[group_id]
        group = context.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            fence(context, group, [group.members[member_id] for member_id in now if member_id in group.members])
        if context.records:
            return True
    return False
