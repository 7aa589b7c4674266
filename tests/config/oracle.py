"""Recorded results of Apache Kafka 4.3.1 and Java 17."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kbroker.config import Settings
from wire.messages.describe_configs import DescribeConfigsResourceResult

FIXTURES = Path(__file__).parent / "fixtures"


def recorded(name: str) -> Any:
    """One fixture."""
    return json.loads((FIXTURES / name).read_text())


def described(state: str) -> dict[str, list[Any]]:
    """A recorded DescribeConfigs response, by key, in the form of `row`."""
    return {entry[0]: entry for entry in recorded("describe_configs_4.3.1.json")["described"][state]}


def row(entry: DescribeConfigsResourceResult) -> list[Any]:
    """Our entry in the form of the fixture."""
    return [
        entry.name,
        entry.value,
        entry.config_source.name,
        entry.read_only,
        entry.is_sensitive,
        entry.config_type.name,
        [[synonym.name, synonym.value, synonym.source.name] for synonym in entry.synonyms],
    ]


def the_recorded_node() -> Settings:
    """The settings of the recorded node, without an unknown key, which kbroker refuses."""
    node = recorded("describe_configs_4.3.1.json")["node"]
    lines = [f"{key}={value}" for key, value in node.items() if key != "some.unknown.key"]
    return Settings.load("\n".join(lines).encode(), profile="kafka")
