import json

import pytest

from kbroker.runtime.visible import visible, visible_json, visible_lines

HOSTILE = "\x1b[2J\x07\r\n\x7f\x9b31m\u202egnp.exe\u2066\ud800"


def test_control_characters_and_direction_overrides_are_escaped() -> None:
    assert visible(HOSTILE) == r"\x1b[2J\x07\r\n\x7f\x9b31m\u202egnp.exe\u2066\ud800"
    assert visible_lines("a\nb\r\n") == "a\nb\\r\n"


@pytest.mark.parametrize("text", ["orders", "größe\t日本", "\N{FAMILY}\u200d\N{WOMAN}", ""])
def test_harmless_text_is_not_changed(text: str) -> None:
    assert visible(text) == text


def test_escaped_json_has_the_same_value() -> None:
    text = json.dumps({"name": HOSTILE[:-1]}, ensure_ascii=False)
    escaped = visible_json(text)
    assert json.loads(escaped) == json.loads(text)
    assert visible(escaped) == escaped
