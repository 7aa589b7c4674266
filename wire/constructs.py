"""The wire types as constructs: each parses and builds by itself, and each writes the code that does the same faster.

`construct_for(cls, version)` gives one construct for a message class in one version. Interpreted (`.parse`, `.build`) it is
the readable reference; `compile_parser` and `compile_builder` turn it into one Python function by construct's code
generator, and codec.py uses those alone. Tests hold the two to each other.

The generated parser works on positions in a buffer instead of a stream. Neighbours of fixed size share one unpack_from, and
so does the length behind them; varints, strings and loops stand inline; an instance's slots are filled directly. The
generated builder packs neighbours together in the same way and appends few parts to a list.

Work is bounded by the input: every length is compared with the bytes that are left before anything is made of it, and an
array's count with those bytes over the least size of its elements, which is at least 1.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO, cast
from uuid import UUID

from construct import CodeGen, Construct

from wire.errors import ErrorCode, KafkaError, Malformed
from wire.schema import MISSING, Field, Schema, schema_of
from wire.types import Primitive, uuid_from_bytes
from wire.varint import SHORT, Buffer, decode_uvarint, encode_uvarint, finish_uvarint

Parser = Callable[[Buffer, int, int], tuple[Any, int]]
"""(data, position, size) -> (message, position behind it)"""

Builder = Callable[[Any, Callable[[Any], None]], None]
"""(message, append): appends the parts of the encoding"""

_INTEGERS = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I", "float64": "d",
}  # fmt: skip
_MAX_STRING = 0x7FFF


class NotInVersion(ValueError):
    """A message holds a value that the version to encode has no field for, and the field is not ignorable: our bug."""


def _malformed(what: str) -> None:
    raise Malformed(what)


def _not_in_version(cls: str, name: str, version: int) -> None:
    raise NotInVersion(f"version {version} of {cls} has no {name}, which is not at its default")


def _records_size(value: Any) -> int:
    return len(value) if isinstance(value, bytes | bytearray | memoryview) else cast(int, value.size)


def _compact_string_head(size: int) -> bytes:
    if size > _MAX_STRING:
        raise ValueError(f"a string of {size} bytes exceeds {_MAX_STRING}")
    return encode_uvarint(size + 1)


def skip_tags(data: Buffer, position: int, size: int, count: int) -> int:
    """The position behind `count` tagged fields of which none is known."""
    last = -1
    for _ in range(count):
        tag, position = decode_uvarint(data, position)
        length, position = decode_uvarint(data, position)
        if tag <= last:
            raise Malformed(f"tag {tag} behind tag {last}")
        last = tag
        position += length
        if position > size:
            raise Malformed(f"tagged field {tag} exceeds the message")
    return position


class _Code:
    """Source of one function in the making: lines, indentation, and names for temporaries and bound objects."""

    def __init__(self, generator: CodeGen) -> None:
        self.generator = generator
        self.lines: list[str] = []
        self.depth = 1
        self.run: list[tuple[str, str]] = []  # neighbours of fixed size: (struct format, target or value)

    def temporary(self, hint: str = "v") -> str:
        return f"{hint}{self.generator.allocateId()}"

    def bind(self, name: str, value: object) -> str:
        """Make `value` known to the generated module under `name`, or under a variation if that is taken."""
        bound = self.generator.linkedinstances
        if bound.setdefault(name, value) is not value:
            name = self.temporary(f"{name}_")
            bound[name] = value
        return name

    def aside(self, text: str) -> None:
        """Add a line that neither moves the position nor depends on the run in the making."""
        self.lines.append("    " * self.depth + text)

    def line(self, text: str) -> None:
        self.flush()
        self.aside(text)

    def fixed(self, code: str, name: str) -> None:
        """Put a value of fixed size into the run: a target when parsing, an expression when building."""
        self.run.append((code, name))

    def flush(self) -> None:
        raise AssertionError

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

    def function(self, head: str) -> None:
        self.flush()
        self.generator.append("\n".join([f"def {head}:", *(self.lines or ["    pass"])]))


class _ParseCode(_Code):
    def flush(self) -> None:
        run, self.run = self.run, []
        if not run:
            return
        layout = "".join(code for code, _ in run)
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


class _BuildCode(_Code):
    def flush(self) -> None:
        run, self.run = self.run, []
        if not run:
            return
        if run == [("B", "0")]:
            self.aside("append(ZERO)")
            return
        layout = "".join(code for code, _ in run)
        pack = self.bind(f"pack_{layout.replace('?', 'o')}", _packer(layout))
        self.aside(f"append({pack}({', '.join(expression for _, expression in run)}))")


@cache
def _unpacker(layout: str) -> Callable[..., tuple[Any, ...]]:
    return struct.Struct(">" + layout).unpack_from


@cache
def _packer(layout: str) -> Callable[..., bytes]:
    return struct.Struct(">" + layout).pack


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise Malformed(f"{size} bytes announced, {len(data)} left")
    return data


def _remaining(stream: BinaryIO) -> int:
    here = stream.tell()
    end = stream.seek(0, 2)
    stream.seek(here)
    return end - here


def _read_uvarint(stream: BinaryIO) -> int:
    data = b""
    while not data or data[-1] > 127:
        data += _read(stream, 1)
        if len(data) > 5:
            break
    return decode_uvarint(data, 0)[0]


class WireConstruct(Construct):  # type: ignore[misc]
    """A construct that can also write the code of its generated parser and builder.

    min_size   the least number of bytes of an encoding, at least 1
    """

    min_size: int

    @abstractmethod
    def read(self, stream: BinaryIO) -> Any:
        """The value at the stream's position."""

    @abstractmethod
    def write(self, obj: Any, stream: BinaryIO) -> None:
        """Write the encoding of `obj`."""

    @abstractmethod
    def emit_parse(self, code: _ParseCode, target: str) -> None:
        """Write code that reads a value at `pos` of `data` (up to `size`) into `target`."""

    @abstractmethod
    def emit_build(self, code: _BuildCode, value: str) -> None:
        """Write code that appends the encoding of the expression `value`."""

    def _parse(self, stream: BinaryIO, context: Any, path: str) -> Any:  # noqa: ARG002
        return self.read(stream)

    def _build(self, obj: Any, stream: BinaryIO, context: Any, path: str) -> Any:  # noqa: ARG002
        self.write(obj, stream)
        return obj


class Fixed(WireConstruct):
    """A number or boolean, by its code in the struct module."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.struct = struct.Struct(">" + layout)
        self.min_size = self.struct.size

    def read(self, stream: BinaryIO) -> Any:
        return self.struct.unpack(_read(stream, self.min_size))[0]

    def write(self, obj: Any, stream: BinaryIO) -> None:
        stream.write(self.struct.pack(obj))

    def emit_parse(self, code: _ParseCode, target: str) -> None:
        code.fixed(self.layout, target)

    def emit_build(self, code: _BuildCode, value: str) -> None:
        code.fixed(self.layout, value)


class Uuid(WireConstruct):
    """An id: 16 raw bytes."""

    min_size = 16

    def read(self, stream: BinaryIO) -> UUID:
        return uuid_from_bytes(_read(stream, 16))

    def write(self, obj: UUID, stream: BinaryIO) -> None:
        stream.write(obj.bytes)

    def emit_parse(self, code: _ParseCode, target: str) -> None:
        code.fixed("16s", target)

    def emit_build(self, code: _BuildCode, value: str) -> None:
        code.fixed("16s", f"{value}.int.to_bytes(16, 'big')")


class _Counted(WireConstruct):
    """What opens with a length or count: an integer (-1 is null) or, if compact, the varint of one more (0 is null)."""

    def __init__(self, head: str, *, compact: bool, nullable: bool) -> None:
        super().__init__()
        self.head = head
        self.compact = compact
        self.nullable = nullable
        self.min_size = 1 if compact else struct.calcsize(head)

    def _parse_head(self, stream: BinaryIO) -> int:
        if self.compact:
            count = _read_uvarint(stream) - 1
        else:
            count = struct.unpack(f">{self.head}", _read(stream, struct.calcsize(self.head)))[0]
        if count < (-1 if self.nullable else 0):
            raise Malformed(f"a length of {count}")
        return count

    def _build_head(self, count: int, stream: BinaryIO) -> None:
        assert count >= 0 or self.nullable, "null where the version has no null"
        stream.write(encode_uvarint(count + 1) if self.compact else struct.pack(f">{self.head}", count))

    @contextmanager
    def _emit_parse_head(self, code: _ParseCode, target: str) -> Iterator[str]:
        """Write the reading of the head; the body of the `with` writes what follows if it is not null."""
        count = code.temporary("n")
        if self.compact:
            code.fixed("B", count)
            with code.block(f"if {count} > 127:"):
                code.line(f"{count}, pos = finish_uvarint(data, pos, {count})")
            code.line(f"{count} -= 1")
        else:
            code.fixed(self.head, count)
        with code.block(f"if {count} < 0:"):
            if self.nullable:
                if not self.compact:
                    with code.block(f"if {count} != -1:"):
                        code.line(f"malformed('a length of %d' % {count})")
                code.line(f"{target} = None")
            else:
                code.line(f"malformed('a length of %d' % {count})")
        with code.block("else:"):
            yield count

    def _emit_build_head(self, code: _BuildCode, count: str) -> None:
        """Write the head for the expression `count`, -1 for null."""
        if self.compact:
            code.line(f"append(SHORT[{count} + 1] if {count} < 127 else encode_uvarint({count} + 1))")
        else:
            code.fixed(self.head, count)


class _Blob(_Counted):
    """Bytes behind a length: strings, bytes and records."""

    def read(self, stream: BinaryIO) -> Any:
        count = self._parse_head(stream)
        return None if count < 0 else self._from_bytes(_read(stream, count))

    def write(self, obj: Any, stream: BinaryIO) -> None:
        data = b"" if obj is None else self._to_bytes(obj)
        self._build_head(-1 if obj is None else len(data), stream)
        stream.write(data)

    def _from_bytes(self, data: bytes) -> Any:
        return data

    def _to_bytes(self, value: Any) -> bytes:
        return cast(bytes, value)

    slice_code: str
    check_code: str | None = None

    def emit_parse(self, code: _ParseCode, target: str) -> None:
        with self._emit_parse_head(code, target) as count:
            end = code.temporary("end")
            code.line(f"{end} = pos + {count}")
            with code.block(f"if {end} > size:"):
                code.line(f"malformed('%d bytes announced, %d left' % ({count}, size - pos))")
            if self.compact and self.check_code:
                code.line(self.check_code.format(count=count))
            code.line(f"{target} = {self.slice_code.format(end=end)}")
            code.line(f"pos = {end}")

    # How the generated builder gets the bytes of a value and their number.
    data_code = "{value}"
    size_code = "len({data})"

    def emit_build(self, code: _BuildCode, value: str) -> None:
        data, count = code.temporary("data"), code.temporary("n")
        code.aside(f"{data} = {value}")
        if self.nullable:
            code.aside(f"if {data} is None:")
            code.aside(f"    {data}, {count} = EMPTY, -1")
            code.aside("else:")
            code.depth += 1
        if self.data_code != "{value}":
            code.aside(f"{data} = {self.data_code.format(value=data)}")
        code.aside(f"{count} = {self.size_code.format(data=data)}")
        if self.nullable:
            code.depth -= 1
        self._emit_build_head(code, count)
        code.line(f"append({data})")


class Text(_Blob):
    """A string: UTF-8, at most 32767 bytes."""

    slice_code = "str(data[pos:{end}], 'utf-8')"
    check_code = "if {count} > 32767: malformed('a string of %d bytes' % {count})"
    data_code = "{value}.encode()"

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__("h", compact=compact, nullable=nullable)

    def _from_bytes(self, data: bytes) -> str:
        if len(data) > _MAX_STRING:
            raise Malformed(f"a string of {len(data)} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Malformed("a string that is not UTF-8") from error

    def _to_bytes(self, value: str) -> bytes:
        return value.encode()

    def _emit_build_head(self, code: _BuildCode, count: str) -> None:
        if self.compact:
            code.line(f"append(SHORT[{count} + 1] if {count} < 127 else compact_string_head({count}))")
        else:
            code.fixed(self.head, count)


class Blob(_Blob):
    """Bytes, copied out of the input."""

    slice_code = "bytes(data[pos:{end}])"

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__("i", compact=compact, nullable=nullable)


class RecordsBlob(_Blob):
    """Record batches: parsed into a memoryview over the input; an Opaque is built into itself, in its place."""

    slice_code = "memoryview(data)[pos:{end}]"
    size_code = "records_size({data})"

    def __init__(self, *, compact: bool, nullable: bool) -> None:
        super().__init__("i", compact=compact, nullable=nullable)

    def _from_bytes(self, data: bytes) -> memoryview:
        return memoryview(data)


class Array(_Counted):
    """A count and so many elements."""

    def __init__(self, element: WireConstruct, *, compact: bool, nullable: bool) -> None:
        super().__init__("i", compact=compact, nullable=nullable)
        self.element = element

    def read(self, stream: BinaryIO) -> list[Any] | None:
        count = self._parse_head(stream)
        if count > _remaining(stream) // self.element.min_size:
            raise Malformed(f"{count} elements in {_remaining(stream)} bytes")
        return None if count < 0 else [self.element.read(stream) for _ in range(count)]

    def write(self, obj: list[Any] | None, stream: BinaryIO) -> None:
        self._build_head(-1 if obj is None else len(obj), stream)
        for value in obj or ():
            self.element.write(value, stream)

    def emit_parse(self, code: _ParseCode, target: str) -> None:
        element = self.element
        with self._emit_parse_head(code, target) as count:
            least = f"{count} * {element.min_size}" if element.min_size > 1 else count
            with code.block(f"if {least} > size - pos:"):
                code.line(f"malformed('%d elements in %d bytes' % ({count}, size - pos))")
            if isinstance(element, Fixed):
                code.line(f"{target} = list(unpack_from('>%d{element.layout}' % {count}, data, pos))")
                code.line(f"pos += {least}")
                return
            items, item, append = code.temporary("items"), code.temporary("item"), code.temporary("append")
            code.line(f"{target} = {items} = []")
            code.line(f"{append} = {items}.append")
            with code.block(f"for _ in range({count}):"):
                element.emit_parse(code, item)
                code.line(f"{append}({item})")

    def emit_build(self, code: _BuildCode, value: str) -> None:
        element, items, item, count = self.element, code.temporary("items"), code.temporary("item"), code.temporary("n")
        code.aside(f"{items} = {value}")
        if self.nullable:
            code.aside(f"if {items} is None:")
            code.aside(f"    {items}, {count} = (), -1")
            code.aside("else:")
            code.aside(f"    {count} = len({items})")
        else:
            code.aside(f"{count} = len({items})")
        self._emit_build_head(code, count)
        if isinstance(element, Fixed):
            code.line(f"append(pack('>%d{element.layout}' % max({count}, 0), *{items}))")
            return
        with code.block(f"for {item} in {items}:"):
            element.emit_build(code, item)


class Nullable(WireConstruct):
    """A struct behind an int8: 1, or -1 for null (KIP-893)."""

    min_size = 1

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def read(self, stream: BinaryIO) -> Any:
        (marker,) = struct.unpack(">b", _read(stream, 1))
        if marker < -1:
            raise Malformed(f"a null marker of {marker}")
        return None if marker < 0 else self.body.read(stream)

    def write(self, obj: Any, stream: BinaryIO) -> None:
        stream.write(b"\xff" if obj is None else b"\x01")
        if obj is not None:
            self.body.write(obj, stream)

    def emit_parse(self, code: _ParseCode, target: str) -> None:
        marker = code.temporary("marker")
        code.fixed("b", marker)
        with code.block(f"if {marker} < 0:"):
            with code.block(f"if {marker} != -1:"):
                code.line(f"malformed('a null marker of %d' % {marker})")
            code.line(f"{target} = None")
        with code.block("else:"):
            value = code.temporary("item")
            self.body.emit_parse(code, value)
            code.line(f"{target} = {value}")

    def emit_build(self, code: _BuildCode, value: str) -> None:
        held = code.temporary("item")
        code.aside(f"{held} = {value}")
        with code.block(f"if {held} is None:"):
            code.line("append(NULL_STRUCT)")
        with code.block("else:"):
            code.fixed("b", "1")
            self.body.emit_build(code, held)


class Body(WireConstruct):
    """The fields of a message or struct in one version, and behind them in flexible versions the tagged ones."""

    def __init__(self, cls: type, version: int, *, flexible: bool) -> None:
        super().__init__()
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.plain: list[tuple[Field, WireConstruct]] = []
        self.tagged: list[tuple[Field, WireConstruct]] = []
        self.absent: list[Field] = []
        for field in schema_of(cls).fields:
            if version not in field.versions:
                self.absent.append(field)
            elif version in field.tagged:
                self.tagged.append((field, _construct_of(field, version, flexible=flexible)))
            else:
                self.plain.append((field, _construct_of(field, version, flexible=flexible)))
        self.tagged.sort(key=lambda pair: cast(int, pair[0].tag))
        assert flexible or not self.tagged, f"version {version} of {cls.__name__} has tags but is not flexible"
        self.min_size = max(1, sum(construct.min_size for _, construct in self.plain) + flexible)

    def read(self, stream: BinaryIO) -> Any:
        value = object.__new__(self.cls)
        for field, construct in self.plain:
            setattr(value, field.name, construct.read(stream))
        for field in [*self.absent, *(field for field, _ in self.tagged)]:
            setattr(value, field.name, field.fresh_default())
        if self.flexible:
            self._read_tags(value, stream)
        return value

    def _read_tags(self, value: Any, stream: BinaryIO) -> None:
        known = {field.tag: (field, construct) for field, construct in self.tagged}
        last = -1
        for _ in range(_read_uvarint(stream)):
            tag, size = _read_uvarint(stream), _read_uvarint(stream)
            if tag <= last:
                raise Malformed(f"tag {tag} behind tag {last}")
            last = tag
            if size > _remaining(stream):
                raise Malformed(f"tagged field {tag} exceeds the message")
            end = stream.tell() + size
            if tag in known:
                field, construct = known[tag]
                setattr(value, field.name, construct.read(stream))
                if stream.tell() != end:
                    raise Malformed(f"tagged field {tag} is not of its size")
            stream.seek(end)

    def write(self, obj: Any, stream: BinaryIO) -> None:
        for field in self.absent:
            if not field.ignorable and getattr(obj, field.name) != field.default and field.default is not MISSING:
                _not_in_version(self.cls.__name__, field.name, self.version)
        for field, construct in self.plain:
            construct.write(getattr(obj, field.name), stream)
        if self.flexible:
            sent = [pair for pair in self.tagged if not _is_left_out(pair[0], getattr(obj, pair[0].name))]
            stream.write(encode_uvarint(len(sent)))
            for field, construct in sent:
                data = construct.build(getattr(obj, field.name))
                stream.write(encode_uvarint(cast(int, field.tag)) + encode_uvarint(len(data)) + data)

    def emit_parse(self, code: _ParseCode, target: str) -> None:
        code.line(f"{target} = new({code.bind(self.cls.__name__, self.cls)})")
        for field in [*self.absent, *(field for field, _ in self.tagged)]:
            code.aside(f"{target}.{field.name} = {_literal(code, field.fresh_default())}")
        for field, construct in self.plain:
            if isinstance(construct, Body):  # a struct is filled under a name of its own
                inner = code.temporary("item")
                construct.emit_parse(code, inner)
                code.line(f"{target}.{field.name} = {inner}")
            else:
                construct.emit_parse(code, f"{target}.{field.name}")
        if self.flexible:
            count = code.temporary("tags")
            code.fixed("B", count)
            with code.block(f"if {count}:"):
                with code.block(f"if {count} > 127:"):
                    code.line(f"{count}, pos = finish_uvarint(data, pos, {count})")
                arguments = f"data, pos, size, {count}"
                if self.tagged:
                    code.line(f"pos = {self._emit_parse_tags(code)}({target}, {arguments})")
                else:
                    code.line(f"pos = skip_tags({arguments})")

    def _emit_parse_tags(self, outer: _ParseCode) -> str:
        """Write the function that reads tagged fields; most messages come without any and never call it."""
        name = outer.temporary("parse_tags_")
        code = _ParseCode(outer.generator)
        code.line("last = -1")
        with code.block("for _ in range(count):"):
            code.line("tag, pos = decode_uvarint(data, pos)")
            code.line("length, pos = decode_uvarint(data, pos)")
            with code.block("if tag <= last:"):
                code.line("malformed('tag %d behind tag %d' % (tag, last))")
            code.line("last = tag")
            code.line("tag_end = pos + length")
            with code.block("if tag_end > size:"):
                code.line("malformed('tagged field %d exceeds the message' % tag)")
            for number, (field, construct) in enumerate(self.tagged):
                with code.block(f"{'elif' if number else 'if'} tag == {field.tag}:"):
                    held = code.temporary("item")
                    construct.emit_parse(code, held)
                    code.line(f"value.{field.name} = {held}")
            with code.block("else:"):
                code.line("pos = tag_end")
            with code.block("if pos != tag_end:"):
                code.line("malformed('tagged field %d is not of its size' % tag)")
        code.line("return pos")
        code.function(f"{name}(value, data, pos, size, count)")
        return name

    def emit_build(self, code: _BuildCode, value: str) -> None:
        for field in self.absent:
            if not field.ignorable and field.default is not MISSING:
                complaint = f"not_in_version('{self.cls.__name__}', '{field.name}', {self.version})"
                code.aside(f"if {_differs(code, field, f'{value}.{field.name}')}: {complaint}")
        for field, construct in self.plain:
            if isinstance(construct, Body):
                inner = code.temporary("item")
                code.aside(f"{inner} = {value}.{field.name}")
                construct.emit_build(code, inner)
            else:
                construct.emit_build(code, f"{value}.{field.name}")
        if not self.flexible:
            return
        if not self.tagged:
            code.fixed("B", "0")
            return
        some = " or ".join(_differs(code, field, f"{value}.{field.name}") for field, _ in self.tagged)
        code.line(f"append({self._emit_build_tags(code)}({value}) if {some} else ZERO)")

    def _emit_build_tags(self, outer: _BuildCode) -> str:
        name = outer.temporary("build_tags_")
        code = _BuildCode(outer.generator)
        code.line("fields = []")
        for field, construct in self.tagged:
            with code.block(f"if {_differs(code, field, f'value.{field.name}')}:"):
                code.line("parts = []")
                code.line("append = parts.append")
                held = code.temporary("item")
                code.line(f"{held} = value.{field.name}")
                construct.emit_build(code, held)
                code.line("body = join(parts)")
                tag = code.bind(f"TAG_{field.tag}", encode_uvarint(cast(int, field.tag)))
                code.line(f"fields.append({tag} + encode_uvarint(len(body)) + body)")
        code.line("return encode_uvarint(len(fields)) + join(fields)")
        code.function(f"{name}(value)")
        return name


def _is_left_out(field: Field, value: Any) -> bool:
    """Whether a tagged field is not sent: at its default, or a struct that equals the default instance."""
    if value is None and _none_means_left_out(field):
        return True
    default = cast(Callable[[], Any], field.kind)() if _none_means_left_out(field) else field.default
    return bool(value == default)


def _none_means_left_out(field: Field) -> bool:
    never_null = field.nullable.lowest > field.nullable.highest
    return never_null and not field.is_array and not isinstance(field.kind, Primitive)


def _literal(code: _Code, value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str | bytes | list):
        return repr(value)
    return code.bind("DEFAULT", value)


def _differs(code: _Code, field: Field, value: str) -> str:
    """An expression that tells whether `value` is not at the field's default."""
    default = field.default
    if default is None:
        if not _none_means_left_out(field):
            return f"{value} is not None"
        instance = code.bind(f"DEFAULT_{cast(type, field.kind).__name__}", cast(Callable[[], Any], field.kind)())
        return f"({value} is not None and {value} != {instance})"
    if type(default) is list:
        return f"{value} != []"
    if isinstance(default, UUID):
        literal = _literal(code, default)
        return f"({value} is not {literal} and {value} != {literal})"
    return f"{value} != {_literal(code, default)}"


def _construct_of(field: Field, version: int, *, flexible: bool) -> WireConstruct:
    nullable = version in field.nullable
    inside_nullable = nullable and not field.is_array
    element: WireConstruct
    if isinstance(field.kind, Primitive):
        match field.kind.name:
            case "string":
                element = Text(compact=flexible, nullable=inside_nullable)
            case "bytes":
                element = Blob(compact=flexible, nullable=inside_nullable)
            case "records":
                element = RecordsBlob(compact=flexible, nullable=inside_nullable)
            case "uuid":
                element = Uuid()
            case name:
                element = Fixed(_INTEGERS[name])
    else:
        body = Body(field.kind, version, flexible=flexible)
        element = Nullable(body) if inside_nullable else body
    return Array(element, compact=flexible, nullable=nullable) if field.is_array else element


def construct_for(cls: type, version: int) -> Body:
    """The construct of a message class in one version; KafkaError UNSUPPORTED_VERSION if it has no such version."""
    schema: Schema = schema_of(cls)
    if version not in schema.versions:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{cls.__name__} has no version {version}")
    return Body(cls, version, flexible=version in schema.flexible)


_HELPERS: dict[str, object] = {
    "EMPTY": b"", "NULL_STRUCT": b"\xff", "SHORT": SHORT, "ZERO": b"\0",
    "compact_string_head": _compact_string_head, "decode_uvarint": decode_uvarint, "encode_uvarint": encode_uvarint,
    "finish_uvarint": finish_uvarint, "join": b"".join, "malformed": _malformed, "new": object.__new__,
    "not_in_version": _not_in_version, "pack": struct.pack, "records_size": _records_size, "skip_tags": skip_tags,
    "unpack_from": struct.unpack_from, "uuid_from_bytes": uuid_from_bytes,
}  # fmt: skip


def _execute(generator: CodeGen, name: str, construct: Body) -> Any:
    source = generator.toString()
    namespace = _HELPERS | generator.linkedinstances
    title = f"<{name} of {construct.cls.__name__} version {construct.version}>"
    exec(compile(source, title, "exec"), namespace)  # noqa: S102
    function = namespace[name]
    function.source = source
    return function


def compile_parser(construct: Body) -> Parser:
    """Generate the function that parses what `construct` parses; its source is at `.source`."""
    generator = CodeGen()
    code = _ParseCode(generator)
    construct.emit_parse(code, "value")
    code.line("return value, pos")
    code.function("parse(data, pos, size)")
    return cast(Parser, _execute(generator, "parse", construct))


def compile_builder(construct: Body) -> Builder:
    """Generate the function that builds what `construct` builds; its source is at `.source`."""
    generator = CodeGen()
    code = _BuildCode(generator)
    construct.emit_build(code, "value")
    code.function("build(value, append)")
    return cast(Builder, _execute(generator, "build", construct))
