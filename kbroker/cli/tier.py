"""`kbroker tier`: what is in the tier, and why what is still on the local disk is there.

    ls      segments with offsets, epochs, states and sizes, or how the partitions lie in both tiers
    cat     the records of a segment in the tier, its bytes, or one of its indexes
    flush   close what there is of a topic, and wait until the tier has it
    scrub   compare what the store holds with what the metadata say
    why     say of each local segment what keeps it on the local disk

`ls`, `cat` and `scrub` take what they know of segments from `__remote_log_metadata`: by Kafka's protocol from a
broker, Apache Kafka's included, or from a data directory, whether a broker runs on it or not. Nothing is changed but by
`flush`, and by `scrub --delete-orphans`.

Exit codes of scrub: 0 nothing was found, 1 it could not be run, 3 something was found.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from kbroker.cli import Commands, add_part
from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_connection_flags
from kbroker.cli._records import unescape
from kbroker.cli._tier_flags import add_min_age_flag, add_source_flags, add_store_flags, add_topic_flag, segment_id

FLUSH_TIMEOUT_MS: Final = 120_000
INDEX_KINDS: Final = ("index", "timeindex", "snapshot", "txnindex", "leader-epoch-checkpoint")


def add_parser(commands: Commands) -> None:
    """Declare the command, its parts and their flags."""
    parser = commands.add_parser(
        "tier",
        help="show, read, fill and check tiered storage",
        description="Show, read, fill and check what is in tiered storage.",
    )
    parts: Commands = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for declare in (_ls, _cat, _flush, _scrub, _why):
        declare(parts)


def _ls(parts: Commands) -> None:
    parser = add_part(
        parts, "tier", "ls", "list segments", "List the segments in the tier, or with --offsets where partitions lie."
    )
    add_source_flags(parser)
    add_topic_flag(parser)
    parser.add_argument(
        "--offsets", action="store_true", help="a line for each partition: where it begins in each tier and ends"
    )
    parser.add_argument("--all", action="store_true", help="also the segments that have been deleted")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="json is for machines")


def _cat(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "cat",
        "print a segment",
        "Print the records of one segment in the tier, or its bytes, from the store.",
    )
    add_source_flags(parser)
    add_store_flags(parser)
    parser.add_argument("-t", "--topic", metavar="NAME", help="the topic, with --partition and --offset")
    parser.add_argument("-p", "--partition", type=parse.partition, default=0, metavar="N", help="(default 0)")
    parser.add_argument(
        "-o", "--offset", type=partial(parse.integer, at_least=0), metavar="N",
        help="the segment that holds this offset, from it on",
    )  # fmt: skip
    parser.add_argument("-s", "--segment", type=segment_id, metavar="ID", help="the segment with this id")
    parser.add_argument("-c", "--count", type=parse.count, metavar="N", help="end after so many records")
    parser.add_argument(
        "--format", choices=["text", "json", "dump", "raw"], default="text",
        help="values; an object a line; the lines of dump-log; or the bytes as they are stored",
    )  # fmt: skip
    parser.add_argument("-f", "--output-format", metavar="FORMAT", help="as of `kbroker consume`")
    parser.add_argument(
        "-D", "--delimiter", type=unescape, default=b"\n", metavar="TEXT", help="what ends a value (a line end)"
    )
    parser.add_argument("--index", choices=INDEX_KINDS, help="the bytes of this index instead of the log's")


def _flush(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "flush",
        "copy all there is now",
        "Have everything that a tiered topic holds now copied to the tier, and wait until it is there. Only closed "
        "segments are copied, so the active one is closed first.",
    )
    add_connection_flags(parser)
    parser.add_argument("-t", "--topic", required=True, metavar="NAME", help="the topic")
    parser.add_argument(
        "--timeout-ms", type=parse.milliseconds, default=FLUSH_TIMEOUT_MS, metavar="MS",
        help=f"how long to wait (default {FLUSH_TIMEOUT_MS})",
    )  # fmt: skip
    parser.add_argument("--no-wait", action="store_true", help="only ask for it")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="json is for machines")


def _scrub(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "scrub",
        "compare the store with the metadata",
        "Compare what the store holds with what the metadata say. Exit codes: 0 nothing was found, 1 it could not be "
        "run, 3 something was found.",
    )
    add_source_flags(parser)
    add_store_flags(parser)
    add_topic_flag(parser)
    parser.add_argument(
        "--deep", action="store_true", help="read every segment: offsets, each batch's CRC, what the indexes say"
    )
    add_min_age_flag(parser)
    parser.add_argument(
        "--delete-orphans", action="store_true",
        help="delete objects of segments that the metadata call deleted; what the metadata never knew is only told",
    )  # fmt: skip
    parser.add_argument("--format", choices=["text", "json"], default="text", help="json prints an object a line")


def _why(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "why",
        "what keeps segments local",
        "Say of each segment in a data directory what keeps it there. A broker may run on it.",
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="a broker's data directory")
    add_topic_flag(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the broker's settings")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="one of its settings; repeatable"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="a running broker's pages: they tell its last error and last stable offset"
    )
    parser.add_argument("--format", choices=["text", "json"], default="text", help="json is for machines")
