"""The targets of `kbroker group --reset-offsets`, and the CSV files of its plans.

A plan maps groups to partitions to offsets. Its file has the CSV format of Kafka's tool: `topic,partition,offset` for
one group, `group,topic,partition,offset` for several. An offset outside of the log is replaced by the nearer end.

Source: ConsumerGroupCommand and CsvUtils of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from kbroker.cli import CommandFailed
from kbroker.cli._admin import explain_code
from kbroker.cli._groups import log_offsets
from kbroker.cli._positions import MAX_INT64
from kbroker.cli._say import note
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import EARLIEST, LATEST, Committed, commit_offsets, committed_offsets

Offsets = dict[Partition, int]
Plan = dict[str, Offsets]


def target(client: Cluster, group: str, partitions: Sequence[Partition], options: argparse.Namespace) -> Offsets:
    """The new offsets of partitions by the flags of the command."""
    if options.to_earliest:
        return _log_offsets(client, partitions, EARLIEST)
    if options.to_latest:
        return _log_offsets(client, partitions, LATEST)
    if options.to_datetime is not None:
        found = _log_offsets(client, partitions, max(options.to_datetime, 0))
        missing = [partition for partition, offset in found.items() if offset < 0]
        return found | _log_offsets(client, missing, LATEST)
    if options.to_offset is not None:
        return within(client, dict.fromkeys(partitions, options.to_offset))
    committed = committed_offsets(client, group)
    current = {each: committed[each].offset for each in partitions if each in committed}
    missing = [each for each in partitions if each not in committed]
    if options.to_current:
        return current | _log_offsets(client, missing, LATEST)
    for topic, index in missing:
        raise CommandFailed(f"{topic}-{index} cannot be shifted: group {group!r} has no offset there")
    return within(client, {each: offset + options.shift_by for each, offset in current.items()})


def within(client: Cluster, wanted: Mapping[Partition, int]) -> Offsets:
    """Replace offsets outside of their logs by the nearer end, with a note on stderr."""
    partitions = list(wanted)
    starts, ends = _log_offsets(client, partitions, EARLIEST), _log_offsets(client, partitions, LATEST)
    found = {}
    for (topic, index), offset in wanted.items():
        start, end = starts[topic, index], ends[topic, index]
        found[topic, index] = min(max(offset, start), end)
        if found[topic, index] != offset:
            note(
                f"kbroker group: offset {offset} of {topic}-{index} is not in its log, {start} to {end}; "
                f"using {found[topic, index]}",
            )
    return found


def _log_offsets(client: Cluster, partitions: Sequence[Partition], spec: int) -> Offsets:
    """Offsets by ListOffsets. Raises CommandFailed for a partition that does not exist or has no leader."""
    found = log_offsets(client, partitions, spec)
    for topic, index in partitions:
        if (topic, index) not in found:
            raise CommandFailed(f"{topic}-{index} does not exist or has no leader")
    return found


def commit(client: Cluster, group: str, offsets: Offsets) -> None:
    """Commit offsets for a group. Raises CommandFailed for the first partition that is refused."""
    codes = commit_offsets(client, group, {each: Committed(offset) for each, offset in offsets.items()})
    for (topic, index), code in codes.items():
        if code:
            raise CommandFailed(
                f"the offset of {topic}-{index} was not stored for group {group!r}: {explain_code(code)}"
            )


def format_plan(plan: Plan) -> str:
    """A plan as CSV."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, offsets in plan.items():
        for (topic, index), offset in sorted(offsets.items()):
            writer.writerow([*([group] if len(plan) > 1 else []), topic, index, offset])
    return out.getvalue()


def read_plan(path: Path, groups: Sequence[str]) -> Plan:
    """Read a plan from a CSV file. Raises CommandFailed, with the line number, if it is invalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    plan: Plan = {}
    try:
        for number, row in enumerate(csv.reader(StringIO(text), strict=True), start=1):
            if not row:
                continue
            if len(row) == 3 and len(groups) == 1:
                row = [groups[0], *row]  # noqa: PLW2901
            if len(row) != 4 or not all(_is_number(cell) for cell in row[2:]):
                raise CommandFailed(
                    f"{path}, line {number}: not of the form topic,partition,offset (for one group) or "
                    "group,topic,partition,offset"
                )
            group, topic, index, offset = row
            plan.setdefault(group, {})[topic, int(index)] = int(offset)
    except csv.Error as error:
        raise CommandFailed(f"{path} cannot be read as CSV: {error}") from error
    return plan


def _is_number(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and int(cell) <= MAX_INT64
