"""The declarations equal Kafka's definitions: every key, type, default and bound."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import kbroker.config
from kbroker.config.catalogue import BROKER, BROKER_AREAS, TOPIC, area_name, declared
from kbroker.config.fetch import FetchSettings
from kbroker.config.load import Settings, as_lines, remarks
from kbroker.config.settings import Dynamic, Effect, Setting
from kbroker.config.values import Kind
from tests.config.oracle import described, recorded

DEFINITIONS = recorded("definitions_4.3.1.json")
DECLARED: dict[str, dict[str, Setting]] = {"broker": BROKER, "topic": TOPIC}
KEYS = [(scope, name) for scope, keys in DEFINITIONS.items() for name in keys]

OTHER_DEFAULTS = {
    ("broker", "node.id"): "1",
    ("broker", "process.roles"): "broker,controller",
    ("broker", "controller.listener.names"): "",
    ("broker", "log.dir"): "/var/lib/kbroker",
}
OTHER_BOUNDS = {
    # kbroker accepts less than Kafka's 1 MiB, with a warning.
    ("broker", "log.segment.bytes"),
    ("topic", "segment.bytes"),
    # A rate of zero would admit no connection.
    ("broker", "max.connection.creation.rate"),
}


@pytest.mark.parametrize(("scope", "name"), KEYS)
def test_a_key_has_kafkas_type_default_and_bounds(scope: str, name: str) -> None:
    kind, default, validator, internal = DEFINITIONS[scope][name]
    ours = DECLARED[scope][name]
    assert ours.kind.name == kind
    assert ours.internal == internal
    if (scope, name) in OTHER_DEFAULTS:
        assert ours.default_text == OTHER_DEFAULTS[scope, name] != default
    else:
        assert ours.default_text == default
    if (scope, name) in OTHER_BOUNDS:
        assert _validator(ours) != validator
    elif validator is not None and re.fullmatch(r"\[-?\d.*", validator) and "or" not in validator:
        assert _validator(ours) == validator
    elif validator is not None and validator.startswith("[") and ours.one_of:
        assert set(ours.one_of) == {one.strip() for one in validator[1:-1].split(",")}


def test_settings_cannot_be_changed_or_invented() -> None:
    with pytest.raises(FrozenInstanceError, match="fetch_max_bytes"):
        FetchSettings().fetch_max_bytes = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match="no attribute nothing"):
        FetchSettings(nothing=1)  # type: ignore[call-arg]
    assert FetchSettings(fetch_max_bytes=7) == FetchSettings(fetch_max_bytes=7) != FetchSettings()


def _validator(one: Setting) -> str:
    """Our bounds in Kafka's notation."""
    high = "" if one.at_most is None else f",{_plain(one.at_most)}"
    return f"[{_plain(one.at_least)},...{high}]"


def _plain(bound: Any) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def test_only_kafkas_and_kbrokers_own_keys_are_declared() -> None:
    assert {name for name in BROKER if name not in DEFINITIONS["broker"]} == {
        *(name for name in BROKER if name.startswith("kbroker.")),
        # These belong to Kafka's StandardAuthorizer.
        "super.users",
        "allow.everyone.if.no.acl.found",
    }
    assert {name for name in TOPIC if name not in DEFINITIONS["topic"]} == {
        "kbroker.attached.end.offsets",
        "kbroker.attached.leader.epoch",
        "kbroker.read.only",
        "kbroker.remote.flush.timestamp.ms",
        "kbroker.retention.leases",
    }


def test_dynamic_keys_are_those_of_kafka() -> None:
    theirs = {name for name, entry in described("broker 1").items() if not entry[3]}
    ours = {name for name, one in BROKER.items() if one.dynamic is not Dynamic.READ_ONLY}
    assert theirs - ours == {"listeners", "listener.security.protocol.map"}
    assert not ours - theirs


@pytest.mark.parametrize("one", [*BROKER.values(), *TOPIC.values()], ids=lambda one: one.name)
def test_a_default_passes_its_own_checks(one: Setting) -> None:
    if one.default is not None:
        one.validate(one.default)


@pytest.mark.parametrize("one", [*BROKER.values(), *TOPIC.values()], ids=lambda one: one.name)
def test_every_key_documents_its_effect_or_why_it_has_none(one: Setting) -> None:
    text = one.doc if one.effect is Effect.ENFORCED else one.why
    assert text.endswith(".")
    assert text[0].isupper() or text.startswith(("kbroker", "SO_"))


def test_every_area_is_known_and_no_key_is_declared_twice() -> None:
    folder = Path(kbroker.config.__path__[0])
    on_disk = {path.stem for path in folder.glob("*.py") if "\n@settings\n" in path.read_text()}
    assert on_disk <= {area.__name__.rpartition(".")[2] for area in BROKER_AREAS}
    without_effect = set(json.loads((folder / "without_effect.json").read_text()))
    elsewhere = {"broker, dynamic only", "topic", "group", "client metrics"}
    assert without_effect - elsewhere <= {area_name(area) for area in BROKER_AREAS}
    names = [one.name for area in BROKER_AREAS for one in declared(area)]
    assert len(names) == len(set(names))


def test_every_class_of_settings_is_an_attribute_of_settings() -> None:
    classes = {
        value.__name__
        for area in BROKER_AREAS
        for value in vars(area).values()
        if isinstance(value, type) and hasattr(value, "SETTINGS")
    }
    assert classes == {type(value).__name__ for value in vars(Settings.load()).values() if hasattr(value, "SETTINGS")}


def test_a_sensitive_value_is_never_shown_in_a_warning() -> None:
    harmless = Setting(kind=Kind.PASSWORD, name="a.password", effect=Effect.HARMLESS, why="It is not used.")
    lines = as_lines(remarks("a.password", harmless, "swordfish"))
    assert lines
    assert all("swordfish" not in line for line in lines)
    assert BROKER["ssl.key.password"].kind is Kind.PASSWORD
