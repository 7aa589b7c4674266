"""Code generation for the constructs: builds the source of one function, binds the objects it uses, and compiles it.

The generated parser works on positions in a buffer instead of a stream. Adjacent fixed-size fields share one
unpack_from, which also reads a length that follows them, and a short string in front of them. Varints and loops are
inlined, and an instance's slots are filled directly. The generated builder packs adjacent fields in the same way and
appends few parts to a list.

Most messages have the *usual shape*: short strings, one element in each array, none in an ignorable array, null in
nullable arrays and where it is the default. The builder tries this shape first. It then needs no loops, and packs each
string together with its neighbours. If it finds another shape, it starts again.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from construct import CodeGen

from wire.errors import Malformed, TooManyElements
from wire.types import uuid_from_bytes
from wire.varint import SHORT, Buffer, decode_uvarint, encode_uvarint, finish_uvarint

MAX_STRING = 0x7FFF
"""The longest string in bytes, in every version (the length was once an int16)."""


SHORT_TEXT = 127
"""Strings of fewer bytes are packed and unpacked together with their neighbours."""

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


def long_text(data: Buffer, position: int, size: int, length: int) -> tuple[str, int]:
    """The string of `length` bytes at `position`, and the position after it."""
    end = position + length
    if length < 0:
        raise Malformed(f"a length of {length}")
    if end > size:
        raise Malformed(f"{length} bytes announced, {size - position} left")
    return str(data[position:end], "utf-8"), end


def long_compact_text(data: Buffer, position: int, size: int, first: int) -> tuple[str, int]:
    """Like long_text(), after the first byte of a compact length."""
    length, position = (first, position) if first < 128 else finish_uvarint(data, position, first)
    if length - 1 > MAX_STRING:
        raise Malformed(f"a string of {length - 1} bytes")
    return long_text(data, position, size, length - 1)


def nullable_long_compact_text(data: Buffer, position: int, size: int, first: int) -> tuple[str | None, int]:
    """Like long_compact_text(), for a string that may be null: also a null whose length takes more than one byte."""
    if first > 127:
        length, end = finish_uvarint(data, position, first)
        if length == 0:
            return None, end
    return long_compact_text(data, position, size, first)


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


Run = list[tuple[str, str]]
"""Adjacent fixed-size fields: (struct format, target or value)."""


class Code:
    """Source of one function under construction: lines, indentation, and names for temporaries and bound objects."""

    def __init__(self, generator: CodeGen) -> None:
        self.generator = generator
        self.lines: list[str] = []
        self.depth = 1
        self.run: Run = []

    def temporary(self, hint: str = "v") -> str:
        return f"{hint}{self.generator.allocateId()}"

    def bind(self, name: str, value: object) -> str:
        """Bind `value` to `name` in the generated module, or to a variation of `name` if that is taken."""
        bound, name = self.generator.linkedinstances, name.replace("?", "o")
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
            self._emit_run(run, _layout(run))

    @abstractmethod
    def _emit_run(self, run: Run, layout: str) -> None: ...

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


def _layout(run: Run) -> str:
    return "".join(code for code, _ in run)


class _ReadHead(NamedTuple):
    """A string whose length has been read."""

    target: str
    size: str
    compact: bool
    nullable: bool


class ParseCode(Code):
    def __init__(self, generator: CodeGen) -> None:
        super().__init__(generator)
        self._text: _ReadHead | None = None

    def text(self, target: str, size: str, *, compact: bool, nullable: bool) -> None:
        """Add a string whose length, or the first byte of it if it is compact, is in the variable `size`."""
        self.flush()
        self._text = _ReadHead(target, size, compact, nullable)

    def flush(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            self._emit_text(text)
        super().flush()

    def _emit_text(self, text: _ReadHead) -> None:
        """If the string is short, one unpack_from reads it and the pending run behind it."""
        target, size, compact, nullable = text
        run, self.run = self.run, []
        surplus = 1 if compact else 0
        with self.block(f"if {surplus - 1} < {size} < {SHORT_TEXT + surplus}:"):
            layout, raw = _layout(run), self.temporary("raw")
            unpack = self.bind(f"unpack_text_{surplus}{layout}", _text_unpackers(surplus, layout))
            past = struct.calcsize(f">{layout}") - surplus
            self._emit_unpack([("s", raw), *run], f"{unpack}[{size}]", f"{size} + {past}")
            self.aside(f"{target} = {raw}.decode()")
        with self.block("else:"):
            if nullable:
                self.aside(f"if {size} == {surplus - 1}: {target} = None")
            long_text = "long_compact_text" if compact else "long_text"
            if compact and nullable:
                long_text = "nullable_long_compact_text"
            self.aside(f"{'else: ' if nullable else ''}{target}, pos = {long_text}(data, pos, size, {size})")
            self.run = run

    def _emit_run(self, run: Run, layout: str) -> None:
        if layout in ("B", "?"):
            self.aside(f"{run[0][1]} = data[pos]{' != 0' if layout == '?' else ''}")
            self.aside("pos += 1")
        else:
            unpack = self.bind(f"unpack_{layout}", _unpacker(layout))
            self._emit_unpack(run, unpack, str(struct.calcsize(f">{layout}")))

    def _emit_unpack(self, run: Run, unpack: str, size: str) -> None:
        names = [target if code != "16s" else self.temporary("raw") for code, target in run]
        self.aside(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {unpack}(data, pos)")
        self.aside(f"pos += {size}")
        for name, (code, target) in zip(names, run, strict=True):
            if code == "16s":
                self.aside(f"{target} = uuid_from_bytes({name})")


class BuildCode(Code):
    def __init__(self, generator: CodeGen) -> None:
        super().__init__(generator)
        self.is_usual = False
        self._text: tuple[str, str] | None = None

    @contextmanager
    def usual_shape(self) -> Iterator[None]:
        """The code inside builds messages of the usual shape, and returns."""
        self.is_usual = True
        with self.block("while True:"):
            yield
            self.line("return")
        self.is_usual = False

    def leave_if(self, condition: str) -> None:
        """Leave the code for the usual shape if the message does not have it."""
        has_appended = any("parts.append(" in line for line in self.lines)
        self.aside(f"if {condition}: {'parts.clear(); opaques.clear(); ' if has_appended else ''}break")

    def text(self, head: tuple[str, str], value: str, size: str, measure: str) -> None:
        """Add a short string to the pending run. The code `measure`, which encodes it, runs only when it is packed."""
        if self._text is not None:
            self.flush()
        self._text = size, measure
        self.run += [head, ("*", value)]

    def _emit_run(self, run: Run, layout: str) -> None:
        text, self._text = self._text, None
        if text is not None:
            size, measure = text
            before, after = layout.split("*")
            self.aside(measure)
            self.leave_if(f"{size} >= {SHORT_TEXT}")
            pack = f"{self.bind(f'pack_{before}_text_{after}', _text_packers(before, after))}[{size}]"
        elif run == [("B", "0")]:
            self.aside("parts.append(ZERO)")
            return
        else:
            pack = self.bind(f"pack_{layout}", _packer(layout))
        self.aside(f"parts.append({pack}({', '.join(expression for _, expression in run)}))")


class _BySize(dict[int, Callable[..., Any]]):
    """Functions of the struct module for a run with a short string, by its size; made at first use.

    Bound  one for each size of a short string
    """

    def __init__(self, make: Callable[[int], Callable[..., Any]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> Callable[..., Any]:
        function = self[size] = self._make(size)
        return function


@cache
def _text_unpackers(surplus: int, after: str) -> _BySize:
    return _BySize(lambda size: struct.Struct(f">{size - surplus}s{after}").unpack_from)


@cache
def _text_packers(before: str, after: str) -> _BySize:
    return _BySize(lambda size: struct.Struct(f">{before}{size}s{after}").pack)


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
    "finish_uvarint": finish_uvarint, "join": b"".join, "long_compact_text": long_compact_text,
    "long_text": long_text, "malformed": malformed,
    "merge_tags": merge_tags, "nullable_long_compact_text": nullable_long_compact_text,
    "not_in_version": not_in_version, "pack": struct.pack, "skip_tags": skip_tags,
    "BUFFERS": BUFFERS, "tagged_fields": tagged_fields, "too_many": too_many, "unpack_from": struct.unpack_from,
    "uuid_from_bytes": uuid_from_bytes,
}  # fmt: skip


def compile_function(generator: CodeGen, name: str, title: str) -> Any:
    """Run the generated source and return its function `name`, with the source at `.source`."""
    source = generator.toString()
    namespace = _HELPERS | generator.linkedinstances
    exec(compile(source, f"<{title}>", "exec"), namespace)  # noqa: S102  (made from declarations, not from input)
    function = namespace[name]
    function.source = source
    return function
