"""Checks whether a response has so many array elements that encoding it takes long."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from wire.schema import Schema, is_struct, response_class, schema_of

Weigh: TypeAlias = Callable[[Any, int], bool]


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
