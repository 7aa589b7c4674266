"""docs/configuration.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from kbroker.config.catalogue import BROKER, TOPIC
from kbroker.config.document import document

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_the_one_that_the_declarations_make() -> None:
    assert PAGE.read_text() == document(), "run: python -m kbroker.config.document > docs/configuration.md"


def test_the_page_has_every_key_that_is_not_internal() -> None:
    page = document()
    for one in (*BROKER.values(), *TOPIC.values()):
        assert (f"| `{one.name}` |" in page) == (not one.internal)
