"""`python -m compat`: the report card of a broker.

Exit status: 0 if no row differs from Apache Kafka, 1 if one does or the broker is gone, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from compat.card import report
from compat.card.connection import Security
from compat.card.registry import Row, all_rows
from compat.card.runner import EQUAL, JOBS, RECORDING, WHOLE_LIMIT_S, Card, Result, Runner, recording
from compat.card.session import BrokerGone
from kbroker.cli import CommandFailed
from kbroker.cli._admin import client_settings


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m compat",
        description=(
            "Compare a broker's answers with those of Apache Kafka 4.3.1, row by row. The card makes topics and groups "
            "named card-*, and removes them at the end; it changes nothing else."
        ),
        epilog="Exit status: 0 if no row differs, 1 if one does or the broker is gone, 2 for wrong usage.",
    )
    made.add_argument(
        "-b", "--bootstrap-server", "--bootstrap-servers", action="append", dest="bootstrap_servers",
        metavar="HOST:PORT", help="the broker, or several of a cluster, separated by commas (default: localhost:9092)",
    )  # fmt: skip
    made.add_argument(
        "--command-config", type=Path, metavar="FILE",
        help="client settings in Kafka's properties format: security.protocol, ssl.*, sasl.*",
    )  # fmt: skip
    made.add_argument(
        "--only", action="append", metavar="PATTERN",
        help="run the rows whose area or name matches: a part of the text, or a pattern with *; repeatable",
    )  # fmt: skip
    made.add_argument("--list", action="store_true", help="list the rows and end")
    made.add_argument("--format", choices=("table", "json"), default="table", help="what standard output gets")
    made.add_argument("--junit", type=Path, metavar="FILE", help="also write JUnit XML")
    made.add_argument("--html", type=Path, metavar="FILE", help="also write one HTML page")
    made.add_argument("--strict", action="store_true", help="end with 1 also if a row is not offered or only accepted")
    made.add_argument("--jobs", type=_jobs, default=JOBS, metavar="N", help="rows at a time (default: %(default)s)")
    made.add_argument("--row-limit-s", type=float, metavar="S", help="time limit of each row, instead of its own")
    made.add_argument(
        "--limit-s", type=float, default=WHOLE_LIMIT_S, metavar="S",
        help="rows that have not begun after this time are not run (default: %(default).0f)",
    )  # fmt: skip
    made.add_argument(
        "--record", action="store_true",
        help="record the answers as Kafka's; only for an Apache Kafka 4.3.1 that offers everything",
    )  # fmt: skip
    return made


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number above 0 is needed")
    return int(text)


def selected(rows: Sequence[Row], patterns: Sequence[str] | None) -> list[Row]:
    """The rows that match one of the patterns; all without patterns."""
    if not patterns:
        return list(rows)
    wanted = [each.lower() if "*" in each else f"*{each.lower()}*" for each in patterns]
    return [row for row in rows if any(fnmatch.fnmatch(row.id.lower(), each) for each in wanted)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    made = parser()
    given = made.parse_args(arguments)
    rows = selected(all_rows(), given.only)
    if not rows:
        made.error(f"no row matches {' or '.join(given.only)} (--list shows all)")
    if given.list:
        print("\n".join(row.id for row in rows))
        return 0
    try:
        settings = client_settings(given)
        security = Security(settings)
    except CommandFailed as error:
        made.error(str(error))
    except OSError as error:
        made.error(str(error))
    servers = ",".join(settings["bootstrap_servers"])
    if not all(re.fullmatch(r"\S+:\d{1,5}", each) for each in settings["bootstrap_servers"]):
        made.error(f"{servers} is not HOST:PORT")
    for path in (given.junit, given.html):
        if path is not None and not path.parent.is_dir():
            made.error(f"{path.parent} is not a directory")
    try:
        runner = Runner(
            servers, jobs=given.jobs, row_limit_s=given.row_limit_s, whole_limit_s=given.limit_s, security=security
        )
        card = runner.run(rows, {} if given.record else recording(), on_result=_progress(len(rows)))
    except BrokerGone as error:
        print(f"compat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("compat: interrupted; the topics and groups of the card were removed", file=sys.stderr)
        return 130
    if given.record:
        return record(card)
    print(report.as_json(card) if given.format == "json" else report.table(card))
    if given.junit:
        given.junit.write_text(report.as_junit(card), encoding="utf-8")
    if given.html:
        given.html.write_text(report.as_html(card), encoding="utf-8")
    if card.gone:
        print(f"compat: {card.gone}", file=sys.stderr)
    is_strict = not given.strict or card.count(EQUAL) == len(card.results)
    return 0 if card.is_equal and is_strict else 1


def _progress(total: int) -> Callable[[Result], None] | None:
    """A function that shows on a terminal how many rows are done; None elsewhere."""
    if not sys.stderr.isatty():
        return None
    done, lock = [0], threading.Lock()

    def show(_: Result) -> None:
        with lock:
            done[0] += 1
            end = "\n" if done[0] == total else ""
            print(f"\r{done[0]} of {total} rows", end=end, file=sys.stderr, flush=True)

    return show


def record(card: Card, path: Path = RECORDING) -> int:
    """Write the notes of the rows as Kafka's; rows that were not run now keep what is recorded. 1 if a row has none."""
    kept = recording(path) if path.exists() else {}
    bad = [each for each in card.results if each.text and not each.text.startswith("nothing is recorded")]
    for each in bad:
        print(f"{each.row.id}: {each.text}", file=sys.stderr)
    kept |= {each.row.id: each.notes for each in card.results if each not in bad}
    ids = {row.id for row in all_rows()}
    rows = {name: notes for name, notes in sorted(kept.items()) if name in ids}
    lines = [f"  {json.dumps(name)}: {json.dumps(notes)}" for name, notes in rows.items()]
    body = ",\n".join(lines)
    path.write_text(f'{{"kafka": {json.dumps(report.KAFKA)}, "rows": {{\n{body}\n}}}}\n')
    print(f"{len(rows)} rows are recorded; {report.summary(card)}", file=sys.stderr)
    return 1 if bad else 0
