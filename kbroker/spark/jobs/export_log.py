"""The log of batches in an export's directory: one numbered record for each committed batch.

    OUT/date=2026-01-31/partition=0/*.parquet   the records
    OUT/_bad_records/date=…/partition=…/        records whose values could not be decoded, with the reason
    OUT/_kbroker_export/00000000000000000000.json, …
    OUT/_kbroker_staging/…                      a batch that is being written
    OUT/_SUCCESS                                only while the export is complete

A batch is written to the staging directory. Then its record is created atomically, which commits offsets and files
together. Then its files are renamed into place. After a crash the next run finds either no record, and deletes the
staging directory, or a record, and completes its renames: nothing is exported twice, and nothing is omitted. The next
batch begins at the offsets where the last record ends.

This module has the records and decisions; `files` accesses the file system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from kbroker.spark.admission import admitted
from kbroker.spark.errors import ExportConflict

COMMITS: Final = "_kbroker_export"
STAGING: Final = "_kbroker_staging"
BAD_RECORDS: Final = "_bad_records"
SUCCESS: Final = "_SUCCESS"
VERSION: Final = 1

_COMMIT: Final = re.compile(r"(\d{20})\.json")


class Range(NamedTuple):
    """Offsets of a partition. Units: end is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of a batch. Shape: staged and path are relative to the output directory. Units: size in bytes."""

    staged: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What all batches of one directory have in common.

    Shape  schema is that of the files, as Spark's JSON; options are those that affect the rows
    """

    topic: str
    topic_id: str | None
    schema: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed batch.

    Shape  ranges has every partition that was ever exported, with the offsets of this batch; rows and bad_rows are
           counts by partition
    """

    number: int
    identity: Identity
    ranges: Mapping[int, Range]
    files: Sequence[ExportedFile]
    rows: Mapping[int, int]
    bad_rows: Mapping[int, int] = field(default_factory=dict)
    timestamp_ms: int = -1

    @property
    def name(self) -> str:
        return commit_name(self.number)

    @property
    def ends(self) -> dict[int, int]:
        """Where the next batch begins."""
        return {partition: each.end for partition, each in self.ranges.items()}

    def to_json(self) -> str:
        """Indented, because people read it when something goes wrong."""
        identity = asdict(self.identity)
        partitions = {
            str(partition): {
                "from": each.start,
                "to": each.end,
                "rows": self.rows.get(partition, 0),
                "bad_rows": self.bad_rows.get(partition, 0),
            }
            for partition, each in sorted(self.ranges.items())
        }
        files = [asdict(each) for each in self.files]
        header = {"version": VERSION, "number": self.number, "timestamp_ms": self.timestamp_ms, **identity}
        return json.dumps({**header, "partitions": partitions, "files": files}, indent=1) + "\n"


def commit_name(number: int) -> str:
    return f"{number:020d}.json"


def commit_number(name: str) -> int | None:
    """The number in a commit's name; None for another name."""
    found = _COMMIT.fullmatch(name)
    return None if found is None else int(found[1])


def parse_commit(text: str, *, path: str) -> Commit:
    """The commit in a file. Errors: ExportConflict for a file that this version cannot have written."""
    try:
        found = json.loads(text)
        if found["version"] != VERSION:
            raise ValueError(f"its version is {found['version']}")
        partitions = {int(partition): each for partition, each in found["partitions"].items()}
        return Commit(
            number=int(found["number"]),
            identity=Identity(found["topic"], found["topic_id"], found["schema"], found["options"]),
            ranges={partition: Range(int(each["from"]), int(each["to"])) for partition, each in partitions.items()},
            files=[ExportedFile(each["staged"], each["path"], int(each["size"])) for each in found["files"]],
            rows={partition: int(each["rows"]) for partition, each in partitions.items()},
            bad_rows={partition: int(each["bad_rows"]) for partition, each in partitions.items()},
            timestamp_ms=int(found["timestamp_ms"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportConflict(
            f"this commit cannot be read: {type(error).__name__}: {error}",
            remedy="restore the file, or export into an empty directory",
            object_name=path,
        ) from None


def refuse_another(known: Identity, wanted: Identity, *, output: str) -> None:
    """Check that a batch may follow the existing ones. Errors: ExportConflict with the difference."""

    def conflict(what: str, remedy: str) -> ExportConflict:
        return ExportConflict(what, remedy=remedy, at=wanted.topic, object_name=output)

    elsewhere = "export into another directory"
    if known.topic != wanted.topic:
        raise conflict(f"the directory contains an export of the topic {known.topic!r}", elsewhere)
    if None not in (known.topic_id, wanted.topic_id) and known.topic_id != wanted.topic_id:
        what = (
            f"the topic was created again since the last export: its id is {wanted.topic_id}, it was {known.topic_id}"
        )
        raise conflict(what, f"{elsewhere}; this directory remains the export of the deleted topic")
    for name in sorted({*known.options, *wanted.options}):
        before, now = known.options.get(name), wanted.options.get(name)
        if before != now:
            raise conflict(
                f"the earlier batches were made with {name} = {_shown(before)}, this one would use {_shown(now)}",
                f"give the same options as before, or {elsewhere}",
            )
    if known.schema != wanted.schema:
        raise conflict(f"the schema has changed: {differences(known.schema, wanted.schema)}", elsewhere)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The differences between two structs, field by field."""
    old = {each["name"]: (each["type"], each["nullable"]) for each in before["fields"]}
    new = {each["name"]: (each["type"], each["nullable"]) for each in now["fields"]}
    found = [f"{name} is missing" for name in old if name not in new]
    found += [f"{name} is new" for name in new if name not in old]
    found += [
        f"{name} was {_kind(*old[name])} and is {_kind(*new[name])}"
        for name in old
        if name in new and old[name] != new[name]
    ]
    return "; ".join(found) or "the order of the fields"


def _kind(kind: Any, is_nullable: bool) -> str:
    return (kind if isinstance(kind, str) else json.dumps(kind)) + ("" if is_nullable else " not null")


def next_batch(
    begins: Mapping[int, int], ends: Mapping[int, int], *, max_records: int | None
) -> dict[int, Range]:  # fmt: skip
    """The offsets of the next batch: all, or about `max_records` of them. Some ranges may be empty."""
    until = {partition: max(start, ends[partition]) for partition, start in begins.items()}
    admits = admitted(begins, until, most=max_records)
    return {partition: Range(start, admits[partition]) for partition, start in begins.items()}
