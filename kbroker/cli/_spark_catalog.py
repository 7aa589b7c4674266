"""`kbroker spark catalog`: list the segments of the tier."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kbroker.cli import EXIT_INTERRUPTED
from kbroker.cli._say import note, say_json
from kbroker.cli._spark_session import progress, source_options, spark_session
from kbroker.cli._table import print_rows

if TYPE_CHECKING:
    from pyspark.sql import Row

    from kbroker.spark.jobs.catalog import CatalogSummary

COLUMNS = ("TOPIC", "PARTITION", "START", "END", "EPOCHS", "STATE", "BYTES", "SEGMENT")


def catalog(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print or write the segments or events; return the exit code."""
    if options.events and options.output is None:
        parser.error("--events requires --output")
    if not options.events and (options.follow or options.checkpoint):
        parser.error("--follow and --checkpoint require --events")
    if options.events and options.all:
        parser.error("--all cannot be used with --events, which includes all segments")
    asked = source_options(options)
    with spark_session(options) as session:
        from kbroker.spark.jobs import catalog as job  # noqa: PLC0415  (needs PySpark)

        if options.events:
            checkpoint = options.checkpoint or f"{options.output.rstrip('/')}/_checkpoint"
            with progress(session) as tell:
                tell("writing the events")
                summary = job.follow(
                    session, options=asked, output=options.output, checkpoint=checkpoint, topics=options.topic,
                    once=not options.follow,
                )  # fmt: skip
        else:
            rows: list[Row] = []
            with progress(session) as tell:
                summary = job.catalog(
                    session, options=asked, topics=options.topic, all_states=options.all, output=options.output,
                    show=rows.append, progress=tell,
                )  # fmt: skip
            if options.format == "json":
                for row in rows:
                    say_json(_as_json(row))
            else:
                print_rows(COLUMNS, map(_cells, rows))
    _summarize(summary, options)
    return EXIT_INTERRUPTED if options.follow else 0


def _summarize(summary: CatalogSummary, options: argparse.Namespace) -> None:
    if options.format == "json":
        say_json({"kind": "summary", **asdict(summary)})
        return
    states = ", ".join(f"{count} {state}" for state, count in sorted(summary.states.items())) or "nothing in the tier"
    size = "" if options.events else f"; {summary.bytes} bytes"
    where = f"; written to {summary.output}" if summary.output else ""
    note(f"kbroker spark: {states}{size}{where}")


def _cells(row: Row) -> tuple[object, ...]:
    epochs = ",".join(f"{each.leader_epoch}@{each.start_offset}" for each in row.leader_epochs)
    return (
        row.topic, row.partition, row.start_offset, row.end_offset, epochs, row.state, row.size_bytes, row.segment_id,
    )  # fmt: skip


def _as_json(row: Row) -> dict[str, Any]:
    found = row.asDict(recursive=True)
    for name in ("max_timestamp", "event_timestamp"):
        when = found.pop(name)
        found[f"{name}_ms"] = None if when is None else round(when.timestamp() * 1000)
    custom = found["custom_metadata"]
    found["custom_metadata"] = None if custom is None else bytes(custom).hex()
    return {"kind": "segment", **{name: value for name, value in found.items() if not name.startswith("metadata_")}}
