"""`kbroker spark audit`: run the tier's deep scrub in parallel."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kbroker.cli import EXIT_FOUND, CommandFailed
from kbroker.cli._say import note, say, say_json
from kbroker.cli._spark_session import progress, source_options, spark_session
from kbroker.cli._table import print_rows

if TYPE_CHECKING:
    from kbroker.spark.jobs.audit_report import AuditReport, PartitionView

COLUMNS = ("TOPIC", "PARTITION", "LOG-START", "LOCAL-START", "END", "SEGMENTS", "TIERED-TO", "TIERED-BYTES", "FOUND")


def audit(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the audit and print its findings; return the exit code."""
    asked = source_options(options)
    if not any(name.startswith(("rsm.config.", "remote.log.storage", "kbroker.config")) for name in asked):
        parser.error("the store is not specified: use the broker's --data-dir or --config, or --override rsm.config.…")
    with spark_session(options) as session:
        from kbroker.spark.jobs.audit import audit as job  # noqa: PLC0415  (needs PySpark)

        with progress(session) as tell:
            report = job(
                session, options=asked, topics=options.topic, deep=not options.shallow, min_age_ms=options.min_age_ms,
                progress=tell,
            )  # fmt: skip
    # Print first, so that an unwritable HTML file does not lose the result of a long audit.
    _print(report, as_json=options.format == "json")
    if options.html is not None:
        from kbroker.spark.jobs.audit_page import page  # noqa: PLC0415

        try:
            options.html.write_text(page(report), encoding="utf-8")
        except OSError as error:
            raise CommandFailed(f"cannot write {options.html}: {error.strerror or error}") from error
    return EXIT_FOUND if report.findings else 0


def _print(report: AuditReport, *, as_json: bool) -> None:
    found = [*report.findings, *report.notes]
    if as_json:
        for each in found:
            say_json(each.as_json())
        say_json({"kind": "summary", **report.as_json()})
        return
    for each in found:
        say(each.line())
    print_rows(COLUMNS, map(_row, report.partitions))
    for warning in report.warnings:
        note(f"kbroker spark: {warning}")
    verdict = ", ".join(f"{count} {problem}" for problem, count in sorted(report.problems.items())) or "nothing found"
    read = f"{report.read_segments} read with {report.read_bytes} bytes"
    where = f"{report.segments} segments ({read}) against {report.objects} objects"
    more = f"; {report.deleted_meanwhile} segments were deleted during the check" if report.deleted_meanwhile else ""
    note(f"kbroker spark: {verdict}, {len(report.notes)} notes; {where}{more}")


def _row(view: PartitionView) -> tuple[object, ...]:
    numbers = (
        view.log_start_offset, view.local_log_start_offset, view.end_offset, len(view.segments), view.tiered_to,
        view.size, sum(len(each.problems) for each in view.segments),
    )  # fmt: skip
    topic = view.topic if view.exists else f"{view.topic} (deleted)"
    return topic, view.partition, *("-" if each is None else each for each in numbers)
