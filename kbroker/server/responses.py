"""Reads from a response, for the dispatcher, its error codes and whether encoding it takes long.

The metrics page counts errors by API and code. A response can have a top-level code, one for each topic, and one for
each partition. A response with many array elements is encoded in a thread. The fields are found in the declaration of
the response class, once for each API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias

from wire.schema import Schema, is_struct, response_class, schema_of

Find: TypeAlias = Callable[[Any], Iterable[int]]
Weigh: TypeAlias = Callable[[Any, int], bool]

_NAME = "error_code"
# Do not count partitions without a leader one by one: there may be ten thousand. Count only the topics' codes.
_WITHOUT_PARTITIONS = frozenset({"MetadataResponse", "DescribeTopicPartitionsResponse"})


@cache
def finder(api_key: int) -> Find:
    """A function that gives every error code in a response of this API, except NONE."""
    response = response_class(api_key)
    if response is None:
        return _nothing
    return _finder(schema_of(response), levels=2 if response.__name__ in _WITHOUT_PARTITIONS else None) or _nothing


def _nothing(_message: Any) -> Iterable[int]:
    return ()


def _own(message: Any) -> Iterable[int]:
    return (message.error_code,) if message.error_code else ()


def _finder(schema: Schema, *, levels: int | None) -> Find | None:
    """The same for a struct; None if no field of the struct, at any level, is an error code."""
    has_own = any(field.name == _NAME for field in schema.fields)
    below: list[tuple[str, bool, Find]] = []
    if levels is None or levels > 1:
        for field in schema.fields:
            if isinstance(field.kind, type) and is_struct(field.kind):
                inner = _finder(schema_of(field.kind), levels=None if levels is None else levels - 1)
                if inner is not None:
                    below.append((field.name, field.is_array, inner))
    if not has_own and not below:
        return None
    if not below:
        return _own

    def find(message: Any) -> Iterator[int]:
        if has_own and message.error_code:
            yield message.error_code
        for name, is_array, inner in below:
            value = getattr(message, name)
            if value is not None:
                for one in value if is_array else (value,):
                    if one.__class__ is not bytes:  # elements that a handler has encoded itself have no errors
                        yield from inner(one)

    return find


@cache
def weigher(api_key: int) -> Weigh | None:
    """A function that checks whether a response of this API has more array elements than a limit.

    It stops counting at the limit. None for an API whose responses have no arrays.
    """
    response = response_class(api_key)
    count = None if response is None else _counter(schema_of(response))
    return None if count is None else lambda message, limit: count(message, limit) > limit


def _counter(schema: Schema) -> Callable[[Any, int], int] | None:
    arrays = [
        (
            field.name,
            _counter(schema_of(field.kind)) if isinstance(field.kind, type) and is_struct(field.kind) else None,
        )
        for field in schema.fields
        if field.is_array
    ]
    if not arrays:
        return None

    def count(message: Any, limit: int) -> int:
        found = 0
        for name, inner in arrays:
            value = getattr(message, name)
            if not value:
                continue
            found += len(value)
            if inner is not None:
                for one in value:
                    if found > limit:
                        break
                    if one.__class__ is not bytes:
                        found += inner(one, limit - found)
        return found

    return count
