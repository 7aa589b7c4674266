"""Properties files are read as in Java."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.properties import parse_properties
from kbroker.config.values import ConfigError
from tests.config.oracle import recorded


@pytest.mark.parametrize(("text", "expected"), recorded("properties_java17.json"))
def test_a_text_reads_as_java_reads_it(text: str, expected: dict[str, str] | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="malformed"):
            parse_properties(text.encode(), file_name="f")
    else:
        assert parse_properties(text.encode(), file_name="f") == expected


def test_the_error_for_invalid_utf8_names_the_line() -> None:
    with pytest.raises(ConfigError, match=r"my\.properties, line 3: byte 0xff is not valid UTF-8"):
        parse_properties(b"a=1\n# fine\nb=\xff\n", file_name="my.properties")


def test_a_nul_byte_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"line 2: NUL byte"):
        parse_properties(b"a=1\nb=\0", file_name="f")


def test_a_byte_order_mark_is_ignored() -> None:
    assert parse_properties(b"\xef\xbb\xbfa=1", file_name="f") == {"a": "1"}


def _escaped(text: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf16(text))


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_escaped_settings_are_read_back(settings: dict[str, str]) -> None:
    text = "\n".join(f"{_escaped(key)}={_escaped(value)}" for key, value in settings.items())
    assert parse_properties(text.encode(), file_name="f") == settings


@given(st.binary())
def test_any_bytes_give_settings_or_a_config_error(data: bytes) -> None:
    try:
        found = parse_properties(data, file_name="f")
    except ConfigError:
        return
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in found.items())
