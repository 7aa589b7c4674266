"""Values for every declared class: hypothesis strategies, and the list of all (class, version) pairs."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

import wire.messages
import wire.stored
from wire.schema import Field, declared_in, schema_of
from wire.structs import none_means_left_out
from wire.types import Primitive

_RANGES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float64": st.floats(allow_nan=False),
    "string": st.sampled_from(["", "orders", "größe", "x" * 126, "y" * 127, "z" * 200]),
    "bytes": st.sampled_from([b"", b"\0", b"abc" * 50]),
    "records": st.sampled_from([b"", b"batch" * 30]),
    "uuid": st.sampled_from([UUID(int=0), UUID(int=1), UUID(int=2**128 - 1)]),
    **{name: st.sampled_from([-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]) for name, bits in _RANGES.items()},
}


def declared_classes() -> list[type]:
    """Every message and stored record, ordered by name."""
    found: dict[str, type] = {}
    for package in (wire.messages, wire.stored):
        for module in pkgutil.iter_modules(package.__path__):
            for cls in declared_in(importlib.import_module(f"{package.__name__}.{module.name}")):
                found[cls.__name__] = cls
    return [found[name] for name in sorted(found)]


def class_versions() -> list[tuple[type, int]]:
    """Every declared (class, version)."""
    classes = declared_classes()
    return [
        (cls, version)
        for cls in classes
        for version in range(schema_of(cls).versions.lowest, schema_of(cls).versions.highest + 1)
    ]


def values(cls: type, version: int) -> st.SearchStrategy[Any]:
    """Instances of a class that its `version` can express, so that they survive a round trip."""
    fields = schema_of(cls).fields
    present = {field.name: _field_values(field, version) for field in fields if version in field.versions}
    absent = {field.name: st.builds(field.fresh_default) for field in fields if version not in field.versions}
    return st.builds(cls, **present, **absent)


def _field_values(field: Field, version: int) -> st.SearchStrategy[Any]:
    kind = field.kind
    element = _PRIMITIVES[kind.name] if isinstance(kind, Primitive) else values(kind, version)
    if field.is_array:
        element = st.lists(element, max_size=2)
    if none_means_left_out(field):
        # A default instance is left out, and so is decoded as None.
        assert isinstance(kind, type)
        default = kind()
        return st.none() | element.filter(lambda value: value != default)
    return st.none() | element if version in field.nullable else element
