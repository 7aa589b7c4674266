"""Reads a history that was recorded earlier, one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path

from kbroker.testing.history import Event, Function, Type

NAMES = {"t": "at_ms", "proc": "process", "f": "function", "err": "error", "txn": "transaction"}


def event_of(line: str) -> Event:
    given = {NAMES.get(name, name): value for name, value in json.loads(line).items()}
    return Event(**{**given, "function": Function(given["function"]), "type": Type(given["type"])})


def recorded_history(path: Path) -> list[Event]:
    return [event_of(line) for line in path.read_text().splitlines()]
