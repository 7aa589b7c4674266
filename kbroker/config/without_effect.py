"""Kafka's keys that kbroker does not implement. They are data: without_effect.json has them by area and reason.

A key is `harmless` (ignoring it is safe; the broker logs a warning) or `refused` (ignoring it would be unsafe, so any
value but the default is an error that names the reason). The other fields of a key are the arguments of `Setting`.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Final

from kbroker.config.settings import Dynamic, Effect, Setting
from kbroker.config.values import Kind

_DATA: Final = pkgutil.get_data(__package__, "without_effect.json")
assert _DATA is not None
_AREAS: Final[Mapping[str, Any]] = json.loads(_DATA)
_FROM_JSON: Final[Mapping[str, Callable[[Any], Any]]] = {
    "kind": Kind.__getitem__,
    "default": lambda value: tuple(value) if isinstance(value, list) else value,
    "one_of": tuple,
    "dynamic": Dynamic,
    "synonyms": lambda names: tuple((name, 1) for name in names),
}


def without_effect(area: str, checks: Mapping[str, Callable[[Any], str | None]] | None = None) -> tuple[Setting, ...]:
    """The keys of one area that have no effect; checks are the checks that data cannot express, by key."""
    found = []
    for group in _AREAS.get(area, ()):
        for name, given in group["keys"].items():
            fields = {
                field: _FROM_JSON[field](value) if field in _FROM_JSON else value for field, value in given.items()
            }
            effect = Effect[group["effect"].upper()]
            check = (checks or {}).get(name)
            found.append(Setting(name=name, effect=effect, why=group["why"], check=check, **fields))
    return tuple(found)
