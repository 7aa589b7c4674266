"""Flags shared by the subcommands of `kbroker tier` and the jobs of `kbroker spark`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.cli import _positions as parse
from kbroker.cli._admin import add_connection_flags

if TYPE_CHECKING:
    from uuid import UUID

HOUR_MS: Final = 3_600_000


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that locate the metadata."""
    add_connection_flags(parser)
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR",
        help="read the metadata from this data directory; the broker may be running; with -b, the metadata come from "
        "the broker, and this only locates a tier in a directory",
    )  # fmt: skip


def add_min_age_flag(parser: argparse.ArgumentParser) -> None:
    """Declare the flag for the age below which unreferenced objects are ignored."""
    parser.add_argument(
        "--min-age-ms", type=partial(parse.integer, at_least=0), default=HOUR_MS, metavar="MS",
        help=f"ignore unreferenced objects that are younger; their copy may be in progress (default {HOUR_MS})",
    )  # fmt: skip


def add_topic_flag(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that chooses partitions."""
    parser.add_argument(
        "-t", "--topic", action="append", type=parse.topic_partitions, metavar="NAME[:0,1]",
        help="topic, optionally with partitions; repeatable (default all)",
    )  # fmt: skip


def segment_id(text: str) -> UUID:
    """Parse a segment id in Kafka's format, or a UUID with hyphens."""
    from uuid import UUID  # noqa: PLC0415

    from wire.types import uuid_from_text  # noqa: PLC0415

    try:
        return UUID(text) if len(text) == 36 else uuid_from_text(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a segment id") from None
