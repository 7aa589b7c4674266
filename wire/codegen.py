"""Code generation for the constructs: builds the source of one function, binds the objects it uses, and compiles it.

The generated parser works on positions in a buffer instead of a stream. Adjacent fixed-size fields share one
unpack_from, which also reads a length that follows them. Varints, strings and loops are inlined, and an instance's
slots are filled directly. The generated builder packs adjacent fields in the same way and appends few parts to a list.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from construct import CodeGen

from wire.errors import Malformed, TooManyElements
from wire.types import uuid_from_bytes
from wire.varint import SHORT, Buffer, decode_uvarint, encode_uvarint, finish_uvarint

MAX_STRING = 0x7FFF
"""The longest string in bytes, in every version (the length was once an int16)."""


SHORT_ARRAY = 8
"""Arrays of fixed-size elements with fewer elements have a ready-made layout (replicas, in-sync replicas, ...)."""

BUFFERS = frozenset({bytes, bytearray, memoryview})
"""The types of records in memory; any other type is an Opaque."""


class NotInVersion(ValueError):
    """A message holds a non-ignorable value whose field is missing in the version to encode: a bug of the caller."""


def malformed(what: str) -> None:
    raise Malformed(what)


def too_many() -> None:
    raise TooManyElements("too many array elements")


def not_in_version(cls: str, name: str, version: int) -> None:
    raise NotInVersion(f"version {version} of {cls} has no {name}, which is not at its default")


def compact_string_head(size: int) -> bytes:
    if size > MAX_STRING:
        raise ValueError(f"a string of {size} bytes exceeds {MAX_STRING}")
    return encode_uvarint(size + 1)


def tagged_fields(data: Buffer, position: int, size: int, count: int) -> Iterator[tuple[int, int, int]]:
    """The tag, start and end of each of `count` tagged fields; their tags ascend."""
    last = -1
    for _ in range(count):
        tag, position = decode_uvarint(data, position)
        length, position = decode_uvarint(data, position)
        if tag <= last:
            raise Malformed(f"tag {tag} after tag {last}")
        last = tag
        end = position + length
        if end > size:
            raise Malformed(f"tagged field {tag} exceeds the message")
        yield tag, position, end
        position = end


def skip_tags(data: Buffer, position: int, size: int, count: int) -> int:
    """The position after `count` tagged fields, all of them unknown."""
    return max((end for _, _, end in tagged_fields(data, position, size, count)), default=position)


def merge_tags(known: list[tuple[int, bytes]], value: object) -> bytes:
    """The encoding of tagged fields: their number, then the known and the unknown ones, ordered by tag."""
    fields = known
    unknown = getattr(value, "unknown_tagged_fields", ())
    if unknown:
        fields = sorted([*known, *((tag, encode_uvarint(len(data)) + data) for tag, data in unknown)])
    return encode_uvarint(len(fields)) + b"".join([encode_uvarint(tag) + data for tag, data in fields])


class Code:
    """Source of one function under construction: lines, indentation, and names for temporaries and bound objects."""

    def __init__(self, generator: CodeGen) -> None:
        self.generator = generator
        self.lines: list[str] = []
        self.depth = 1
        self.run: list[tuple[str, str]] = []  # adjacent fixed-size fields: (struct format, target or value)

    def temporary(self, hint: str = "v") -> str:
        return f"{hint}{self.generator.allocateId()}"

    def bind(self, name: str, value: object) -> str:
        """Bind `value` to `name` in the generated module, or to a variation of `name` if that is taken."""
        bound = self.generator.linkedinstances
        if bound.setdefault(name, value) is not value:
            name = self.temporary(f"{name}_")
            bound[name] = value
        return name

    def aside(self, text: str) -> None:
        """Add a line that neither moves the position nor depends on the pending run of fixed-size fields."""
        self.lines.append("    " * self.depth + text)

    def line(self, text: str) -> None:
        self.flush()
        self.aside(text)

    def fixed(self, code: str, name: str) -> None:
        """Add a fixed-size value to the pending run: a target when parsing, an expression when building."""
        self.run.append((code, name))

    def flush(self) -> None:
        """Emit the pending run."""
        run, self.run = self.run, []
        if run:
            self._emit_run(run, "".join(code for code, _ in run))

    @abstractmethod
    def _emit_run(self, run: list[tuple[str, str]], layout: str) -> None: ...

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        yield
        self.flush()
        if len(self.lines) == before:
            self.aside("pass")
        self.depth -= 1

    def spend(self, count: str) -> None:
        """Deduct `count` elements from the message's remaining element budget."""
        self.line(f"left -= {count}")
        self.aside("if left < 0: too_many()")

    def function(self, head: str) -> None:
        self.flush()
        self.generator.append("\n".join([f"def {head}:", *(self.lines or ["    pass"])]))


class ParseCode(Code):
    def _emit_run(self, run: list[tuple[str, str]], layout: str) -> None:
        names = [target if code != "16s" else self.temporary("raw") for code, target in run]
        if layout in ("B", "?"):
            self.aside(f"{names[0]} = data[pos]{' != 0' if layout == '?' else ''}")
        else:
            unpack = self.bind(f"unpack_{layout.replace('?', 'o')}", _unpacker(layout))
            self.aside(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {unpack}(data, pos)")
        self.aside(f"pos += {struct.calcsize('>' + layout)}")
        for name, (code, target) in zip(names, run, strict=True):
            if code == "16s":
                self.aside(f"{target} = uuid_from_bytes({name})")


class BuildCode(Code):
    def _emit_run(self, run: list[tuple[str, str]], layout: str) -> None:
        if run == [("B", "0")]:
            self.aside("append(ZERO)")
            return
        pack = self.bind(f"pack_{layout.replace('?', 'o')}", _packer(layout))
        self.aside(f"append({pack}({', '.join(expression for _, expression in run)}))")


@cache
def _unpacker(layout: str) -> Callable[..., tuple[Any, ...]]:
    return struct.Struct(">" + layout).unpack_from


@cache
def array_unpackers(layout: str) -> tuple[Callable[..., tuple[Any, ...]], ...]:
    """Unpackers of short arrays of fixed-size elements, by the number of elements."""
    return tuple(_unpacker(f"{count}{layout}") for count in range(SHORT_ARRAY))


@cache
def array_packers(layout: str) -> tuple[Callable[..., bytes], ...]:
    """Packers of short arrays of fixed-size elements, by the number of elements."""
    return tuple(_packer(f"{count}{layout}") for count in range(SHORT_ARRAY))


@cache
def _packer(layout: str) -> Callable[..., bytes]:
    return struct.Struct(">" + layout).pack


_HELPERS: dict[str, object] = {
    "EMPTY": b"", "NULL_STRUCT": b"\xff", "SHORT": SHORT, "ZERO": b"\0",
    "compact_string_head": compact_string_head, "decode_uvarint": decode_uvarint, "encode_uvarint": encode_uvarint,
    "finish_uvarint": finish_uvarint, "join": b"".join, "malformed": malformed,
    "merge_tags": merge_tags, "new": object.__new__,
    "not_in_version": not_in_version, "pack": struct.pack, "skip_tags": skip_tags, "BUFFERS": BUFFERS,
    "tagged_fields": tagged_fields, "too_many": too_many, "unpack_from": struct.unpack_from,
    "uuid_from_bytes": uuid_from_bytes,
}  # fmt: skip


def compile_function(generator: CodeGen, name: str, title: str) -> Any:
    """Run the generated source and return its function `name`, with the source at `.source`."""
    source = generator.toString()
    namespace = _HELPERS | generator.linkedinstances
    exec(compile(source, f"<{title}>", "exec"), namespace)  # noqa: S102
    function = namespace[name]
    function.source = source
    return function
