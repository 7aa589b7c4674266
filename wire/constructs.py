"""The primitive wire types and arrays as constructs.

Each construct reads by itself (construct's `.parse`), which is the readable reference. Each also emits the source of a
faster parser and of a builder (codegen.py). wire.structs combines constructs into messages.

Work is bounded by the input. Every length is compared with the remaining bytes before it is used. An array's count is
compared with the remaining bytes divided by the least size of its elements, which is at least 1.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from construct import Construct

from wire.codegen import MAX_STRING, SHORT_ARRAY, BuildCode, ParseCode, array_packers, array_unpackers
from wire.errors import Malformed
from wire.types import uuid_from_bytes
from wire.varint import Buffer, decode_uvarint


class WireConstruct(Construct):  # type: ignore[misc]
    """A construct that also emits the code of a parser and of a builder.

    min_size        the least number of bytes of an encoding, at least 1
    may_be_encoded  whether the builder of an array accepts bytes from encode_element() instead of a value
    """

    min_size: int
    may_be_encoded = False

    @abstractmethod
    def read(self, data: Buffer, position: int) -> tuple[Any, int]:
        """The value at `position` and the position after it. Bad bytes raise what _parse() makes Malformed."""

    @abstractmethod
    def emit_parse(self, code: ParseCode, target: str) -> None:
        """Emit code that reads a value at `pos` of `data` (up to `size`) into `target`."""

    @abstractmethod
    def emit_build(self, code: BuildCode, value: str) -> None:
        """Emit code that appends the encoding of the expression `value`."""

    def _parse(self, stream: BinaryIO, context: Any, path: str) -> Any:  # noqa: ARG002
        try:
            return self.read(stream.read(), 0)[0]
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise Malformed(str(error)) from error


class Fixed(WireConstruct):
    """A number or boolean, by its code in the struct module."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.struct = struct.Struct(">" + layout)
        self.min_size = self.struct.size

    def read(self, data: Buffer, position: int) -> tuple[Any, int]:
        return self.struct.unpack_from(data, position)[0], position + self.min_size

    def emit_parse(self, code: ParseCode, target: str) -> None:
        code.fixed(self.layout, target)

    def emit_build(self, code: BuildCode, value: str) -> None:
        code.fixed(self.layout, value)


class Uuid(Fixed):
    """An id: 16 raw bytes."""

    def __init__(self) -> None:
        super().__init__("16s")

    def read(self, data: Buffer, position: int) -> tuple[Any, int]:
        raw, position = super().read(data, position)
        return uuid_from_bytes(raw), position

    def emit_build(self, code: BuildCode, value: str) -> None:
        super().emit_build(code, f"{value}.int.to_bytes(16, 'big')")


class _Counted(WireConstruct):
    """A value that starts with a length or count: an integer (-1 is null) or, if compact, a varint of it plus one (0 is
    null).

    usual_count  the number of an array's elements in messages of the usual shape, 1 for a string; -1 for null
    """

    long_head_code = "encode_uvarint({count} + 1)"

    def __init__(self, head: str, *, compact: bool, nullable: bool, usual_count: int = 1) -> None:
        super().__init__()
        self.head = head
        self.compact = compact
        self.nullable = nullable
        self.usual_count = usual_count
        self.min_size = 1 if compact else struct.calcsize(head)

    def _read_head(self, data: Buffer, position: int) -> tuple[int, int]:
        if self.compact:
            count, position = decode_uvarint(data, position)
            count -= 1
        else:
            (count,) = struct.unpack_from(f">{self.head}", data, position)
            position += self.min_size
        if count < (-1 if self.nullable else 0):
            raise Malformed(f"a length of {count}")
        return count, position

    def _emit_parse_head(self, code: ParseCode) -> str:
        """Emit code that reads the head, of a varint only the first byte; returns the name of the count."""
        count = code.temporary("n")
        code.fixed("B" if self.compact else self.head, count)
        return count

    @contextmanager
    def _unless_null(self, code: ParseCode, target: str, count: str) -> Iterator[None]:
        """Emit code that completes the head; the body of the `with` emits the code for a value that is not null."""
        if self.compact:
            with code.block(f"if {count} > 127:"):
                code.line(f"{count}, pos = finish_uvarint(data, pos, {count})")
            code.line(f"{count} -= 1")
        with code.block(f"if {count} < 0:"):
            if self.nullable:
                if not self.compact:
                    with code.block(f"if {count} != -1:"):
                        code.line(f"malformed('a length of %d' % {count})")
                code.line(f"{target} = None")
            else:
                code.line(f"malformed('a length of %d' % {count})")
        with code.block("else:"):
            yield

    def _emit_build_head(self, code: BuildCode, value: str, measure: str, null: str) -> tuple[str, str]:
        """Emit code that writes the length or count; returns the names of the value and of its count.

        `measure` assigns {count} from {held} and may convert {held}; `null` replaces a null value, whose count is -1.
        """
        held, count = code.temporary("held"), code.temporary("n")
        measure = measure.format(held=held, count=count)
        code.aside(f"{held} = {value}")
        if self.nullable:
            code.aside(f"if {held} is None: {held}, {count} = {null}, -1")
            code.aside(f"else: {measure}")
        else:
            code.aside(measure)
        if self.compact:
            long_head = self.long_head_code.format(count=count)
            code.line(f"parts.append(SHORT[{count} + 1] if {count} < 127 else {long_head})")
        else:
            code.fixed(self.head, count)
        return held, count

    def _short_head(self, count: str) -> tuple[str, str]:
        return ("B", f"{count} + 1") if self.compact else (self.head, count)

    def _emit_build_usual(self, code: BuildCode, value: str) -> str | None:
        """For the builder of the usual shape: emit code for a value that is null or empty; else return its name."""
        held = code.temporary("held")
        code.aside(f"{held} = {value}")
        if self.usual_count > 0:
            if self.nullable:
                code.leave_if(f"{held} is None")
            return held
        code.leave_if(f"{held} is not None" if self.usual_count < 0 else f"{held} or {held} is None")
        code.fixed(*self._short_head(str(self.usual_count)))
        return None


class _Blob(_Counted):
    """Bytes that follow a length: strings, bytes and records."""

    slice_code = ""
    measure_code = "{count} = len({held})"

    def read(self, data: Buffer, position: int) -> tuple[Any, int]:
        count, position = self._read_head(data, position)
        if count < 0:
            return None, position
        end = position + count
        if end > len(data):
            raise Malformed(f"{count} bytes announced, {len(data) - position} left")
        return self._from_bytes(data[position:end]), end

    @abstractmethod
    def _from_bytes(self, data: Buffer) -> Any:
        """The value of these bytes."""

    def emit_parse(self, code: ParseCode, target: str) -> None:
        count = self._emit_parse_head(code)
        with self._unless_null(code, target, count):
            end = code.temporary("end")
            code.line(f"{end} = pos + {count}")
            with code.block(f"if {end} > size:"):
                code.line(f"malformed('%d bytes announced, %d left' % ({count}, size - pos))")
            code.line(f"{target} = {self.slice_code.format(end=end)}")
            code.line(f"pos = {end}")

    def emit_build(self, code: BuildCode, value: str) -> None:
        held, _ = self._emit_build_head(code, value, self.measure_code, "EMPTY")
        self._emit_append(code, held)

    def _emit_append(self, code: BuildCode, data: str) -> None:
        code.line(f"parts.append({data})")


class Text(_Blob):
    """A string: UTF-8, at most 32767 bytes."""

    measure_code = "{held} = {held}.encode(); {count} = len({held})"
    long_head_code = "compact_string_head({count})"

    def __init__(self, *, compact: bool, nullable: bool, usual_count: int = 1) -> None:
        super().__init__("h", compact=compact, nullable=nullable, usual_count=usual_count)

    def emit_parse(self, code: ParseCode, target: str) -> None:
        code.text(target, self._emit_parse_head(code), compact=self.compact, nullable=self.nullable)

    def emit_build(self, code: BuildCode, value: str) -> None:
        if not code.is_usual:
            super().emit_build(code, value)
        elif (held := self._emit_build_usual(code, value)) is not None:
            count = code.temporary("n")
            code.text(self._short_head(count), held, count, self.measure_code.format(held=held, count=count))

    def _from_bytes(self, data: Buffer) -> str:
        if len(data) > MAX_STRING:
            raise Malformed(f"a string of {len(data)} bytes")
        return str(data, "utf-8")


class Blob(_Blob):
    """Bytes, copied out of the input."""

    slice_code = "bytes(data[pos:{end}])"

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__("i", compact=compact, nullable=nullable)

    def _from_bytes(self, data: Buffer) -> bytes:
        return bytes(data)


ALONE_BYTES: Final = 64 * 1024
"""Records of at least this size are a piece of their own."""


class RecordsBlob(_Blob):
    """Record batches, parsed into a memoryview over the input. The builder leaves an Opaque in place as a piece of its
    own, and also a large bytes object, because copying it costs more than sending it separately.
    """

    slice_code = "(data if data.__class__ is memoryview else memoryview(data))[pos:{end}]"
    measure_code = "{count} = len({held}) if {held}.__class__ in BUFFERS else {held}.size"

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__("i", compact=compact, nullable=nullable)

    def _from_bytes(self, data: Buffer) -> memoryview:
        return memoryview(data)

    def _emit_append(self, code: BuildCode, data: str) -> None:
        alone = f"({data}.__class__ is bytes and len({data}) >= {ALONE_BYTES})"
        code.line(f"if {data}.__class__ not in BUFFERS or {alone}: opaques.append(len(parts))")
        code.line(f"parts.append({data})")


class Array(_Counted):
    """A count, followed by that number of elements."""

    def __init__(self, element: WireConstruct, *, compact: bool, nullable: bool, usual_count: int) -> None:
        super().__init__("i", compact=compact, nullable=nullable, usual_count=usual_count)
        self.element = element

    def read(self, data: Buffer, position: int) -> tuple[list[Any] | None, int]:
        count, position = self._read_head(data, position)
        if count < 0:
            return None, position
        if count > (len(data) - position) // self.element.min_size:
            raise Malformed(f"{count} elements in {len(data) - position} bytes")
        items = []
        for _ in range(count):
            item, position = self.element.read(data, position)
            items.append(item)
        return items, position

    def emit_parse(self, code: ParseCode, target: str) -> None:
        element, count = self.element, self._emit_parse_head(code)
        with self._unless_null(code, target, count):
            least = f"{count} * {element.min_size}" if element.min_size > 1 else count
            with code.block(f"if {least} > size - pos:"):
                code.line(f"malformed('%d elements in %d bytes' % ({count}, size - pos))")
            code.spend(count)
            if type(element) is Fixed:
                layout = element.layout
                unpackers = code.bind(f"unpackers_{layout}", array_unpackers(layout))
                with code.block(f"if {count} < {SHORT_ARRAY}:"):
                    code.line(f"{target} = list({unpackers}[{count}](data, pos))")
                with code.block("else:"):
                    code.line(f"{target} = list(unpack_from('>%d{layout}' % {count}, data, pos))")
                code.line(f"pos += {least}")
                return
            items, item = code.temporary("items"), code.temporary("item")
            code.line(f"{target} = {items} = []")
            with code.block(f"while {count}:"):
                code.line(f"{count} -= 1")
                element.emit_parse(code, item)
                code.line(f"{items}.append({item})")

    def emit_build(self, code: BuildCode, value: str) -> None:
        element, item = self.element, code.temporary("item")
        if code.is_usual and type(element) is not Fixed:
            if (held := self._emit_build_usual(code, value)) is not None:
                encoded = f" or {held}[0].__class__ is bytes" if element.may_be_encoded else ""
                code.leave_if(f"len({held}) != 1{encoded}")
                code.fixed(*self._short_head("1"))
                code.aside(f"{item} = {held}[0]")
                element.emit_build(code, item)
            return
        items, count = self._emit_build_head(code, value, "{count} = len({held})", "()")
        if type(element) is Fixed:
            layout = element.layout
            packers = code.bind(f"packers_{layout}", array_packers(layout))
            with code.block(f"if {count} < {SHORT_ARRAY}:"):
                code.line(f"if {count} > 0: parts.append({packers}[{count}](*{items}))")
            with code.block("else:"):
                code.line(f"parts.append(pack('>%d{layout}' % {count}, *{items}))")
            return
        with code.block(f"for {item} in {items}:"):
            if not element.may_be_encoded:
                element.emit_build(code, item)
                return
            with code.block(f"if {item}.__class__ is bytes:"):
                code.line(f"parts.append({item})")
            with code.block("else:"):
                element.emit_build(code, item)
