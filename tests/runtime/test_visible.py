import json

import pytest

from kbroker.runtime.visible import visible, visible_json, visible_lines

HOSTILE = "\x1b[2J\x07\r\n\x7f\x9b31m\u202egnp.exe\u2066\ud800"


def test_controls_and_overrides_of_direction_are_escaped() -> None:
    assert visible(HOSTILE) == r"\x1b[2J\x07\r\n\x7f\x9b31m\u202egnp.exe\u2066\ud800"
    assert visible_lines("a\nb\r\n") == "a\nb\\r\n"


@pytest.mark.parametrize("text", ["orders", "größe\t日本", "\N{FAMILY}\u200d\N{WOMAN}", ""])
def test_what_a_terminal_only_shows_stays(text: str) -> None:
    assert visible(text) == text


def test_escaped_json_says_the_same() -> None:
    text = json.dumps({"name": HOSTILE[:-1]}, ensure_ascii=False)
    escaped = visible_json(text)
    assert json.loads(escaped) == json.loads(text)
    assert visible(escaped) == escaped
