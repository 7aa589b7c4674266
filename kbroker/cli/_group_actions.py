"""The actions of `kbroker group`, and how they print groups: in the columns of Kafka's tool, or as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from kbroker.cli import EXIT_FAILED, CommandFailed, nearest
from kbroker.cli import _groups as groups
from kbroker.cli import _resets as resets
from kbroker.cli._admin import confirm, explain, explain_code
from kbroker.cli._groups import GroupState, Member, Progress
from kbroker.cli._say import note, say, say_json, visible_writer
from kbroker.cli._table import print_rows
from kbroker.client.cluster import Cluster
from kbroker.client.operations import committed_offsets, delete_offsets
from kbroker.runtime.clocks import RealClocks
from kbroker.runtime.visible import visible_lines
from wire.errors import KafkaError


def _names(client: Cluster, options: argparse.Namespace) -> list[str]:
    if options.all_groups:
        return [each.group for each in groups.list_groups(client)]
    return list(dict.fromkeys(options.group))


def _list(client: Cluster, options: argparse.Namespace) -> int:
    found = groups.list_groups(client, states=options.state or (), types=options.type or ())
    if options.format == "json":
        say_json([asdict(each) for each in found])
    elif options.state is None and options.type is None:
        for each in found:
            say(each.group)
    else:
        shown = ["group", *(name for name in ("type", "state") if getattr(options, name) is not None)]
        print_rows([name.upper() for name in shown], [[getattr(each, name) for name in shown] for each in found])
    return 0


def _describe(client: Cluster, options: argparse.Namespace) -> int:
    states = groups.describe(client, _names(client, options), timeout_ms=options.timeout)
    found = [state for state in states if state.exists]
    for state in states:
        if not state.exists:
            hint = nearest(state.group, [each.group for each in groups.list_groups(client)])
            note(f"kbroker group: group {state.group!r} does not exist{hint}")
        elif state.state == groups.EMPTY:
            note(f"kbroker group: group {state.group!r} has no active members")
        elif state.state != groups.STABLE:
            note(f"kbroker group: group {state.group!r} is rebalancing")
    if options.format == "json":
        say_json([_as_json(state, groups.progress(client, state)) for state in found])
    elif options.members is not None:
        _print_members(found, verbose=options.verbose)
    elif options.state is not None:
        _print_states(found, verbose=options.verbose)
    else:
        for number, state in enumerate(found):
            if number:
                say()
            _print_progress(state, groups.progress(client, state), verbose=options.verbose)
    return 0 if len(found) == len(states) else EXIT_FAILED


def _delete(client: Cluster, options: argparse.Namespace) -> int:
    names = _names(client, options)
    if options.all_groups:
        confirm(f"Delete these {len(names)} groups with their offsets?", names, is_agreed=options.yes)
    refused = {}
    for name in names:
        try:
            groups.delete(client, name, timeout_ms=options.timeout)
        except KafkaError as error:
            refused[name] = explain(error)
    deleted = [name for name in names if name not in refused]
    if options.format == "json":
        say_json({"deleted": deleted})
    elif deleted:
        say(f"Deletion of requested consumer groups ({', '.join(map(repr, deleted))}) was successful.")
    for name, why in refused.items():
        note(f"kbroker group: group {name!r} was not deleted: {why}")
    return EXIT_FAILED if refused else 0


def _reset(client: Cluster, options: argparse.Namespace) -> int:
    names = _names(client, options)
    given = resets.read_plan(options.from_file, names) if options.from_file else {}
    if options.by_duration is not None:
        options.to_datetime = RealClocks().timestamp_ms() - options.by_duration
    states = groups.describe(client, names, timeout_ms=options.timeout)
    plan: resets.Plan = {}
    for state in states:
        name = state.group
        if state.state not in {groups.EMPTY, groups.DEAD}:
            note(f"kbroker group: cannot reset the offsets of group {name!r}: it is {state.state}, not empty")
        elif options.from_file:
            if name not in given:
                raise CommandFailed(f"the file does not contain group {name!r}")
            plan[name] = resets.within(client, given[name])
        else:
            scope = committed_offsets(client, name) if options.all_topics else groups.expand(client, options.topic)
            plan[name] = resets.target(client, name, sorted(scope), options)
    if options.execute:
        for name, offsets in plan.items():
            resets.commit(client, name, offsets)
    rows = [(name, *each, offset) for name, offsets in plan.items() for each, offset in sorted(offsets.items())]
    if options.export:
        visible_writer(sys.stdout, visible_lines)(resets.format_plan(plan))
    elif options.format == "json":
        keys = ("group", "topic", "partition", "new_offset")
        found = [dict(zip(keys, row, strict=True)) for row in rows]
        say_json({"is_executed": options.execute, "offsets": found})
    else:
        print_rows(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
    if not options.execute and not options.dry_run:
        note("kbroker group: nothing was changed; use --execute to change the offsets")
    return 0 if len(plan) == len(states) else EXIT_FAILED


def _delete_offsets(client: Cluster, options: argparse.Namespace) -> int:
    (name,) = options.group
    partitions = groups.expand(client, options.topic)
    try:
        codes = delete_offsets(client, name, partitions, timeout_ms=options.timeout)
    except KafkaError as error:
        raise CommandFailed(f"the offsets of group {name!r} were not deleted: {explain(error)}") from error
    rows = [(*each, explain_code(code) if code else None) for each, code in sorted(codes.items())]
    if options.format == "json":
        say_json([dict(zip(("topic", "partition", "error"), row, strict=True)) for row in rows])
    else:
        columns = ("TOPIC", "PARTITION", "STATUS")
        print_rows(columns, [(*each, f"Error: {error}" if error else "Successful") for *each, error in rows])
    return EXIT_FAILED if any(error for *_, error in rows) else 0


def _wait(client: Cluster, options: argparse.Namespace) -> int:
    (name,), clock = options.group, RealClocks()
    deadline_ms = clock.now_ms() + options.timeout
    conditions = [f"to be {' or '.join(options.state)}"] if options.state else []
    if options.members is not None:
        conditions.append(f"to have {options.members} members")
    if options.lag is not None:
        conditions.append(f"to have a lag of at most {options.lag}")
    while True:
        left_ms = max(1, deadline_ms - clock.now_ms())
        (state,) = groups.describe(client, [name], timeout_ms=left_ms)
        lags = [] if options.lag is None else [each.lag for each in groups.progress(client, state)]
        lag = sum(each or 0 for each in lags) if lags and None not in lags else None
        is_met = not options.state or state.state in options.state
        is_met &= options.members in (None, len(state.members))
        if is_met and (options.lag is None or (lag is not None and lag <= options.lag)):
            break
        if clock.now_ms() >= deadline_ms:
            found = f"it is {state.state} with {len(state.members)} members"
            found += "" if options.lag is None else f" and a lag of {'unknown size' if lag is None else lag}"
            raise CommandFailed(f"waited {options.timeout} ms for group {name!r} {' and '.join(conditions)}; {found}")
        client.wait(client.retry_ms)
    known = {"group": name, "state": state.state, "members": len(state.members)}
    known |= {} if options.lag is None else {"lag": lag}
    if options.format == "json":
        say_json(known)
    else:
        print_rows([key.upper() for key in known], [list(known.values())])
    return 0


def _print_progress(state: GroupState, rows: Sequence[Progress], *, verbose: bool) -> None:
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


def _print_members(states: Sequence[GroupState], *, verbose: bool) -> None:
    """Print the members of groups."""
    has_instances = any(member.group_instance_id for state in states for member in state.members)
    columns = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if has_instances else []), "HOST", "CLIENT-ID"]
    epochs = ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    columns += ["#PARTITIONS", *(epochs if verbose else [])]
    print_rows(
        columns,
        [
            (
                state.group,
                member.member_id,
                *([_or_dash(member.group_instance_id)] if has_instances else []),
                member.host,
                _or_dash(member.client_id),
                len(member.partitions),
                *(_epochs(state, member) if verbose else []),
            )
            for state in states
            for member in sorted(state.members, key=lambda each: (each.group_instance_id or "", each.member_id))
        ],
    )


def _epochs(state: GroupState, member: Member) -> list[object]:
    current, target = _assignment_text(member.assignment), _assignment_text(member.target_assignment)
    return [_or_dash(member.epoch), current, _or_dash(state.assignment_epoch), target]


def _print_states(states: Sequence[GroupState], *, verbose: bool) -> None:
    """Print the states of groups."""
    epochs = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if verbose else []
    print_rows(
        ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", *epochs, "#MEMBERS"),
        [
            (
                state.group,
                f"{state.coordinator.host}:{state.coordinator.port} ({state.coordinator.id})",
                _or_dash(state.assignor),
                state.state,
                *([_or_dash(state.epoch), _or_dash(state.assignment_epoch)] if verbose else []),
                len(state.members),
            )
            for state in states
        ],
    )


def _or_dash(value: object) -> object:
    return "-" if value is None or value == "" else value


def _assignment_text(assignment: Mapping[str, Sequence[int]] | None) -> str:
    if not assignment:
        return "-"
    return ";".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in sorted(assignment.items()))


def _as_json(state: GroupState, progress: Sequence[Progress]) -> dict[str, Any]:
    """The complete state of a group."""
    offsets = []
    for each in progress:
        fields = each._asdict()
        member = fields.pop("member")
        offsets.append({**fields, "member_id": member.member_id if member else None})
    return {**asdict(state), "offsets": offsets}


ACTIONS: Final[Mapping[str, Callable[[Cluster, argparse.Namespace], int]]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "reset-offsets": _reset,
    "delete-offsets": _delete_offsets,
    "wait": _wait,
}
