"""The log lines for what a decision has changed in the cluster: brokers, leaders, reassignments.

One line for each kind of change, with the number of partitions and a few names, because one decision may move the
leaders of thousands of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kbroker.metadata.delta import Delta, PartitionChange
from kbroker.metadata.image import NO_LEADER, BrokerImage, PartitionImage

MAX_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line of the event log."""

    is_warning: bool
    event: str
    fields: dict[str, Any]


def lines_of(delta: Delta) -> Iterator[EventLine]:
    """The lines for the changes between two images."""
    if delta.before.brokers is not delta.after.brokers:
        for broker_id in sorted(delta.before.brokers.keys() | delta.after.brokers.keys()):
            event = _broker_event(delta.before.brokers.get(broker_id), delta.after.brokers.get(broker_id))
            if event is not None:
                broker = delta.after.brokers.get(broker_id, delta.before.brokers.get(broker_id))
                assert broker is not None
                yield EventLine(False, event, {"broker": broker_id, "epoch": broker.epoch})
    moved, lost, unclean, reassigned = list[PartitionChange](), list[PartitionChange](), list[PartitionChange](), 0
    for change in delta.changed_partitions:
        before, after = change.before, change.after
        if before is None or after is None:
            continue
        if after.leader == NO_LEADER != before.leader:
            lost.append(change)
        elif change.is_unclean_election:
            unclean.append(change)
        elif after.leader != before.leader:
            moved.append(change)
        reassigned += _is_reassigned(before, after)
    if unclean:
        yield EventLine(True, "leaders elected outside of the ISR: records may be lost", _fields(unclean))
    if lost:
        yield EventLine(True, "partitions have no leader: no in-sync replica is available", _fields(lost))
    if moved:
        yield EventLine(False, "partitions have other leaders", _fields(moved))
    if reassigned:
        yield EventLine(False, "reassignments are complete", {"partitions": reassigned})


def _broker_event(before: BrokerImage | None, after: BrokerImage | None) -> str | None:
    if after is None:
        return "broker unregistered"
    if before is None or before.epoch != after.epoch:
        return "broker registered"
    if before.fenced and not after.fenced:
        return "broker unfenced"
    if after.fenced and not before.fenced:
        return "broker stopped" if after.in_controlled_shutdown else "broker fenced"
    if after.in_controlled_shutdown and not before.in_controlled_shutdown:
        return "broker begins to stop"
    return None


def _is_reassigned(before: PartitionImage, after: PartitionImage) -> bool:
    was_moving = before.adding_replicas or before.removing_replicas
    return bool(was_moving) and not (after.adding_replicas or after.removing_replicas)


def _fields(changes: Sequence[PartitionChange]) -> dict[str, Any]:
    """How many, and the first names, each with the old and the new leader."""
    names = [
        f"{change.topic.name}-{change.index} {change.before.leader}>{change.after.leader}"
        for change in changes[:MAX_NAMES]
        if change.before is not None and change.after is not None
    ]
    return {"partitions": len(changes), "such_as": ", ".join(names)}
