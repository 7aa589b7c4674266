"""What may follow on a command line, from the parsers; names of topics and groups come from the broker, if it answers.

A shell's script gets one candidate per line; zsh and fish also show the help behind it. FILES asks the shell for file
names.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from kbroker.cli import CommandFailed, _parser
from kbroker.cli._admin import client_settings

FILES: Final = "<files>"
BROKER_TIMEOUT_MS: Final = 1_000
_FILE_NAMES: Final = frozenset({"FILE", "DIR"})
_BREAKS: Final = re.compile(r".*[=:]")
"""What bash regards as words before the one to complete."""
_SPECIAL: Final = re.compile(r"[^\w@%+=:,./-]")
"""What may have a meaning to bash, which inserts a candidate as it is; any client can choose the name of a group."""


class Candidate(NamedTuple):
    """A word that may follow, and its help."""

    word: str
    help: str = ""


def complete(shell: str, line: str) -> Iterator[str]:
    """The candidates for the last word of a line, in the notation of the shell's script."""
    *words, current = _words(line)
    for word, help in _candidates(words[1:], current):
        if word == FILES:
            yield FILES
        elif word.startswith(current):
            text = " ".join(help.split())
            if shell == "bash":
                rest = word[len(found[0]) :] if (found := _BREAKS.match(current)) else word
                yield _SPECIAL.sub(r"\\\g<0>", rest)
            elif shell == "zsh":
                yield word.replace(":", "\\:") + (f":{text}" if text else "")
            else:
                yield f"{word}\t{text}" if text else word


def _words(line: str) -> list[str]:
    for closing in ("", "'", '"'):
        with suppress(ValueError):
            words = shlex.split(line + closing)
            return [*words, ""] if not words or (not closing and line[-1:].isspace()) else words
    return [""]


def _candidates(words: list[str], current: str) -> Iterator[Candidate]:
    parser: argparse.ArgumentParser = _parser(words[:1])
    typed: dict[str, list[str]] = {}
    pending: argparse.Action | None = None
    for word in words:
        if pending is not None and not (pending.nargs == "?" and word.startswith("-")):
            typed.setdefault(pending.dest, []).append(word)
            pending = None
            continue
        flag, equals, value = word.partition("=")
        action = parser._option_string_actions.get(flag)
        if action is not None and equals:
            typed.setdefault(action.dest, []).append(value)
        elif action is not None:
            pending = action if action.nargs != 0 else None
        elif (below := _subparsers(parser)) is not None:
            if word not in below.choices:
                return
            parser = below.choices[word]
    if pending is not None and not (pending.nargs == "?" and current.startswith("-")):
        yield from _values(pending, current, typed)
        return
    flag, equals, value = current.partition("=")
    if equals and (action := parser._option_string_actions.get(flag)) is not None:
        for word, help in _values(action, value, typed):
            yield Candidate(word if word == FILES else f"{flag}={word}", help)
        return
    yield from _next_words(parser, current)


def _next_words(parser: argparse.ArgumentParser, current: str) -> Iterator[Candidate]:
    """Subcommands or choices, and flags if the word may be one."""
    if not current.startswith("-"):
        below = _subparsers(parser)
        choices = [each for action in parser._actions if not action.option_strings for each in action.choices or ()]
        if below is not None:
            yield from (Candidate(each.dest, each.help or "") for each in below._choices_actions)
        else:
            yield from (Candidate(str(each)) for each in choices)
        if below is not None or choices:
            return
    for action in parser._actions:
        names = action.option_strings
        chosen = [each for each in names if each.startswith(current)] if len(current) > 1 else names
        first = next((each for each in chosen if each.startswith("--")), "".join(chosen[:1]))
        if first:
            yield Candidate(first, help_of(parser, action))


def _subparsers(parser: argparse.ArgumentParser) -> Any:
    return next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of a flag, as `--help` prints it."""
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _values(action: argparse.Action, current: str, typed: dict[str, list[str]]) -> Iterator[Candidate]:
    if action.choices is not None:
        yield from (Candidate(str(each)) for each in action.choices)
    elif action.type is Path or action.metavar in _FILE_NAMES:
        yield Candidate(FILES)
    elif action.dest in {"topic", "group"}:
        yield from map(Candidate, _names(action.dest, current, typed))


def _names(kind: str, current: str, typed: dict[str, list[str]]) -> list[str]:
    """Topics or groups of the broker of the line; none if it does not answer at once."""
    from kbroker.cli._groups import list_groups  # noqa: PLC0415  (only for names)
    from kbroker.client.cluster import Cluster  # noqa: PLC0415
    from wire.errors import KafkaError  # noqa: PLC0415

    config = Path(typed["command_config"][-1]) if "command_config" in typed else None
    options = argparse.Namespace(bootstrap_servers=typed.get("bootstrap_servers"), command_config=config)
    waits = {"bootstrap_timeout_ms": BROKER_TIMEOUT_MS, "request_timeout_ms": BROKER_TIMEOUT_MS}
    try:
        with Cluster({**client_settings(options), **waits, "waits_for_broker": False}) as cluster:
            if kind == "group":
                return sorted(each.group for each in list_groups(cluster))
            topics = cluster.metadata(None).topics
            return sorted(str(each.name) for each in topics if current or not each.is_internal)
    except (CommandFailed, KafkaError, OSError):
        return []
