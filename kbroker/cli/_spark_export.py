"""`kbroker spark export`: write a topic as Parquet."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.cli import EXIT_FOUND, EXIT_INTERRUPTED, CommandFailed
from kbroker.cli._say import note, say, say_json
from kbroker.cli._spark_session import progress, source_options, spark_session
from kbroker.cli._table import print_rows

if TYPE_CHECKING:
    from kbroker.spark.jobs.export import Step

COLUMNS = ("PARTITION", "FROM", "TO")


def export(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Export and print a summary; return the exit code."""
    if (options.decode is None) != (options.schema is None):
        parser.error("--decode and --schema must be used together")
    _check_decoding(parser, options)
    asked = source_options(options)
    with spark_session(options) as session:
        from kbroker.spark.jobs.export import export as job  # noqa: PLC0415  (needs PySpark)
        from kbroker.spark.jobs.schemas import decoding_of  # noqa: PLC0415

        decoding = None
        if options.decode is not None:
            decoding = decoding_of(
                options.decode, _text(options.schema), has_confluent_header=options.confluent_header,
                schema_id=options.schema_id, allows_unknown_fields=not options.refuse_unknown_fields,
                csv_delimiter=options.csv_delimiter, csv_null=options.csv_null,
            )  # fmt: skip
        with progress(session) as tell:
            shown = ""

            def step(done: Step) -> None:
                nonlocal shown
                tell(done.text)
                # Do not repeat the same text if a poll finds nothing new.
                if options.follow and done.name in {"committed", "complete"} and done.text != shown:
                    shown = done.text
                    if options.format == "json":
                        say_json({"kind": done.name, "text": done.text})
                    else:
                        say(done.text)
                    sys.stdout.flush()

            summary = job(
                session, topic=options.topic, output=options.output, options=asked, decoding=decoding,
                into=options.into, max_records_per_batch=options.max_records_per_batch, follow=options.follow,
                poll_seconds=options.poll_ms / 1000, progress=step,
            )  # fmt: skip
    if options.format == "json":
        say_json({"kind": "summary", **asdict(summary)})
    else:
        print_rows(COLUMNS, [(at, *each) for at, each in sorted(summary.ranges.items()) if each.end > each.start])
        bad = f", {summary.bad_rows} that could not be decoded" if summary.bad_rows else ""
        finished = "" if summary.finished is None else f"; finished batch {summary.finished} of an earlier run"
        note(
            f"kbroker spark: {summary.rows} rows{bad} in {summary.files} files with {summary.bytes} bytes added to "
            f"{summary.output}{finished}",
        )
    if options.follow:
        return EXIT_INTERRUPTED
    return EXIT_FOUND if summary.bad_rows else 0


def _check_decoding(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse flags that the chosen format ignores."""
    flags = {
        "--into": (options.into, ("json", "csv", "avro")),
        "--refuse-unknown-fields": (options.refuse_unknown_fields, ("json",)),
        "--csv-delimiter": (options.csv_delimiter != ",", ("csv",)),
        "--csv-null": (options.csv_null, ("csv",)),
        "--confluent-header": (options.confluent_header, ("avro",)),
        "--schema-id": (options.schema_id is not None, ("avro",)),
    }
    for flag, (is_given, formats) in flags.items():
        if is_given and options.decode not in formats:
            parser.error(f"{flag} requires --decode {' or '.join(formats)}")
    if options.schema_id is not None and not options.confluent_header:
        parser.error("--schema-id requires --confluent-header")


def _text(schema: str) -> str:
    """The contents of the file with this name, or else the text itself."""
    try:
        return Path(schema).read_text(encoding="utf-8") if Path(schema).is_file() else schema
    except (OSError, ValueError) as error:
        raise CommandFailed(f"cannot read the schema in {schema}: {error}") from error
