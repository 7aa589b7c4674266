"""`kbroker demo`: tiered storage in half a minute, on this machine and with nothing set up.

A broker of its own starts on a free port of the loopback interface, with a temporary directory and settings that make
everything happen quickly. A stock client fills a topic; closed segments move to the tier; the local disk shrinks; a
stock client reads everything from offset 0 and compares it, record by record, with what was written. Meanwhile a
picture shows where the offsets are. Whatever is not as told ends it with exit code 1, and nothing is left behind.
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
        description="Start a broker of its own, fill a tiered topic, watch it move to the tier, and read it back.",
    )
    parser.add_argument(
        "--mib", type=lambda text: integer(text, at_least=MIN_MIB, at_most=MAX_MIB), default=DEFAULT_MIB, metavar="N",
        help=f"how much is written, in MiB (default {DEFAULT_MIB})",
    )  # fmt: skip
    parser.add_argument(
        "--patience-ms", type=milliseconds, default=DEFAULT_PATIENCE_MS, metavar="MS",
        help=f"how long each step may take (default {DEFAULT_PATIENCE_MS})",
    )  # fmt: skip
    parser.add_argument(
        "--plain", action="store_true", help="lines instead of a picture, as where there is no terminal"
    )
    parser.set_defaults(run=demo)


def demo(options: argparse.Namespace) -> int:
    """Tell the story; the exit code."""
    from kbroker.cli._demo_story import run  # noqa: PLC0415  (help must not cost the client)

    return run(mib=options.mib, plain=options.plain, patience_ms=options.patience_ms)
