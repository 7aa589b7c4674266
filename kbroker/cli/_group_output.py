"""Prints groups in the columns of Kafka's tool, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cli._groups import GroupState, Member, Progress
from kbroker.cli._table import print_rows


def print_progress(state: GroupState, rows: Sequence[Progress], *, verbose: bool) -> None:
    """Print the offsets of one group, with lag and assigned member."""
    columns = ["GROUP", "TOPIC", "PARTITION", *(["LEADER-EPOCH"] if verbose else [])]
    columns += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    print_rows(
        columns,
        [
            (
                state.group,
                each.topic,
                each.partition,
                *([_or_dash(each.leader_epoch)] if verbose else []),
                _or_dash(each.current_offset),
                _or_dash(each.log_end_offset),
                _or_dash(each.lag),
                *((each.member.member_id, each.member.host, each.member.client_id) if each.member else "---"),
            )
            for each in rows
        ],
    )


def print_members(states: Sequence[GroupState], *, verbose: bool) -> None:
    """Print the members of groups."""
    has_instances = any(member.instance_id for state in states for member in state.members)
    columns = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if has_instances else []), "HOST", "CLIENT-ID"]
    epochs = ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    columns += ["#PARTITIONS", *(epochs if verbose else [])]
    print_rows(
        columns,
        [
            (
                state.group,
                member.member_id,
                *([_or_dash(member.instance_id)] if has_instances else []),
                member.host,
                _or_dash(member.client_id),
                len(member.partitions),
                *(_epochs(state, member) if verbose else []),
            )
            for state in states
            for member in sorted(state.members, key=lambda each: (each.instance_id or "", each.member_id))
        ],
    )


def _epochs(state: GroupState, member: Member) -> list[object]:
    current, target = _assignment_text(member.assignment), _assignment_text(member.target)
    return [_or_dash(member.epoch), current, _or_dash(state.assignment_epoch), target]


def print_states(states: Sequence[GroupState], *, verbose: bool) -> None:
    """Print the states of groups."""
    epochs = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if verbose else []
    print_rows(
        ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", *epochs, "#MEMBERS"),
        [
            (
                state.group,
                _coordinator_text(state.coordinator),
                _or_dash(state.assignor or None),
                state.state,
                *([_or_dash(state.epoch), _or_dash(state.assignment_epoch)] if verbose else []),
                len(state.members),
            )
            for state in states
        ],
    )


def as_json(state: GroupState, progress: Sequence[Progress]) -> dict[str, Any]:
    """The complete state of a group."""
    coordinator = None
    if state.coordinator is not None:
        coordinator = dict(zip(("id", "host", "port"), state.coordinator, strict=True))
    return {
        "group": state.group,
        "state": state.state,
        "protocol_type": state.protocol_type,
        "assignor": state.assignor,
        "coordinator": coordinator,
        "epoch": state.epoch,
        "assignment_epoch": state.assignment_epoch,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "assignment": member.assignment,
                "epoch": member.epoch,
                "target_assignment": member.target,
            }
            for member in state.members
        ],
        "offsets": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "current_offset": each.current_offset,
                "log_end_offset": each.log_end_offset,
                "lag": each.lag,
                "leader_epoch": each.leader_epoch,
                "member_id": each.member.member_id if each.member else None,
            }
            for each in progress
        ],
    }


def _or_dash(value: object) -> object:
    return "-" if value is None or value == "" else value


def _coordinator_text(coordinator: tuple[int, str, int] | None) -> str:
    if coordinator is None:
        return "-"
    node_id, host, port = coordinator
    return f"{host}:{port} ({node_id})"


def _assignment_text(assignment: Mapping[str, Sequence[int]] | None) -> str:
    if not assignment:
        return "-"
    return ";".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in sorted(assignment.items()))
