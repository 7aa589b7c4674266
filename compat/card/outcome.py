"""What a row notes, as JSON that is the same in every run, and the differences between two such notes.

Names that the card makes begin with its random prefix, which becomes `~`. Ids, addresses and clocks become
placeholders, as in `compat.oracle`; error codes become their names. Message texts are not compared.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from compat.oracle.conftest import normal
from wire.errors import ErrorCode

LONG_BYTES = 48
MISSING = "absent"
_MEMBER = re.compile(r"-[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_NOT_COMPARED = {"ThrottleTimeMs", "NodeEndpoints", "ErrorMessage", "BatchIndexErrorMessage"}
_SETS = {"Partitions", "PartitionIndexes", "SubscribedTopicNames"}


def code_name(code: int) -> str:
    """The name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"code {code}"


def plain(value: Any, prefix: str) -> Any:
    """A note as JSON without its random parts."""
    own = re.compile(re.escape(prefix) + r"([\w.-]*?)-\d+(?!\d)")
    return _plain(normal(_compared(value)), "", own)


def _compared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _compared(inner) for key, inner in value.items() if key not in _NOT_COMPARED}
    return [_compared(each) for each in value] if isinstance(value, list | tuple) else value


def _plain(value: Any, name: str, own: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        return {_text(str(key), own): _plain(inner, str(key), own) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        found = [_plain(each, name, own) for each in value]
        # A broker lists topics, partitions, members and settings in any order.
        is_unordered = name in _SETS or (found and isinstance(found[0], dict))
        return sorted(found, key=lambda each: json.dumps(each, sort_keys=True)) if is_unordered else found
    if name.endswith("ErrorCode") and isinstance(value, int):
        return code_name(value)
    if isinstance(value, str):
        return _text(value, own)
    if isinstance(value, bytes):
        # Names in a group's metadata have random parts too.
        text = _text(value.decode("latin-1"), own).encode("latin-1")
        if len(text) <= LONG_BYTES:
            return f"bytes {text.hex()}" if text else "no bytes"
        return f"{len(text)} bytes with the CRC {zlib.crc32(text):08x}"
    return value


def _text(text: str, own: re.Pattern[str]) -> str:
    return _MEMBER.sub("-id", own.sub(r"~\1", text))


def differences(expected: Any, actual: Any, path: str = "") -> list[tuple[str, str, str]]:
    """(where, Kafka's value, this broker's value) for each difference."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = [*expected, *(key for key in actual if key not in expected)]
        return [
            each
            for key in keys
            for each in differences(
                expected.get(key, MISSING), actual.get(key, MISSING), f"{path}.{key}" if path else key
            )
        ]
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [each for index, (one, two) in pairs for each in differences(one, two, f"{path}[{index}]")]
    if isinstance(expected, list) and isinstance(actual, list):
        return [(path, _entries(expected, actual), _entries(actual, expected))]
    return [] if expected == actual else [(path, _shown(expected), _shown(actual))]


def _entries(these: list[Any], others: list[Any]) -> str:
    """How many entries a list has, and those that the other list lacks."""
    own = [each for each in these if each not in others]
    return f"{len(these)} entries" + (f", with {_shown(own)}" if own else "")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value!r:.300}"
