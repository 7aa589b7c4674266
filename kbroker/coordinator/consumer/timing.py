"""The timers of members of consumer groups: sessions, rebalance timeouts, and the phases of classic members.

A timer belongs to a group id and a member id, not to an object: the member may be replaced or the group converted in
the meantime. Members whose timers expire at the same time are fenced together.

Source: the timers of GroupMetadataManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.consumer.member import UNREVOKED, ConsumerMember
from kbroker.coordinator.context import Context, Write
from kbroker.coordinator.timers import Timer, nothing
from kbroker.metadata.image import GROUP_RESOURCE
from wire.errors import ErrorCode

SESSION: Final = "session"
REBALANCE: Final = "rebalance"
JOIN: Final = "join"
SYNC: Final = "sync"
RETRY_MS: Final = 500
_ALL: Final = (SESSION, REBALANCE, JOIN, SYNC)


def schedule(context: Context, group_id: str, member_id: str, kind: str, delay_ms: int, *, epoch: int = 0) -> None:
    """Start or restart a timer that fences the member. `epoch`: a rebalance timeout fences only in this epoch."""
    key = group_id, member_id, kind
    timer = context.member_timers.get(key)
    if timer is None:
        timer = context.member_timers[key] = Timer()
    timer.action = partial(_on_time, context, group_id, member_id, kind, epoch)
    context.schedule(timer, delay_ms)


def schedule_if_absent(context: Context, group_id: str, member_id: str, kind: str, delay_ms: int) -> None:
    """Start a timer that does not run yet."""
    if (group_id, member_id, kind) not in context.member_timers:
        schedule(context, group_id, member_id, kind, delay_ms)


def cancel(context: Context, group_id: str, member_id: str, *kinds: str) -> None:
    """Stop timers of a member; all of them if no kind is given."""
    for kind in kinds or _ALL:
        timer = context.member_timers.pop((group_id, member_id, kind), None)
        if timer is not None:
            context.timers.cancel(timer)
            timer.action = nothing


def end(context: Context, group_id: str, members: Iterable[ConsumerMember]) -> None:
    """Stop all timers of members that the current decision removes. If the append fails, it is tried again soon."""

    def on_appended() -> None:
        for member in members:
            cancel(context, group_id, member.member_id)

    def on_failed(_: ErrorCode) -> None:
        for member in members:
            schedule_if_absent(context, group_id, member.member_id, SESSION, RETRY_MS)

    context.writes.append(Write(on_appended, on_failed))


def _on_time(context: Context, group_id: str, member_id: str, kind: str, epoch: int) -> None:
    context.member_timers.pop((group_id, member_id, kind), None)
    group = context.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or (member := group.members.get(member_id)) is None:
        return
    if kind != REBALANCE or member.member_epoch == epoch:
        context.expired.setdefault(group_id, {})[member_id] = None


def extend_session(context: Context, group_id: str, member: ConsumerMember) -> None:
    """Restart the session timeout of a member."""
    delay_ms = session_timeout_ms(context, group_id) if member.classic is None else member.classic.session_timeout_ms
    schedule(context, group_id, member.member_id, SESSION, delay_ms)


def start_group(context: Context, group: ConsumerGroup) -> None:
    """Start the timers of a group that was loaded."""
    for member in group.members.values():
        schedule(context, group.group_id, member.member_id, SESSION, session_timeout_ms(context, group.group_id))
        if member.state is UNREVOKED:
            start_rebalance(context, group.group_id, member)


def start_rebalance(context: Context, group_id: str, member: ConsumerMember) -> None:
    """Start the time within which the member has to give its partitions up."""
    delay_ms, epoch = member.rebalance_timeout_ms, member.member_epoch
    schedule(context, group_id, member.member_id, REBALANCE, delay_ms, epoch=epoch)


def session_timeout_ms(context: Context, group_id: str) -> int:
    """The session timeout of a group, within the bounds of the broker."""
    settings = context.settings
    wanted_ms = _group_setting(context, group_id, "consumer.session.timeout.ms")
    if wanted_ms is None:
        return settings.group_consumer_session_timeout_ms
    least_ms, most_ms = settings.group_consumer_min_session_timeout_ms, settings.group_consumer_max_session_timeout_ms
    return min(max(wanted_ms, least_ms), most_ms)


def heartbeat_interval_ms(context: Context, group_id: str) -> int:
    """How often members have to send heartbeats."""
    settings = context.settings
    wanted_ms = _group_setting(context, group_id, "consumer.heartbeat.interval.ms")
    if wanted_ms is None:
        return settings.group_consumer_heartbeat_interval_ms
    least_ms = settings.group_consumer_min_heartbeat_interval_ms
    return min(max(wanted_ms, least_ms), settings.group_consumer_max_heartbeat_interval_ms)


def assignment_interval_ms(context: Context, group_id: str) -> int:
    """The shortest time between two target assignments of a group."""
    settings = context.settings
    wanted_ms = _group_setting(context, group_id, "consumer.assignment.interval.ms")
    if wanted_ms is None:
        return settings.group_consumer_assignment_interval_ms
    least_ms = settings.group_consumer_min_assignment_interval_ms
    return min(max(wanted_ms, least_ms), settings.group_consumer_max_assignment_interval_ms)


def _group_setting(context: Context, group_id: str, name: str) -> int | None:
    """A dynamic setting of the group. Another broker may have stored a value that does not parse."""
    text = context.image.configs.get((GROUP_RESOURCE, group_id), {}).get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
