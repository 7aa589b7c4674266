"""`kbroker spark replay`: write the records of a topic, or of files, into a topic."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from kbroker.cli._say import note, say_json
from kbroker.cli._spark_session import client_options, progress, source_options, spark_session
from kbroker.cli._table import print_rows

COLUMNS = ("PARTITION", "WRITTEN-BEFORE", "WRITTEN-NOW")


def replay(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Write the records and print their number."""
    asked = source_options(options)
    target = dict(asked)
    if options.to_server or options.to_command_config:
        # Do not send the client settings of the source, such as passwords, to another cluster.
        target = client_options([options.to_server] if options.to_server else None, options.to_command_config)
    if "kafka.bootstrap.servers" not in target:
        parser.error("the target is not specified: use --bootstrap-server or --to-server")
    with spark_session(options) as session:
        from kbroker.spark.jobs.replay import replay as job  # noqa: PLC0415  (needs PySpark)
        from wire.compression import Codec  # noqa: PLC0415

        with progress(session) as tell:
            summary = job(
                session, target=options.to, options=target, topic=options.topic, source_options=asked,
                parquet=options.parquet, job_id=options.job_id, by_key=options.by_key,
                codec=Codec[options.compression_codec.upper()], progress=tell,
            )  # fmt: skip
    for warning in summary.warnings:
        note(f"kbroker spark: {warning}")
    if options.format == "json":
        say_json({"kind": "summary", **asdict(summary)})
        return
    if summary.was_done:
        note(
            f"kbroker spark: job {summary.job_id!r} is already complete, and nothing was written; use another --job-id "
            f"to replay {summary.source} again",
        )
        return
    rows = [(at, summary.before[at], summary.written.get(at, 0)) for at in sorted(summary.before)]
    print_rows(COLUMNS, rows)
    total = sum(summary.written.values())
    resumed = f", {sum(summary.before.values())} were written before" if summary.is_resumed else ""
    note(
        f"kbroker spark: {total} records of {summary.source} written to {summary.target}{resumed}; job "
        f"{summary.job_id!r} is done",
    )
