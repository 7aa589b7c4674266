"""The flags that the parts of `kbroker tier` share, and those that the jobs of `kbroker spark` share with them."""

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
Flags = argparse._ActionsContainer
"""A parser, or a group of it."""


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say where the metadata are."""
    add_connection_flags(parser)
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR",
        help="a broker's data directory, running or not, which is only read; with -b the broker is asked, and the "
        "directory only says where a tier in a directory is",
    )  # fmt: skip


def add_store_flags(parser: Flags) -> None:
    """Declare the flags that say where the store is."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the broker's settings, of which those of remote storage count"
    )
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE",
        help="one of its settings, as rsm.config.dir=/tier; stronger than the file; repeatable",
    )  # fmt: skip


def add_min_age_flag(parser: Flags) -> None:
    """Declare the flag that says of what it is too early to say anything."""
    parser.add_argument(
        "--min-age-ms", type=partial(parse.integer, at_least=0), default=HOUR_MS, metavar="MS",
        help=f"younger objects that nothing refers to are left alone: one may just be arriving (default {HOUR_MS})",
    )  # fmt: skip


def add_topic_flag(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that chooses partitions."""
    parser.add_argument(
        "-t", "--topic", action="append", type=parse.topic_partitions, metavar="NAME[:0,1]",
        help="a topic, or some of its partitions; repeatable (default all)",
    )  # fmt: skip


def segment_id(text: str) -> UUID:
    """A segment's id as Kafka writes it, or as a UUID with hyphens."""
    from uuid import UUID  # noqa: PLC0415

    from wire.types import uuid_from_text  # noqa: PLC0415

    try:
        return UUID(text) if len(text) == 36 else uuid_from_text(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a segment") from None
