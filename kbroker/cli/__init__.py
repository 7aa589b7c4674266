"""The `kbroker` command. Each command is a module of this package, with the command's name.

Each module provides `add_parser(commands)`, which declares the flags and sets `run`. `main` imports only the module of
the given command, so that a broker starts in a fraction of a second.

Exit codes: 0 success; 1 the operation failed; 2 the command line is wrong; 130 and 143 interrupted by a signal.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from kbroker import __version__, build
from kbroker.cli._say import say

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

EXIT_FAILED = 1
EXIT_FOUND = 3  # damage, or records that could not be decoded
EXIT_INTERRUPTED = 130


_INVALID_CHOICE: Final = re.compile(
    r"^argument (?:COMMAND|PART|JOB): invalid choice: '(.*?)' \(choose from (.*)\)", re.S
)
_OTHER_NAMES: Final = {
    "--broker-list": "--bootstrap-server",
    "--brokers": "--bootstrap-server",
    "--consumer-property": "--command-property",
    "--consumer.config": "--command-config",
    "--max-message": "--count",
    "--port": "--listen",
    "--producer-property": "--command-property",
    "--producer.config": "--command-config",
    "--zookeeper": "--bootstrap-server",
}
"""Flags of other tools, and what they are called here."""


class Parser(argparse.ArgumentParser):
    """Names an unknown flag, and the flag that it may stand for, before any other complaint."""

    _words: Sequence[str] = ()
    named: str | None = None
    """The flag for the name in `topic delete NAME`, if the actions may also be written as words."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, but a subcommand complains about unknown flags itself, with its own usage."""
        args = list(sys.argv[1:] if args is None else args)
        if self.named is not None and args and f"--{args[0]}" in self._option_string_actions:
            args[0] = f"--{args[0]}"
            if args[1:] and not args[1].startswith("-"):
                args.insert(1, self.named)
        self._words = args
        found, rest = super().parse_known_args(args, namespace)
        if any(word.startswith("-") for word in rest):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        """End with usage and message."""
        if found := _INVALID_CHOICE.search(message):
            if not found[1].startswith("-") and self._words and self._words[0].startswith("-"):
                super().error("flags come after the command")
            choices = re.findall(r"[\w-]+", found[2])
            super().error(message + nearest(found[1], choices))
        known = [flag for action in self._actions for flag in action.option_strings]
        for word in self._words:
            flag = word.partition("=")[0]
            if word == "--":
                break
            if flag.startswith("--") and not any(each.startswith(flag) for each in known):
                ours = _OTHER_NAMES.get(flag)
                hint = f"; here it is {ours}" if ours in known else nearest(flag, known)
                super().error(f"unknown flag {flag}{hint}")
        super().error(message)


def nearest(name: str, names: Iterable[str]) -> str:
    """A question for a mistaken name, such as "; did you mean orders?", or nothing."""
    from difflib import get_close_matches  # noqa: PLC0415  (only for a mistake)

    same = {each.lower(): each for each in names}
    found = get_close_matches(name.lower(), same, n=1)
    return f"; did you mean {same[found[0]]}?" if found else ""


class CommandFailed(Exception):
    """A command failed. `main` prints the message, without a traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if sys.stdout is None:  # the parent has closed the descriptor
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    code = 0
    try:
        try:
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # at exit the interpreter would do it, and fail if the reader has closed the pipe
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). This is not a failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run(words: list[str]) -> int:
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


def add_format_flag(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that chooses between text and JSON."""
    help = "output format; json prints one object per line (default text)"
    parser.add_argument("--format", choices=["text", "json"], default="text", help=help)


def add_part(parts: Commands, command: str, name: str, help: str, description: str) -> argparse.ArgumentParser:
    """Declare a subcommand, which is a function in the module named after command and subcommand: `_tier_ls.ls`.

    That module is imported only when the subcommand runs, so that `--help` does not import clients, broker or Spark.
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
    parser = Parser(
        prog="kbroker", description="A Kafka-compatible broker, and command line tools for it and for Apache Kafka."
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__} ({build()})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    if words == ["--version"]:
        return parser  # needs no command
    stems = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    asked_for = [stem for stem in stems if words and words[0] in _names(stem)]
    for stem in asked_for or stems:
        import_module(f"{__name__}.{stem}").add_parser(commands)
    return parser


def _names(stem: str) -> tuple[str, str]:
    """A command's name, and its plural as an alias."""
    name = stem.replace("_", "-")
    return name, f"{name}s"
