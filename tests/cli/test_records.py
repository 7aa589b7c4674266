"""Records as text: lines, output formats and lossless JSON."""

from __future__ import annotations

import io
import json
from argparse import ArgumentTypeError
from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli import _records
from kbroker.cli._records import NotARecord, Outgoing


class Incoming(NamedTuple):
    """The printed attributes of a client's record."""

    topic: str = "orders"
    partition: int = 3
    offset: int = 7
    timestamp: int = 1_700
    timestamp_type: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = (("h", b"x"), ("g", None))


def test_json_has_everything_of_a_record() -> None:
    assert json.loads(_records.record_to_json(Incoming(value=b"\xff", timestamp_type=1))) == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestamp": 1700,
        "timestamp_type": "LogAppendTime",
        "key": "k",
        "value": {"base64": "/w=="},
        "headers": [{"key": "h", "value": "x"}, {"key": "g", "value": None}],
    }


MAYBE_BYTES = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode())


@given(key=MAYBE_BYTES, value=MAYBE_BYTES, header=MAYBE_BYTES, name=st.text(max_size=5))
def test_json_loses_no_byte(key: bytes | None, value: bytes | None, header: bytes | None, name: str) -> None:
    line = _records.record_to_json(Incoming(key=key, value=value, headers=((name, header),)))
    assert b"\n" not in line
    assert _records.record_from_json(line) == Outgoing(key, value, [(name, header)], 3, 1_700)


def test_a_json_record_may_omit_optional_fields() -> None:
    assert _records.record_from_json(b'{"value":"v"}') == Outgoing(None, b"v", [], None, None)
    assert _records.record_from_json(b'{"key":null,"timestamp":-1}') == Outgoing(None, None, [], None, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"v"', "not a JSON object"),
        (b'{"val":"v"}', "the field 'val' is unknown; the fields are headers, key, "),
        (b'{"value":5}', "value is neither text nor"),
        (b'{"value":{"base64":"!"}}', "value is not base64"),
        (b'{"value":{"base64":"/w==","x":1}}', "value is neither text nor"),
        (b'{"value":"\\ud800"}', "value is not text"),
        (b'{"key":["k"]}', "key is neither text nor"),
        (b'{"partition":-1}', "partition is -1, not a number between"),
        (b'{"partition":true}', "partition is True"),
        (b'{"partition":2147483648}', "partition is 2147483648"),
        (b'{"timestamp":"now"}', "timestamp is 'now'"),
        (b'{"headers":{"h":"x"}}', "headers is not a list"),
        (b'{"headers":[{"key":"h"}]}', "a header is not of the form"),
        (b'{"headers":[{"key":5,"value":"x"}]}', "a header is not of the form"),
        (b'{"headers":[{"key":"h","value":5}]}', "header 'h' is neither text nor"),
    ],
)
def test_an_invalid_json_record_is_an_error(line: bytes, reason: str) -> None:
    with pytest.raises(NotARecord, match=reason):
        _records.record_from_json(line)


@given(line=st.binary(max_size=60) | st.text(alphabet='{}[]":,0123base64keyvalueheaders', max_size=60).map(str.encode))
def test_any_line_is_a_record_or_an_error(line: bytes) -> None:
    try:
        found = _records.record_from_json(line)
    except NotARecord:
        return
    assert isinstance(found, Outgoing)


class Trickle(io.RawIOBase):
    """Returns its bytes in pieces of a given size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size

    def read(self, size: int = -1) -> bytes:
        piece, self._data = self._data[: self._size], self._data[self._size :]
        return piece


@given(
    pieces=st.lists(st.binary(max_size=6).filter(lambda piece: b"ab" not in piece and b"a" not in piece), max_size=8),
    size=st.integers(1, 9),
)
def test_lines_are_found_in_pieces_of_any_size(pieces: list[bytes], size: int) -> None:
    whole = b"".join(piece + b"ab" for piece in pieces)
    assert list(chain(*_records.lines(Trickle(whole, size), b"ab"))) == pieces  # type: ignore[arg-type]


def test_an_unfinished_last_line_counts_and_empty_ones_too() -> None:
    assert list(chain(*_records.lines(io.BytesIO(b"a\n\nb"), b"\n"))) == [b"a", b"", b"b"]
    assert list(_records.lines(io.BytesIO(b""), b"\n")) == []


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_records, "MAX_LINE_BYTES", 1000)
    with pytest.raises(NotARecord, match="more than 1000 bytes without a delimiter"):
        list(_records.lines(io.BytesIO(b"x" * 2000), b"\n"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%s", b"v"),
        (r"%t-%p@%o %T\n", b"orders-3@7 1700\n"),
        ("%k=%s %K:%S %h", b"k=v 1:1 h=x,g=NIL"),
        (r"100%%\t\x00\xff\\n", b"100%\t\x00\xff\\n"),
        ("", b""),
        ("\u00fc", "\u00fc".encode()),
    ],
)
def test_a_format_is_kcats(text: str, found: bytes) -> None:
    assert _records.compile_format(text, b"NIL")(Incoming()) == found


def test_null_is_printed_as_the_marker_with_size_minus_one() -> None:
    assert _records.compile_format("%k %s %K %S", b"NIL")(Incoming(key=None, value=None)) == b"NIL NIL -1 -1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("%", "% is unknown"), ("%x", "%x is unknown; use %s, %k"), (r"\q", r"\\q is unknown"), ("a\\", "middle")],
)
def test_an_invalid_format_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ArgumentTypeError, match=reason):
        _records.compile_format(text, b"")


@pytest.mark.parametrize("text", ["", "\\", r"\xg", r"\x1"])
def test_an_invalid_separator_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        _records.separator(text)


@pytest.mark.parametrize(("text", "found"), [(r"\t", b"\t"), (":", b":"), (r"\x01", b"\x01"), (r"\0", b"\0")])
def test_a_separator_may_be_any_bytes(text: str, found: bytes) -> None:
    assert _records.separator(text) == found


def test_a_header_has_a_name_and_a_value() -> None:
    assert _records.header("a=b=c") == ("a", b"b=c")
    with pytest.raises(ArgumentTypeError, match="not of the form name=value"):
        _records.header("a")


def test_the_accepted_json_fields_are_those_printed() -> None:
    printed: dict[str, Any] = json.loads(_records.record_to_json(Incoming()))
    assert set(printed) == _records._FIELDS
