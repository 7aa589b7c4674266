"""Runs scenarios in child processes, and shows them as text, JSON or SVG."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kbroker.cli import CommandFailed
from kbroker.cli._say import say, say_json
from kbroker.cli._table import print_rows
from kbroker.cli.simulate import BOTH

_PROGRAM: Final = (sys.executable, "-m", "kbroker.testing.scenarios")

Line = dict[str, Any]


def lines(*arguments: str) -> Iterator[Line]:
    """What a child process prints, line by line, as it comes. Errors: CommandFailed."""
    with subprocess.Popen(  # noqa: S603  (this program itself)
        [*_PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},  # K16: the order of sets must not change a story
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            yield json.loads(line)
        errors = process.stderr.read()
    if process.returncode:
        raise CommandFailed(errors.strip() or f"the run ended with exit code {process.returncode}")


def list_all(*, is_json: bool) -> int:
    """Print all scenarios."""
    found = list(lines())
    if is_json:
        for one in found:
            say_json(one)
        return 0
    print_rows(
        ["NAME", "RULES", "WHAT HAPPENS"],
        [(one["scenario"], ", ".join(one["rules"]), one["summary"]) for one in found],
    )
    return 0


def show(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run a scenario with the rules that are asked for, and show it."""
    known = {one["scenario"]: one["rules"] for one in lines()}
    if options.name not in known:
        parser.error(f"there is no scenario {options.name!r}; choose from {', '.join(known)}")
    rules: Sequence[str] = known[options.name] if options.rule == BOTH else [options.rule]
    if not set(rules) <= set(known[options.name]):
        parser.error(f"{options.name} has only the rule {', '.join(known[options.name])}")
    runs = (lines(options.name, "--rule", rule) for rule in rules)
    if options.svg is not None:
        from kbroker.cli._story_svg import drawn  # noqa: PLC0415

        picture = drawn([list(run) for run in runs])
        try:
            Path(options.svg).write_text(picture, encoding="utf-8")
        except OSError as error:
            raise CommandFailed(str(error)) from error
        say(f"{options.name} ({', '.join(rules)}) is drawn in {options.svg}")
    elif options.format == "json":
        for rule, run in zip(rules, runs, strict=True):
            for line in run:
                say_json({"rule": rule, **line})
    else:
        from kbroker.cli._story_text import Teller  # noqa: PLC0415  (slow import)

        teller = Teller()
        for rule, run in zip(rules, runs, strict=True):
            teller.tell(run, is_last=rule == rules[-1])
    return 0
