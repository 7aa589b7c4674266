"""`kbroker spark export`: a topic as Parquet files with each record exactly once, even if the job is killed.

`export_log` describes how a batch is committed; this module does it. `Export.steps` is a generator: it may be stopped
after any step, as a kill does, and a new Export continues from the state of the directory. The offsets of a batch are
fixed before it is read, so that a repeated batch has the same records.

Two exports at the same time do no harm. Only one of them can commit a batch number; the other raises ExportConflict.
Nothing deletes what another export is writing before that commit. On object stores both may fail, see `files`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kbroker.runtime.env import RealEnv
from kbroker.spark.errors import ExportConflict, InvalidOption
from kbroker.spark.jobs import export_log
from kbroker.spark.jobs.bounds import Bounds, find_bounds, read_ranges
from kbroker.spark.jobs.decoding import Decoding
from kbroker.spark.jobs.export_log import BAD_RECORDS, COMMITS, STAGING, SUCCESS, Commit, ExportedFile, Identity, Range
from kbroker.spark.jobs.export_rows import (
    bad_rows,
    counted_rows,
    good_rows,
    identity_schema,
    rows_of,
    save,
    staged_files,
)
from kbroker.spark.jobs.files import Claimed, HadoopDirectory
from kbroker.spark.options import subscriptions_in

DEFAULT_POLL_SECONDS: Final = 10.0
STARTING: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


class Step(NamedTuple):
    """A step that is done. Shape: name is one of a few words, text a description for people."""

    name: str
    text: str


@dataclass(slots=True)
class ExportSummary:
    """The result of a run.

    Shape  ranges maps partitions to the offsets that this run exported; commits are the numbers of its batches;
           is_complete: everything up to the topic's end when the run began, or up to the ending offsets, is exported
    """

    topic: str
    output: str
    ranges: dict[int, Range] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)
    rows: int = 0
    bad_rows: int = 0
    files: int = 0
    bytes: int = 0
    finished: int | None = None
    is_complete: bool = False


def export(
    spark: SparkSession,
    *,
    topic: str,
    output: str,
    options: Mapping[str, str],
    decoding: Decoding | None = None,
    into: str | None = None,
    max_records_per_batch: int | None = None,
    follow: bool = False,
    poll_seconds: float = DEFAULT_POLL_SECONDS,
    progress: Any = None,
) -> ExportSummary:
    """Export the current records of a topic, or with `follow` also new ones until a KeyboardInterrupt.

    `options` are those of `format("kbroker")` without the subscription; `decoding` converts values to columns, in one
    struct named `into` if that is given. `progress` is called with each Step.
    Errors  ExportConflict, KbrokerSourceError, OSError from the file system
    """
    job = Export(spark, topic, output, options, decoding, into, max_records_per_batch)
    try:
        while True:
            for step in job.steps():
                if progress is not None:
                    progress(step)
            if not follow:
                break
            Event().wait(poll_seconds)
    except KeyboardInterrupt:
        if not follow:
            raise
    return job.summary


@dataclass
class Export:
    """One export. `steps` exports everything up to the topic's current end, and may be called again."""

    spark: SparkSession
    topic: str
    output: str
    options: Mapping[str, str] = field(repr=False)  # may have secrets
    decoding: Decoding | None = None
    into: str | None = None
    max_records_per_batch: int | None = None
    _in_place: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.options = {name: str(value) for name, value in self.options.items()}  # also numbers
        self.directory = HadoopDirectory.for_writing(self.spark, self.output)
        self.summary = ExportSummary(self.topic, self.directory.path)
        if subscribed := subscriptions_in(self.options):
            raise InvalidOption(f"{subscribed[0]} is given in addition to the topic", remedy="remove it")

    def steps(self) -> Iterator[Step]:
        """Run the export; each step is done when it is yielded."""
        # Check the columns first, so that an invalid schema is reported before anything is read.
        schema = identity_schema(self.decoding, self.into)
        last = self._last_commit()
        if last is not None and last.identity.topic == self.topic and last.number != self._in_place:
            # Complete the committed batch, even if the topic or the broker no longer exists.
            yield from self._finish(last, is_earlier=True)
        # After the first batch the starting offsets no longer matter, and they may have expired.
        bounds = self._bounds(from_earliest=last is not None)
        identity = Identity(self.topic, bounds.topic_id, schema, self._identity_options())
        if last is not None:
            export_log.refuse_another(last.identity, identity, output=self.directory.path)
        begins = self._begins(bounds, last)
        while True:
            batch = export_log.next_batch(begins, bounds.ends, max_records=self.max_records_per_batch)
            if not any(each.end > each.start for each in batch.values()):
                break
            number = 0 if last is None else last.number + 1
            self.summary.is_complete = False
            yield Step("planned", f"batch {number}: {sum(each.end - each.start for each in batch.values())} offsets")
            staging = f"{STAGING}/{number:020d}-{RealEnv().new_uuid().hex}"
            with self._detect_overtaking(number):
                commit = yield from self._write(identity, number, batch, staging)
            self._same_topic(identity)
            self.directory.delete(SUCCESS)
            yield Step("opened", f"the export is incomplete until batch {number} is in place")
            self._commit(commit, staging)
            yield Step("committed", f"batch {number} is committed")
            yield from self._finish(commit)
            self._count(commit, batch)
            last, begins = commit, commit.ends
        self.directory.touch(SUCCESS)
        newest = max(self._numbers(), default=None)
        if newest is not None and newest != self._in_place:
            self.directory.delete(SUCCESS)
            raise self._overtaken(newest)
        self.summary.is_complete = True
        yield Step("complete", "the export is complete")

    # --- current state ---

    def _bounds(self, *, from_earliest: bool = False) -> Bounds:
        return find_bounds(self.options, self.topic, from_earliest=from_earliest)

    def _same_topic(self, identity: Identity) -> None:
        """The source checked the topic while it read; this check covers the time after that."""
        now = self._bounds(from_earliest=True).topic_id
        export_log.refuse_another(
            identity, Identity(identity.topic, now, identity.schema, identity.options), output=self.directory.path
        )

    def _identity_options(self) -> dict[str, Any]:
        lowered = {name.lower(): text for name, text in self.options.items()}
        found: dict[str, Any] = {name: lowered[name.lower()] for name in STARTING if name.lower() in lowered}
        if self.decoding is not None:
            options = {name: value for name, value in asdict(self.decoding).items() if value is not None}
            del options["schema"]  # compared by itself
            found |= {**options, "into": self.into}
        return found

    def _begins(self, bounds: Bounds, last: Commit | None) -> dict[int, int]:
        """Where the next batch begins: after the last one, and for a new partition at its start."""
        if last is None:
            return dict(bounds.starts)
        if gone := sorted(last.ranges.keys() - bounds.starts.keys()):
            raise ExportConflict(
                f"the topic has no partition {gone[0]}, which was exported before",
                remedy="check that this is the right cluster",
                at=(self.topic, gone[0]),
            )
        begins = {partition: last.ends.get(partition, start) for partition, start in bounds.starts.items()}
        for partition, begin in begins.items():
            if begin < bounds.log_starts[partition]:
                raise ExportConflict(
                    f"the records from here to offset {bounds.log_starts[partition] - 1} expired before they were "
                    "exported",
                    remedy="keep this directory, and export the remaining records into another one; "
                    "export more often, or raise the topic's retention",
                    at=(self.topic, partition),
                    offset=begin,
                )
            if begin > bounds.ends[partition] and bounds.is_up_to_latest:
                raise ExportConflict(
                    f"the partition ends at offset {bounds.ends[partition]}, but was exported up to here",
                    remedy="check for lost records, and that this is the right cluster; export into another directory",
                    at=(self.topic, partition),
                    offset=begin,
                )
        return begins

    def _numbers(self) -> list[int]:
        """The numbers of the committed batches."""
        names = self.directory.names(COMMITS)
        return sorted(number for name in names if (number := export_log.commit_number(name)) is not None)

    def _last_commit(self) -> Commit | None:
        """The newest commit. Errors: ExportConflict if the directory is not an export, or a commit is missing."""
        numbers = self._numbers()
        if not numbers:
            strange = [name for name in self.directory.names("") if name not in {COMMITS, STAGING, SUCCESS}]
            if strange:
                what = f"the directory is not empty and is not an export: it contains {strange[0]}"
                raise self._conflict(what, remedy="use another --output, or empty the directory")
            return None
        if missing := sorted(set(range(numbers[-1] + 1)) - set(numbers)):
            remedy = "restore the file, or export into another directory"
            path = f"/{COMMITS}/{export_log.commit_name(missing[0])}"
            raise self._conflict("this commit is missing, but later ones exist", remedy, path)
        path = f"{COMMITS}/{export_log.commit_name(numbers[-1])}"
        return export_log.parse_commit(self.directory.read(path), path=f"{self.directory.path}/{path}")

    # --- writing ---

    def _write(
        self, identity: Identity, number: int, batch: Mapping[int, Range], staging: str
    ) -> Generator[Step, None, Commit]:
        records = read_ranges(self.spark, self.topic, self.options, batch)
        rows = rows_of(records, self.decoding, self.into)
        save(self.directory, good_rows(rows, self.decoding), f"{staging}/data")
        yield Step("written", f"the rows of batch {number} are written")
        counted = counted_rows(self.spark, self.directory, f"{staging}/data", batch)
        bad: dict[int, int] = {}
        expected = sum(each.end - each.start for each in batch.values())
        if self.decoding is not None and sum(counted.values()) < expected:
            # Control records and compaction also leave gaps, so read again to find bad records.
            save(self.directory, bad_rows(rows), f"{staging}/bad")
            bad = counted_rows(self.spark, self.directory, f"{staging}/bad", batch)
            yield Step("bad-written", f"{sum(bad.values())} records of batch {number} could not be decoded")
        files = [
            *staged_files(self.directory, f"{staging}/data", "", number),
            *staged_files(self.directory, f"{staging}/bad", f"{BAD_RECORDS}/", number),
        ]
        return Commit(
            number=number,
            identity=identity,
            ranges=dict(batch),
            files=files,
            rows=counted,
            bad_rows=bad,
            timestamp_ms=RealEnv.timestamp_ms(),
        )

    # --- committing ---

    def _commit(self, commit: Commit, staging: str) -> None:
        path, text = f"{COMMITS}/{commit.name}", commit.to_json()
        try:
            self.directory.create(path, text, staged=f"{staging}/{commit.name}")
        except Claimed:
            what = "another export is about to commit this batch, and this file system cannot decide which is first"
            remedy = "run one export at a time; if the other one was killed, start again in a minute"
            raise self._conflict(what, remedy, f"/{path}") from None
        except OSError:
            # The export that was first also deletes what others have staged, and each file system reports that
            # differently. A file system that copies may fail after the copy; then this commit exists.
            if not self.directory.exists(path):
                raise
            if self.directory.read(path) != text:
                raise self._overtaken(commit.number) from None

    @contextmanager
    def _detect_overtaking(self, number: int) -> Iterator[None]:
        """If another export commits the batch, it deletes our staged files. Report that as the cause of the failure."""
        try:
            yield
        except (PySparkException, Py4JError, OSError) as error:
            if self.directory.exists(f"{COMMITS}/{export_log.commit_name(number)}"):
                raise self._overtaken(number) from error
            raise

    def _overtaken(self, number: int) -> ExportConflict:
        path = f"/{COMMITS}/{export_log.commit_name(number)}"
        return self._conflict("another export has committed this batch", "run one export at a time", path)

    def _conflict(self, what: str, remedy: str, path: str = "") -> ExportConflict:
        return ExportConflict(what, remedy=remedy, at=self.topic, object_name=self.directory.path + path)

    def _finish(self, commit: Commit, *, is_earlier: bool = False) -> Iterator[Step]:
        """Move all files of a committed batch into place. Repeatable, also by several exports."""
        waiting = [file for file in commit.files if not self._is_in_place(file, commit)]
        if waiting:
            # Another export may have finished in between and created this file.
            self.directory.delete(SUCCESS)
        for place, file in enumerate(waiting):
            self._place(file)
            if place == 0:
                yield Step("renaming", f"the first of {len(waiting)} files of batch {commit.number} is in place")
        if waiting:
            yield Step("renamed", f"the files of batch {commit.number} are in place")
        self._in_place = commit.number
        for name in self.directory.names(STAGING):
            number = name.partition("-")[0]
            if number.isdigit() and int(number) <= commit.number:
                # This number is committed, so other staged batches with it are leftovers.
                self.directory.delete(f"{STAGING}/{name}")
        if not self.directory.names(STAGING):
            self.directory.delete(STAGING)
        if waiting and is_earlier:
            self.summary.finished = commit.number
        yield Step("swept", f"temporary files of batch {commit.number} are deleted")

    def _is_in_place(self, file: ExportedFile, commit: Commit) -> bool:
        """Errors: ExportConflict if the file is missing, or another one is in its place."""
        there = self.directory.size(file.path)
        if there is None and self.directory.size(file.staged) == file.size:
            return False
        if there is None:
            there = self.directory.size(file.path)  # another export may have renamed it just now
        if there != file.size:
            what = "is missing" if there is None else f"has {there} bytes instead of {file.size}"
            remedy = "restore it, or export into another directory"
            raise self._conflict(f"a file of batch {commit.number} {what}", remedy, f"/{file.path}")
        return True

    def _place(self, file: ExportedFile) -> None:
        self.directory.make_parent(file.path)
        try:
            self.directory.rename(file.staged, file.path)
        except OSError:
            if self.directory.size(file.path) != file.size:  # else another export has renamed it
                raise

    def _count(self, commit: Commit, batch: Mapping[int, Range]) -> None:
        summary = self.summary
        summary.commits.append(commit.number)
        summary.rows += sum(commit.rows.values())
        summary.bad_rows += sum(commit.bad_rows.values())
        summary.files += len(commit.files)
        summary.bytes += sum(each.size for each in commit.files)
        for partition, each in batch.items():
            known = summary.ranges.get(partition, each)
            summary.ranges[partition] = Range(known.start, each.end)
