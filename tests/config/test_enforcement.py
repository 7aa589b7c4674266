"""Every enforced key is used: code outside the declarations reads it.

This searches the text of the code, so it proves that there is a reader, not that the reader is correct. The tests of
the reading code check the effects.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kbroker
from kbroker.config import topic
from kbroker.config.catalogue import BROKER, BROKER_AREAS, TOPIC
from kbroker.config.settings import Effect, Setting

ROOT = Path(kbroker.__path__[0])
AREAS = {Path(str(area.__file__)) for area in (*BROKER_AREAS, topic)}
PASSED_ON = ROOT / "storage" / "log_config.py"


CONSTANTS = {name: text for name, text in vars(topic).items() if isinstance(text, str)}
"""Names of keys that code reads by a constant of the declarations."""


def used_names() -> set[str]:
    """Every attribute that is read, and every text, in kbroker but for the declarations and what is for tests."""
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        if path in AREAS or "testing" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(CONSTANTS.get(node.id, ""))
    return found


USED = used_names()


def is_used(one: Setting) -> bool:
    """Whether code reads the key, by its attribute or its name, or a topic key falls back to it."""
    if one.attribute in USED or one.name in USED:
        return True
    return any(
        one.name == synonym and of_topic.effect is Effect.ENFORCED and is_used(of_topic)
        for of_topic in TOPIC.values()
        for synonym, _ in of_topic.synonyms
    )


ENFORCED = [one for one in (*BROKER.values(), *TOPIC.values()) if one.effect is Effect.ENFORCED]


@pytest.mark.parametrize("one", ENFORCED, ids=lambda one: one.name)
def test_the_code_reads_every_enforced_key(one: Setting) -> None:
    assert is_used(one)


def test_an_unused_key_is_found() -> None:
    assert not is_used(Setting(1, name="read.by.nobody.ms"))
    assert not is_used(BROKER["log.preallocate"]), "its topic's key has no effect"
    assert is_used(BROKER["log.roll.hours"])
    assert is_used(TOPIC["segment.jitter.ms"])


def test_storage_uses_every_field_of_its_log_config() -> None:
    """Each field of LogConfig for an enforced key is read in storage, replication or the broker, not just handed on."""
    readers = [path for path in ROOT.rglob("*.py") if path not in AREAS and "testing" not in path.parts]
    text = {path: path.read_text() for path in readers if path != PASSED_ON}
    properties = PASSED_ON.read_text().partition("@property")[2]
    unused = [
        one.name
        for one in TOPIC.values()
        if one.effect is Effect.ENFORCED
        and not one.internal
        and f"self.{one.attribute}" not in properties
        and not any(f".{one.attribute}" in source or f'"{one.name}"' in source for source in text.values())
    ]
    assert unused == []
