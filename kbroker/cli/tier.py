"""`kbroker tier`: show, read, fill and check tiered storage.

    ls      list segments with offsets, epochs, states and sizes, or the offsets of partitions
    cat     print the records, the bytes or an index of a segment in the tier
    flush   close the active segments of a topic, and wait until the tier has everything
    attach  make a topic out of what a store holds of a cluster that is gone
    lease   hold records against retention while a job reads them
    scrub   compare the store with the metadata
    why     explain for each local segment why it is still on the local disk

`ls`, `cat` and `scrub` read the metadata of segments from `__remote_log_metadata`, through a broker (kbroker or Apache
Kafka) or from a data directory (with or without a running broker). Only `flush`, `attach`, `lease` and
`scrub --delete-orphans` change anything.

Exit codes of scrub: 0 no findings, 1 the check failed, 3 findings.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from kbroker.cli import Commands, add_format_flag, add_part
from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_connection_flags
from kbroker.cli._records import compile_format, unescape
from kbroker.cli._tier_flags import add_min_age_flag, add_source_flags, add_topic_flag, segment_id
from kbroker.cli.serve import add_settings_flags

FLUSH_TIMEOUT_MS: Final = 120_000
LEASE_MS: Final = 600_000
INDEX_KINDS: Final = ("index", "timeindex", "snapshot", "txnindex", "leader-epoch-checkpoint")


def add_parser(commands: Commands) -> None:
    """Declare the command, its subcommands and their flags."""
    parser = commands.add_parser(
        "tier",
        help="show, read, fill and check tiered storage",
        description="Show, read, fill and check tiered storage.",
    )
    parts: Commands = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for declare in (_ls, _cat, _flush, _attach, _lease, _scrub, _why):
        declare(parts)


def _ls(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "ls",
        "list segments",
        "List the segments in the tier, or with --offsets the offsets of partitions.",
    )
    add_source_flags(parser)
    add_topic_flag(parser)
    parser.add_argument(
        "--offsets",
        action="store_true",
        help="print one line per partition: its first offset in each tier, and its end",
    )
    parser.add_argument("--all", action="store_true", help="also list deleted segments")
    add_format_flag(parser)


def _cat(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "cat",
        "print a segment",
        "Print the records or the bytes of one segment from the store.",
    )
    add_source_flags(parser)
    add_settings_flags(parser)
    parser.add_argument("-t", "--topic", metavar="NAME", help="topic; requires --offset")
    parser.add_argument("-p", "--partition", type=parse.partition, default=0, metavar="N", help="partition (default 0)")
    parser.add_argument(
        "-o", "--offset", type=partial(parse.integer, at_least=0), metavar="N",
        help="print the segment that contains this offset, from this offset on",
    )  # fmt: skip
    parser.add_argument("-s", "--segment", type=segment_id, metavar="ID", help="print the segment with this id")
    parser.add_argument("-c", "--count", type=parse.count, metavar="N", help="exit after this many records")
    parser.add_argument(
        "--format", choices=["text", "json", "dump", "raw"], default="text",
        help="text: values; json: one object per line; dump: the lines of dump-log; raw: the stored bytes",
    )  # fmt: skip
    render = partial(compile_format, null=b"")
    parser.add_argument("-f", "--output-format", type=render, metavar="FORMAT", help="as in `kbroker consume`")
    parser.add_argument(
        "-D",
        "--delimiter",
        type=unescape,
        default=b"\n",
        metavar="TEXT",
        help="text after each value (default a newline)",
    )
    parser.add_argument("--index", choices=INDEX_KINDS, help="print the bytes of this index instead of the log")


def _flush(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "flush",
        "copy a topic to the tier now",
        "Copy all current records of a tiered topic to the tier, and wait until they are there. The broker copies only "
        "closed segments, so it closes the active segments first.",
    )
    add_connection_flags(parser)
    parser.add_argument("-t", "--topic", required=True, metavar="NAME", help="topic")
    parser.add_argument(
        "--timeout-ms", type=parse.milliseconds, default=FLUSH_TIMEOUT_MS, metavar="MS",
        help=f"how long to wait (default {FLUSH_TIMEOUT_MS})",
    )  # fmt: skip
    parser.add_argument("--no-wait", action="store_true", help="request the copy, and do not wait")
    parser.add_argument("--http", metavar="HOST:PORT", help="address of a broker's pages, for its last error")
    add_format_flag(parser)


def _attach(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "attach",
        "make a topic out of what a store holds",
        "Make a topic out of the segments of a topic whose cluster is gone. Nothing in the store is changed. All "
        "that does not fit together is reported first. Exit codes: 0 attached, 1 failed, 3 --dry-run found problems.",
    )
    add_connection_flags(parser)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="a data directory that has the tier next to it")
    add_settings_flags(parser)
    parser.add_argument("-t", "--topic", metavar="NAME", help="topic in the store")
    parser.add_argument(
        "--topic-id", action="append", type=segment_id, metavar="ID",
        help="id of the topic in the store; repeat it for a topic that was attached before and written to",
    )  # fmt: skip
    parser.add_argument(
        "--as", dest="new_name", metavar="NAME", help="name of the new topic (default that in the store)"
    )
    access = parser.add_mutually_exclusive_group()
    access.add_argument("--read-only", action="store_true", help="refuse producers (default)")
    access.add_argument(
        "--writable", action="store_true", help="accept new records; their segments are the new topic's"
    )
    parser.add_argument(
        "--until", type=parse.moment, metavar="WHEN",
        help="end each partition before the first batch with a record of this time or later (ISO 8601, or ms)",
    )  # fmt: skip
    parser.add_argument(
        "--until-offset", action="append", type=parse.partition_offset, metavar="[P:]N",
        help="end before the batch with this offset, in one partition or in all; repeatable",
    )  # fmt: skip
    parser.add_argument("--partial", action="store_true", help="attach the newest part of each partition without a gap")
    parser.add_argument("--deep", action="store_true", help="also read every segment, and check CRCs and indexes")
    parser.add_argument("--dry-run", action="store_true", help="only report")
    parser.add_argument("--partitions", type=parse.count, metavar="N", help="at least this many partitions")
    parser.add_argument("--replication-factor", type=parse.count, metavar="N", help="replicas of each partition")
    parser.add_argument(
        "--topic-config", dest="topic_config", action="append", type=parse.pair, metavar="KEY=VALUE",
        help="a setting of the new topic; without one its records do not expire; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--timeout-ms", type=parse.milliseconds, default=FLUSH_TIMEOUT_MS, metavar="MS",
        help=f"how long to wait for the brokers (default {FLUSH_TIMEOUT_MS})",
    )  # fmt: skip
    add_format_flag(parser)


def _lease(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "lease",
        "hold records against retention",
        "Hold the records of a topic from an offset on against retention, while a job reads them; prints the id of the "
        "lease. It ends after its time to live unless it is renewed.",
    )
    add_connection_flags(parser)
    parser.add_argument("-t", "--topic", required=True, type=parse.topic_partitions, metavar="NAME[:0,1]", help="topic")
    parser.add_argument(
        "-o", "--offset", type=parse.position, default=parse.Position("beginning"), metavar="OFFSET",
        help="the first held offset: beginning (default), end, <n> or s@<ms>",
    )  # fmt: skip
    parser.add_argument(
        "--ttl-ms", type=parse.milliseconds, default=LEASE_MS, metavar="MS", help=f"time to live (default {LEASE_MS})"
    )
    act = parser.add_mutually_exclusive_group()
    act.add_argument("--renew", metavar="ID", help="extend a lease")
    act.add_argument("--release", metavar="ID", help="end a lease")
    act.add_argument("--list", action="store_true", help="print the leases of the topic")
    add_format_flag(parser)


def _scrub(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "scrub",
        "compare the store with the metadata",
        "Compare the store with the metadata. Exit codes: 0 no findings, 1 the check failed, 3 findings.",
    )
    add_source_flags(parser)
    add_settings_flags(parser)
    add_topic_flag(parser)
    parser.add_argument(
        "--deep", action="store_true", help="also read every segment, and check offsets, CRCs and indexes"
    )
    add_min_age_flag(parser)
    parser.add_argument(
        "--delete-orphans", action="store_true",
        help="delete objects of segments that are deleted in the metadata; unknown objects are only reported",
    )  # fmt: skip
    add_format_flag(parser)


def _why(parts: Commands) -> None:
    parser = add_part(
        parts,
        "tier",
        "why",
        "explain why segments are local",
        "Explain for each segment in a data directory why it is still there. The broker may be running.",
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="data directory of a broker")
    add_topic_flag(parser)
    add_settings_flags(parser)
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="address of a running broker's pages, for its last error and last stable offset",
    )
    add_format_flag(parser)
