"""Commands whose actions are flags, as in Kafka's tools: `kbroker topic --list`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any


class Actions:
    """The actions of a command, of which one is required, and the flags that can be used only with some of them."""

    def __init__(self, parser: argparse.ArgumentParser, actions: Mapping[str, str]) -> None:
        self.parser = parser
        self._actions_of: dict[str, list[str]] = {}
        group = parser.add_mutually_exclusive_group(required=True)
        for action, text in actions.items():
            group.add_argument(f"--{action}", action="store_const", const=action, dest="action", help=text)

    def add(self, actions: str, *names: str, to: argparse._ArgumentGroup | None = None, **declaration: Any) -> None:
        """Declare a flag for these actions, which blanks separate; `to` is its group in the help."""
        flag = (to or self.parser).add_argument(*names, **declaration)
        self._actions_of[flag.dest] = actions.split()

    def check(self, options: argparse.Namespace) -> None:
        """Exit with a usage error if a flag cannot be used with the action."""
        for name, actions in self._actions_of.items():
            is_given = getattr(options, name) != self.parser.get_default(name)
            if is_given and options.action not in actions:
                self.parser.error(f"--{name.replace('_', '-')} cannot be used with --{options.action}")
