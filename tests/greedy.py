"""Well-formed requests that ask for too much: every array of every API, filled from the declarations of the messages.

A new API or a new array is covered without an edit here. A field's value follows from its name where it decides how
far a request gets into the broker. No request creates or deletes anything permanently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from uuid import UUID

from kbroker.handlers import Handler
from wire.codec import encode_element
from wire.framing import encode_request_frame
from wire.schema import MISSING, Field, Schema, is_struct, schema_of
from wire.types import ZERO_UUID, Primitive

_NUMBERS: Final[Mapping[str, int]] = {
    "count": 2,
    "endpoint_type": 1,
    "generation_id_or_member_epoch": -1,
    "max_bytes": 1 << 20,
    "num_partitions": 1,
    "operation": 3,
    "partition_max_bytes": 1 << 20,
    "pattern_type_filter": 3,
    "permission_type": 3,
    "rebalance_timeout_ms": 10_000,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_pattern_type": 3,
    "resource_type": 2,
    "resource_type_filter": 2,
    "response_partition_limit": 2_000,
    "session_epoch": -1,
    "session_timeout_ms": 10_000,
    "timeout_ms": 1_000,
    "timestamp": -1,
    "acks": 1,
}
_OF_GROUPS: Final = ("group", "key")


class Shape(Enum):
    """The kind of elements in the array."""

    SAME = "same"
    """One existing element, repeated."""
    EMPTY = "empty"
    """The smallest element: no names, zeros."""
    DISTINCT = "distinct"
    """All different; most of them do not exist."""


@dataclass(frozen=True, slots=True)
class World:
    """The broker's contents: a topic, with its id, and a group. `values` has values of single fields, by name."""

    topic: str
    topic_id: UUID
    group: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Greedy:
    """One request as a frame with its length; `elements` counts the elements of all its arrays."""

    api: str
    version: int
    path: str
    shape: Shape
    elements: int
    frame: bytes

    def __str__(self) -> str:
        return f"{self.api} v{self.version} {self.path} {self.shape.value} x {self.elements}"


def greedy_requests(
    handlers: Mapping[int, Handler[Any]], world: World, *, max_bytes: int, max_elements: int
) -> Iterator[Greedy]:
    """For every array of every API and every shape a request of at most this many bytes and elements.

    An array appears in the newest version that is served.
    """
    for handler in handlers.values():
        served = range(handler.versions.lowest, handler.versions.highest + 1)
        for path in _array_paths(schema_of(handler.request_class)):
            versions = [version for version in served if all(version in field.versions for field in path)]
            for shape in Shape if versions else ():
                yield _fill(handler, versions[-1], path, shape, world, max_bytes=max_bytes, max_elements=max_elements)


def _array_paths(schema: Schema, above: tuple[Field, ...] = ()) -> Iterator[tuple[Field, ...]]:
    for field in schema.fields:
        path = (*above, field)
        if field.is_array:
            yield path
        if is_struct(field.kind):
            yield from _array_paths(schema_of(field.kind), path)  # type: ignore[arg-type]


def _fill(
    handler: Handler[Any],
    version: int,
    path: tuple[Field, ...],
    shape: Shape,
    world: World,
    *,
    max_bytes: int,
    max_elements: int,
) -> Greedy:
    cls, last = handler.request_class, path[-1]
    max_elements -= len(path) - 1  # the outer arrays have one element each
    elements: list[Any] = []
    size = 0
    for number in range(max_elements):
        value = _value(last, shape, number, world, version)
        if is_struct(last.kind):
            value = elements[0] if elements and shape is not Shape.DISTINCT else encode_element(value, cls, version)
        size += _size(value)
        if size > max_bytes and elements:
            break
        elements.append(value)
    message = _message(cls, path, elements, world, version)
    parts = encode_request_frame(message, version, correlation_id=1, client_id="greedy")
    frame = b"".join(part for part in parts if isinstance(part, bytes))
    name = ".".join(field.name for field in path)
    return Greedy(handler.name, version, name, shape, len(elements) + len(path) - 1, frame)


def _message(cls: type, path: tuple[Field, ...], elements: list[Any], world: World, version: int) -> Any:
    """A message or struct with the array at the end of the path filled, and one element in each array above it."""
    values = _values(cls, Shape.SAME, 0, world, version)
    first, rest = path[0], path[1:]
    if not rest:
        values[first.name] = elements
    else:
        assert isinstance(first.kind, type)
        inner = _message(first.kind, rest, elements, world, version)
        values[first.name] = [inner] if first.is_array else inner
    make: Callable[..., Any] = cls
    return make(**values)


def _values(cls: type, shape: Shape, number: int, world: World, version: int) -> dict[str, Any]:
    """The fields of a message or struct. Its arrays are null if they may be, which often means everything."""
    values: dict[str, Any] = {}
    for field in schema_of(cls).fields:
        if version not in field.versions:
            if field.default is MISSING:
                values[field.name] = [] if field.is_array else getattr(field.kind, "default", None)
        elif field.is_array:
            values[field.name] = None if version in field.nullable and shape is not Shape.EMPTY else []
        else:
            values[field.name] = _value(field, shape, number, world, version)
    return values


def _value(field: Field, shape: Shape, number: int, world: World, version: int) -> Any:
    """One value of a field, or one element of it if it is an array."""
    kind = field.kind
    if not isinstance(kind, Primitive):
        if field.default is not MISSING and not field.is_array:
            return field.fresh_default()
        make: Callable[..., Any] = kind
        return make(**_values(kind, shape, number, world, version))
    name = field.name
    if name in world.values:
        return world.values[name]
    if kind.name == "string":
        if shape is Shape.EMPTY:
            return ""
        if shape is Shape.DISTINCT:
            return f"{number:x}"
        return world.group if any(word in name for word in _OF_GROUPS) else world.topic
    if kind.name == "uuid":
        return world.topic_id if shape is Shape.SAME else UUID(int=number + 1) if shape is Shape.DISTINCT else ZERO_UUID
    if kind.name == "bool":
        return name == "validate_only" or name.startswith("include_")
    if kind.name in ("bytes", "records"):
        return b""
    if kind.name == "float64":
        return 0.0
    if name in _NUMBERS:
        return _NUMBERS[name]
    if field.default is not MISSING and not field.is_array:
        return field.default
    return number % 32_000 if shape is Shape.DISTINCT and kind.name in ("int16", "int32", "int64") else 0


def _size(value: Any) -> int:
    return len(value) + 1 if isinstance(value, str | bytes) else 16 if isinstance(value, UUID) else 4
