"""`kbroker demo`: shows tiered storage in half a minute, on this machine and without any setup.

The demo starts its own broker on a free port of the loopback interface, with a temporary directory and short intervals.
A stock client fills a topic; closed segments move to the tier; the local disk shrinks; a stock client reads all records
from offset 0 and compares each one with what was written. A picture shows where the offsets are. If a step fails, the
exit code is 1. The demo always removes its files.
"""

from __future__ import annotations

import argparse
from typing import Final

from kbroker.cli import Commands
from kbroker.cli._positions import integer, milliseconds

DEFAULT_MIB: Final = 24
MIN_MIB: Final = 4
MAX_MIB: Final = 1024
DEFAULT_PATIENCE_MS: Final = 60_000


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "demo",
        help="watch a topic move to the tier and come back",
        description="Start a temporary broker, fill a tiered topic, watch it move to the tier, and read it back.",
    )
    parser.add_argument(
        "--mib", type=lambda text: integer(text, at_least=MIN_MIB, at_most=MAX_MIB), default=DEFAULT_MIB, metavar="N",
        help=f"amount of data to write, in MiB (default {DEFAULT_MIB})",
    )  # fmt: skip
    parser.add_argument(
        "--patience-ms", type=milliseconds, default=DEFAULT_PATIENCE_MS, metavar="MS",
        help=f"time limit of each step (default {DEFAULT_PATIENCE_MS})",
    )  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="print lines instead of a picture, as without a terminal")
    parser.set_defaults(run=demo)


def demo(options: argparse.Namespace) -> int:
    """Run the demo; return the exit code."""
    from kbroker.cli._demo_story import run  # noqa: PLC0415  (--help must not import the client)

    return run(mib=options.mib, plain=options.plain, patience_ms=options.patience_ms)
