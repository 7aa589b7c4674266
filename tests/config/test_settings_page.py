"""docs/configuration.md matches the declarations."""

from __future__ import annotations

import re

import pytest

from kbroker.config.catalogue import BROKER, DYNAMIC_ONLY, TOPIC
from kbroker.config.settings import Effect
from requirements.settings_page import document
from tests.config.oracle import recorded


def test_the_page_has_every_key_with_an_effect_and_all_that_are_not_internal() -> None:
    page = document()
    for one in (*BROKER.values(), *TOPIC.values(), *DYNAMIC_ONLY.values()):
        assert (f"| `{one.name}` |" in page) == (one.effect is Effect.ENFORCED or not one.internal)


@pytest.mark.parametrize("scope", ["broker", "topic"])
def test_the_page_lists_every_kafka_key_with_effect_and_reason(scope: str) -> None:
    tables = document().partition("## Every key of Apache Kafka 4.3.1")[2]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", tables.partition(f"| {scope} |")[2], re.MULTILINE))
    for name, (_, _, _, internal) in recorded("definitions_4.3.1.json")[scope].items():
        if not internal:
            effect, _, why = rows[name].partition(" | ")
            assert effect in {one.value for one in Effect}
            assert bool(why.strip()) == (effect != Effect.ENFORCED.value)
