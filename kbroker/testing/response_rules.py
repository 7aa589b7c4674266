"""Responses that a test gives to a broker, and the fields that it changes in the broker's own ones.

A message travels as a version and the bytes in it. A path names fields: `topics[name=orders].partitions.leader_id` is a
field of all partitions of a topic; the name of a topic also finds an element that has only its id. The broker changes a
copy, because handlers may keep parts of their responses, and checks that the client's version can express the result.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from kbroker.handlers import CloseConnection
from kbroker.metadata.image import Image
from kbroker.testing.control import code_of_name, nearest
from wire.codec import decode, encode_parts
from wire.codegen import NotInVersion
from wire.schema import Field, is_struct, response_class, schema_of
from wire.types import Primitive, uuid_from_text

_STEP: Final = re.compile(r"(\w+)(?:\[(\w+)=([^\]]*)\])?(?:\.(?=.)|$)")


class _Step(NamedTuple):
    """One field of a path, and which elements of an array: those whose field `key` is `wanted`; key "" means all."""

    field: Field
    key: str
    wanted: str


class Change(NamedTuple):
    """The value that the fields at a path get."""

    steps: Sequence[_Step]
    value: object


def unpacked(api_key: int, packed: Sequence[Any]) -> Any:
    """The message of a version and the text of its bytes in base64."""
    version, text = packed
    kind = response_class(api_key)
    assert kind is not None, "the broker serves the API"
    return decode(kind, version, b64decode(text))


def parsed(api_key: int, changes: Mapping[str, object]) -> list[Change]:
    """The changes of a rule, by path. Errors: ValueError for an unknown field, or a value that it cannot have."""
    return [_parsed(response_class(api_key), path, value) for path, value in changes.items()]


def expressible(response: Any, version: int) -> Any:
    """The response. Errors: CloseConnection if the client's version cannot express it."""
    try:
        encode_parts(response, version)
    except (NotInVersion, struct.error) as error:
        raise CloseConnection(f"a rule of the test: {error}") from error
    return response


def changed(
    response: Any, changes: Sequence[Change], version: int, image: Image, *, skips: Callable[[], bool]
) -> Any | None:
    """A copy of the response with the changes; None if it has none of their fields, or if the rule `skips` it then.

    Errors  as `expressible`
    """
    parts = encode_parts(response, version)
    if len(parts) == 1:  # else it is one with records, which is made for each request
        response = decode(type(response), version, cast("bytes", parts[0]))
    found = [(holder, each) for each in changes for holder in _structs(response, each.steps, image)]
    if not found or skips():
        return None
    for holder, change in found:
        setattr(holder, change.steps[-1].field.name, change.value)
    return expressible(response, version)


def _parsed(kind: Any, path: str, value: object) -> Change:
    steps: list[_Step] = []
    position = 0
    while position < len(path):
        found = _STEP.match(path, position)
        if found is None:
            raise ValueError(f"{path!r} is not a path of the form field[key=value].field")
        name, key, wanted = found[1], found[2] or "", found[3] or ""
        field = _field(kind, name)
        kind = field.kind
        if key:
            _field(kind, key)
        steps.append(_Step(field, key, wanted))
        position = found.end()
    if not steps or is_struct(kind) or steps[-1].field.is_array or steps[-1].key:
        raise ValueError(f"{path!r} is not a field with one value")
    return Change(steps, _value(steps[-1].field, path, value))


def _field(kind: Any, name: str) -> Field:
    if isinstance(kind, Primitive):
        raise ValueError(f"the type {kind.name} has no field {name!r}")
    fields = {field.name: field for field in schema_of(kind).fields}
    if name not in fields:
        raise ValueError(f"{schema_of(kind).name} has no field {name!r}{nearest(name, list(fields))}")
    return fields[name]


def _value(field: Field, path: str, value: object) -> object:
    """A value of JSON as that of a field. Errors: ValueError."""
    kind = field.kind
    assert isinstance(kind, Primitive), "the path ends there"
    if field.name == "error_code" and isinstance(value, str):
        return code_of_name(value)
    if value is None and field.nullable.lowest <= field.nullable.highest:
        return None
    if kind.name == "uuid" and isinstance(value, str):
        return uuid_from_text(value)
    if kind.name == "string" and isinstance(value, str):
        return value
    if kind.layout and isinstance(value, bool) == (kind.name == "bool"):
        with suppress(struct.error):
            struct.pack(f">{kind.layout}", value)
            return value
    raise ValueError(f"{path!r} has the type {kind.name} and cannot be {value!r}")


def _structs(element: Any, steps: Sequence[_Step], image: Image) -> Iterator[Any]:
    """The structs that have the field at the end of a path."""
    step, *rest = steps
    if not rest:
        yield element
        return
    below = getattr(element, step.field.name)
    for one in (below if step.field.is_array else [below]) if below is not None else ():
        if not step.key or _matches(one, step, image):
            yield from _structs(one, rest, image)


def _matches(element: Any, step: _Step, image: Image) -> bool:
    if str(getattr(element, step.key)) == step.wanted:
        return True
    topic = image.topics_by_name.get(step.wanted)
    return topic is not None and getattr(element, "topic_id", None) == topic.id
