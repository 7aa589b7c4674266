"""The response to a request that failed: an error code, and defaults for everything else.

A response with an error code in each of its results mirrors the request: an array of results has an element for each
element of the request's array of the same name, or of its only one. Each result has the error code, the names, ids and
required fields that the element of the request has too, or the element itself if that is a name or an index. What the
result is about may be an array itself, such as the entity of a quota.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from wire.schema import MISSING, Field, response_class, schema_of
from wire.types import Primitive

_CODE, _MESSAGE = "error_code", "error_message"
_NAMES = frozenset({"string", "uuid"})


def refused(request: Any, code: int, message: str | None = None, *, in_each_result: bool = True) -> Any:
    """The response to `request` with this error at the top, if there is a code, and in each result."""
    api_key = schema_of(type(request)).api_key
    response = None if api_key is None else response_class(api_key)
    assert response is not None, f"{type(request).__name__} has no response"
    return _failed(response, request if in_each_result else None, code, message)


def fitted(response: Any, version: int) -> Any:
    """The response without the fields at its top that `version` lacks, such as the error code of ElectLeaders 0."""
    for field in schema_of(type(response)).fields:
        if version not in field.versions and field.default is not MISSING:
            setattr(response, field.name, field.fresh_default())
    return response


def _failed(answer: Any, asked: Any, code: int, message: str | None) -> Any:
    """`asked` is what the answer mirrors: a message, a struct, a name, an index, or nothing."""
    struct: Any = type(asked)
    known = _fields_of(struct)
    arrays = [field.name for field in known.values() if field.is_array]
    key = None if known else asked
    values: dict[str, Any] = {}
    for name, field in _fields_of(answer).items():
        is_required = field.default is MISSING
        if name == _CODE:
            values[name] = code
        elif name == _MESSAGE and (is_required or message is not None or field.default == ""):
            values[name] = message
        elif field.is_array:
            source = name if name in arrays else arrays[0] if len(arrays) == 1 else None
            if source is not None and (_has_error_code(field.kind) or _are_same(field.kind, known[source].kind)):
                values[name] = [_failed(field.kind, one, code, message) for one in getattr(asked, source) or ()]
            elif is_required:
                values[name] = []
        elif name in known and (is_required or getattr(field.kind, "name", None) in _NAMES):
            values[name] = getattr(asked, name)
        elif is_required:
            default = field.kind.default if isinstance(field.kind, Primitive) else None
            values[name], key = (default, key) if key is None else (key, None)
    return answer(**values)


@cache
def _fields_of(kind: Any) -> dict[str, Field]:
    return {field.name: field for field in schema_of(kind).fields} if hasattr(kind, "__schema__") else {}


def _are_same(kind: Any, other: Any) -> bool:
    """Whether two structs have the same fields."""
    fields = _fields_of(kind).keys()
    return bool(fields) and fields == _fields_of(other).keys()


@cache
def _has_error_code(kind: Any) -> bool:
    """Whether a struct has an error code at any level."""
    return any(name == _CODE or _has_error_code(field.kind) for name, field in _fields_of(kind).items())
