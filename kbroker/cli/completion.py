"""`kbroker completion SHELL`: print the script that completes commands, flags, topics and groups in a shell.

The script runs this command again with the line so far, so that it never differs from the installed version.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from kbroker.cli import Commands
from kbroker.cli._say import say

SCRIPTS: Final = {"bash": "kbroker.bash", "zsh": "_kbroker", "fish": "kbroker.fish"}


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "completion",
        help="print a script for completion in a shell",
        description="Print the script that completes commands, flags, topics and groups in a shell: in bash, "
        "source <(kbroker completion bash); in zsh, source <(kbroker completion zsh); in fish, "
        "kbroker completion fish | source.",
    )
    parser.add_argument("shell", choices=SCRIPTS, metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--line", metavar="TEXT", help="print what may follow this line, for the script")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    if options.line is None:
        lines = (Path(__file__).parent / "shells" / SCRIPTS[options.shell]).read_text().splitlines()
    else:
        from kbroker.cli._completing import complete  # noqa: PLC0415  (--help must not import this)

        lines = list(complete(options.shell, options.line))
    for line in lines:
        say(line)
