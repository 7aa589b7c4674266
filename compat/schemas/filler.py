"""Two deterministic values for every declared class and version, for comparisons with Kafka's classes.

"full" sets every field of the version, including tagged ones, with two elements in each array; "sparse" has null if the
version allows it, empty arrays and defaults.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from wire.schema import MISSING, Field, schema_of
from wire.types import Primitive

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16, "uint32": 32}


def full(cls: type, version: int) -> Any:
    """An instance with a value in every field of the version."""
    return _full(cls, version, itertools.count(1))


def sparse(cls: type, version: int) -> Any:
    """An instance with as few values as the version allows."""
    given: dict[str, Any] = {}
    for field in schema_of(cls).fields:
        if version in field.versions and field.default is MISSING:
            if version in field.nullable:
                given[field.name] = None
            elif field.is_array:
                given[field.name] = []
            elif isinstance(field.kind, Primitive):
                given[field.name] = b"" if field.kind.name == "records" else field.kind.default
            else:
                given[field.name] = sparse(field.kind, version)
    return cls(**given)


def _full(cls: type, version: int, counter: Iterator[int]) -> Any:
    fields = [field for field in schema_of(cls).fields if version in field.versions]
    return cls(**{field.name: _value(field, version, counter) for field in fields})


def _value(field: Field, version: int, counter: Iterator[int]) -> Any:
    if field.is_array:
        return [_element(field, version, counter) for _ in range(2)]
    return _element(field, version, counter)


def _element(field: Field, version: int, counter: Iterator[int]) -> Any:
    if not isinstance(field.kind, Primitive):
        return _full(field.kind, version, counter)
    number = next(counter)
    match field.kind.name:
        case "bool":
            return not field.default if isinstance(field.default, bool) else number % 2 == 0
        case "float64":
            return number + 0.5
        case "string":
            return f"{field.name} größe {number}" if number % 3 else field.name * 12
        case "bytes":
            return bytes(range(number % 200))
        case "records":
            return bytes(number % 7 * 50)
        case "uuid":
            return UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835 & (1 << 128) - 1))
        case name:
            value: int = number * 0x9E3779B97F4A7C15 % (1 << _BITS[name])
            return -value if number % 2 and name.startswith("int") else value
