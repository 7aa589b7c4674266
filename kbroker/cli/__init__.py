"""The `kbroker` command: one file a command, named like it.

Each module of this package offers `add_parser(commands)`, which declares its flags and sets `run`. Only the module of
the command that is asked for is imported, because a broker is to be ready in a fraction of a second.

Exit codes: 0 done; 1 the operation failed; 2 the command line was wrong; 130 and 143 ended by a signal before it was
done.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TypeAlias

from kbroker import __version__
from kbroker.cli._say import say

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CommandFailed(Exception):
    """A command cannot do what it was asked to; its message is all that the user needs to see."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(words).parse_args(words)
    run: Callable[[argparse.Namespace], int | None] = options.run
    try:
        return run(options) or 0
    except CommandFailed as failure:
        for line in f"kbroker {options.command}: {failure}".split("\n"):
            say(line, file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left (`| head`): nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def add_part(parts: Commands, command: str, name: str, help: str, description: str) -> argparse.ArgumentParser:
    """Declare a part of a command, which is the function of its name in a module named like both: `_tier_ls.ls`.

    That module is imported when the part runs: help must cost neither clients nor the broker nor Spark.
    """
    parser = parts.add_parser(name, help=help, description=description)
    parser.set_defaults(run=partial(_run_part, f"{__name__}._{command}_{name}", name, parser))
    return parser


def _run_part(
    module: str, function: str, parser: argparse.ArgumentParser, options: argparse.Namespace
) -> int | None:  # fmt: skip
    code: int | None = getattr(import_module(module), function)(parser, options)
    return code


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kbroker", description="A broker that stock Kafka clients talk to without knowing."
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__}")
    commands: Commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    stems = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    asked_for = [stem for stem in stems if words and words[0] in _names(stem)]
    for stem in asked_for or stems:
        import_module(f"{__name__}.{stem}").add_parser(commands)
    return parser


def _names(stem: str) -> tuple[str, str]:
    """A command's name and its plural, which is an alias."""
    name = stem.replace("_", "-")
    return name, f"{name}s"
