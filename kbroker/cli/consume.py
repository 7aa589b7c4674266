"""`kbroker consume`: print records of topics of any broker.

Without a group, it reads the partitions directly and commits nothing. With a group, it is a member that continues at
the group's offsets and commits what it has printed. It runs until it is interrupted (exit code 130), or until an end
that a flag sets.
"""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from typing import Final

from kbroker.cli import Commands
from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_client_flags
from kbroker.cli._records import OnlyValues, Render, compile_format, record_to_json, unescape

EXIT_TERMINATED: Final = 143


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "consume", help="print records of topics", description="Print records of topics on any Kafka-compatible broker."
    )
    add_client_flags(parser)
    parser.add_argument(
        "-t", "--topic", action="append", required=True, type=parse.topic_partitions, metavar="NAME[:0,1]",
        help="topic, optionally with partitions; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "-p",
        "--partition",
        action="append",
        type=parse.partition,
        metavar="N",
        help="read only this partition; repeatable",
    )
    where = parser.add_argument_group("start and end")
    where.add_argument(
        "-o", "--offset", action="append", metavar="OFFSET",
        help="where to start: beginning, end, <n>, -<n> (before the end) or s@<ms> (timestamp); e@<ms> sets where to "
        "stop (default end; beginning with --exit-at-end; the group's offsets with --group)",
    )  # fmt: skip
    where.add_argument(
        "--from-beginning", action="append_const", dest="offset", const="beginning", help="short for --offset beginning"
    )
    where.add_argument(
        "-c", "--count", "--max-messages", type=parse.count, metavar="N", help="exit after this many records"
    )
    where.add_argument("-e", "--exit-at-end", action="store_true", help="exit at the log end offset of the start")
    where.add_argument(
        "--timeout-ms", type=parse.milliseconds, metavar="MS", help="exit if no record arrives for this long"
    )
    parser.add_argument("-g", "--group", metavar="NAME", help="read as a member of this group and commit offsets")
    parser.add_argument(
        "--isolation-level", choices=["read_committed", "read_uncommitted"], default="read_uncommitted",
        help="read_committed skips records of open and aborted transactions",
    )  # fmt: skip
    how = parser.add_argument_group("output")
    how.add_argument(
        "--format",
        choices=["text", "json"],
        default="text",
        help="text prints values; json prints one object per record",
    )
    how.add_argument(
        "-f", "--output-format", metavar="FORMAT",
        help="format as in kcat: %%s value, %%k key, %%t topic, %%p partition, %%o offset, %%T timestamp, %%h headers, "
        "%%S value size, %%K key size, and \\n \\t \\xHH; no line end is added",
    )  # fmt: skip
    how.add_argument(
        "-K", "--key-separator", type=unescape, metavar="TEXT", help="print the key and this text before the value"
    )
    how.add_argument(
        "-D",
        "--delimiter",
        type=unescape,
        default=b"\n",
        metavar="TEXT",
        help="text after each record (default a newline)",
    )
    how.add_argument(
        "-Z", "--null-marker", type=unescape, default=b"", metavar="TEXT", help="text for null (default empty)"
    )
    parser.set_defaults(run=partial(consume, parser))


def consume(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Print records up to the end that the flags set."""
    reading = _range(parser, options)
    render = _render(parser, options)
    _check_group(parser, options, reading)
    from kbroker.cli._consuming import read  # noqa: PLC0415  (--help must not import the client)

    # The exit unwinds `read`, so that it commits and leaves the group.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        read(options, reading, render)
    finally:
        signal.signal(signal.SIGTERM, before)


def _range(parser: argparse.ArgumentParser, options: argparse.Namespace) -> parse.Range:
    default = parse.Position("beginning" if options.exit_at_end else "end")
    try:
        return parse.offset_range(options.offset, default=default)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument -o/--offset: {error}")


def _render(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Render:
    """What formats a record, with the text after it."""
    if options.output_format is not None and options.format == "json":
        parser.error("--output-format cannot be used with --format json")
    if options.key_separator is not None and (options.output_format is not None or options.format == "json"):
        parser.error("--key-separator cannot be used with --output-format or --format json")
    if options.format == "json":
        return lambda record: record_to_json(record) + b"\n"
    null: bytes = options.null_marker
    if options.output_format is not None:
        try:
            return compile_format(options.output_format, null)
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument -f/--output-format: {error}")
    between: bytes | None = options.key_separator
    end: bytes = options.delimiter
    if between is None:
        return OnlyValues(null, end)
    return lambda record: (
        (null if record.key is None else record.key) + between + (null if record.value is None else record.value) + end
    )


def _check_group(parser: argparse.ArgumentParser, options: argparse.Namespace, reading: parse.Range) -> None:
    if options.group is None:
        return
    if options.group == "":
        parser.error("the name of the group is empty")
    if options.partition is not None or any(each.partitions is not None for each in options.topic):
        parser.error("--group cannot be used with partitions: the group assigns them")
    if reading.end_ms is not None or reading.start.anchor not in {"beginning", "end"}:
        parser.error("with --group, --offset can only be beginning or end; it applies to partitions without an offset")
