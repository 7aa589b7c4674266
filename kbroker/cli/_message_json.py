"""Stored messages as JSON, as Kafka's tools print them: camelCase names, ids and bytes in base64.

Fields that a version does not have are omitted, and so are tagged fields with their default value. The text equals that
of Kafka's JSON writer (no blanks, only required escapes), so that output can be compared with that of Kafka's tools.

Source: the JSON converters of Kafka's message generator, and Jackson's writer.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

from wire.schema import Field, schema_of
from wire.types import Primitive, uuid_to_text

# Kafka writes "kRaft", which cannot be derived from snake_case.
_IRREGULAR: Final = {"kraft_version": "kRaftVersion", "kraft_version_feature": "kRaftVersionFeature"}
_LOWER_ESCAPE: Final = re.compile(r"\\\\|\\u00[01][0-9a-f]")


def message_to_json(message: object, version: int) -> dict[str, Any]:
    """The fields of a message or struct in a version, as values for `dump_json`."""
    found: dict[str, Any] = {}
    for field in schema_of(type(message)).fields:
        if version not in field.versions:
            continue
        value = getattr(message, field.name)
        if version in field.tagged and _is_left_out(field, value):
            continue
        found[camel_case(field.name)] = _to_json(field.kind, value, version)
    return found


def dump_json(value: Any) -> str:
    """One line of JSON as Jackson writes it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _LOWER_ESCAPE.sub(lambda match: match[0][:4] + match[0][4:].upper(), text)


def camel_case(name: str) -> str:
    """Kafka's name of a field: `topic_id` -> `topicId`."""
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _is_left_out(field: Field, value: Any) -> bool:
    # Kafka's default of a nullable struct is an empty one, so a null was written explicitly and is shown.
    is_struct = not field.is_array and not isinstance(field.kind, Primitive)
    return not is_struct and bool(value == field.default)


def _to_json(kind: Primitive | type, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_to_json(kind, element, version) for element in value]
    if not isinstance(kind, Primitive):
        return message_to_json(value, version)
    if kind.name == "uuid":
        return uuid_to_text(value)
    if kind.name == "bytes":
        return base64.b64encode(value).decode()
    return value
