"""The wire types, as annotations for declarations.

Each name is an alias of the Python type of its values: a type checker sees `str`, `int`, ..., and schema.py finds the
wire type in the annotation. `X | None` makes a field nullable, `list[X]` an array.

Source: the primitive types of Kafka's message schemas (KIP-893 for nullable structs).
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID


class Primitive(NamedTuple):
    """The wire type of an annotation.

    Shape   name is that of Kafka's schemas, default that of Kafka's classes; layout is the code in the struct module of
            a number or boolean
    """

    name: str
    default: Any
    layout: str = ""


class Opaque(Protocol):
    """Records that are not in memory, e.g. a range of a file; `size` is their number of bytes.

    encode_parts() leaves such a value in place among the parts, and the caller sends it.
    """

    @property
    def size(self) -> int: ...


ZERO_UUID = UUID(int=0)

boolean: TypeAlias = Annotated[bool, Primitive("bool", False, "?")]
int8: TypeAlias = Annotated[int, Primitive("int8", 0, "b")]
int16: TypeAlias = Annotated[int, Primitive("int16", 0, "h")]
int32: TypeAlias = Annotated[int, Primitive("int32", 0, "i")]
int64: TypeAlias = Annotated[int, Primitive("int64", 0, "q")]
uint16: TypeAlias = Annotated[int, Primitive("uint16", 0, "H")]
uint32: TypeAlias = Annotated[int, Primitive("uint32", 0, "I")]
float64: TypeAlias = Annotated[float, Primitive("float64", 0.0, "d")]
string: TypeAlias = Annotated[str, Primitive("string", "")]
bytes_: TypeAlias = Annotated[bytes, Primitive("bytes", b"")]
uuid: TypeAlias = Annotated[UUID, Primitive("uuid", ZERO_UUID)]
records: TypeAlias = Annotated[bytes | bytearray | memoryview | Opaque, Primitive("records", None)]
"""Record batches, unchanged. Decoding returns a memoryview over the input, without a copy."""


@lru_cache(maxsize=4096)
def uuid_from_bytes(data: bytes) -> UUID:
    """The id in 16 raw bytes, cached: topic ids repeat in each request, and a look-up is cheaper than making a UUID."""
    return UUID(bytes=data)


def uuid_to_text(value: UUID) -> str:
    """The 22 characters that Kafka prints for an id: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def uuid_from_text(text: str) -> UUID:
    """The id of `text` (22 characters of url-safe base64); ValueError if it is invalid."""
    if re.fullmatch(r"[A-Za-z0-9_-]{22}", text) is None:
        raise ValueError(f"{text!r} is not an id: 22 characters of url-safe base64")
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
