"""Structs and messages as constructs, one for each class and version.

`construct_for(cls, version)` resolves a declaration for one version. `compile_parser` and `compile_builder` turn it
into one Python function each, with construct's code generator. codec.py uses only those. Tests compare the parser with
the construct, and what the builder writes with Kafka's bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

from construct import CodeGen

from wire.codegen import BuildCode, Code, ParseCode, compile_function, tagged_fields
from wire.constructs import Array, Blob, Fixed, RecordsBlob, Text, Uuid, WireConstruct
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.schema import EMPTY_STRUCT, MISSING, Field, Schema, bare, schema_of
from wire.types import Primitive
from wire.varint import Buffer, decode_uvarint, encode_uvarint

Parser = Callable[[Buffer, int, int, int], tuple[Any, int]]
"""(data, position, size, maximum of array elements) -> (message, position after it)"""

Builder = Callable[[Any, list[Any], list[int]], None]
"""(message, parts, opaques): appends the parts of the encoding, and the indexes of the Opaques among them"""


class Nullable(WireConstruct):
    """A struct after an int8: 1, or -1 for null (KIP-893). In a tagged field after a varint: 1, or 0 for null."""

    min_size = 1

    def __init__(self, body: Body, *, tagged: bool) -> None:
        super().__init__()
        self.body = body
        self.tagged = tagged

    def read(self, data: Buffer, position: int) -> tuple[Any, int]:
        if self.tagged:
            marker, position = decode_uvarint(data, position)
            is_null = marker == 0
        else:
            (marker,) = struct.unpack_from(">b", data, position)
            position += 1
            is_null = marker < 0
            if marker < -1:
                raise Malformed(f"a null marker of {marker}")
        return (None, position) if is_null else self.body.read(data, position)

    def emit_parse(self, code: ParseCode, target: str) -> None:
        marker = code.temporary("marker")
        if self.tagged:
            code.line(f"{marker}, pos = decode_uvarint(data, pos)")
        else:
            code.fixed("b", marker)
        with code.block(f"if {marker} {'== 0' if self.tagged else '< 0'}:"):
            if not self.tagged:
                with code.block(f"if {marker} != -1:"):
                    code.line(f"malformed('a null marker of %d' % {marker})")
            code.line(f"{target} = None")
        with code.block("else:"):
            self.body.emit_parse(code, target)

    def emit_build(self, code: BuildCode, value: str) -> None:
        with code.block(f"if {value} is None:"):
            code.line("parts.append(ZERO)" if self.tagged else "parts.append(NULL_STRUCT)")
        with code.block("else:"):
            code.fixed("b", "1")
            self.body.emit_build(code, value)


class Body(WireConstruct):
    """The fields of a message or struct in one version, followed by the tagged ones in flexible versions.

    Tagged fields that the version does not declare are skipped, or kept if `keeps_unknown`: an older broker may rewrite
    a stored record of a newer one.
    """

    may_be_encoded = True

    def __init__(self, cls: type, version: int, *, flexible: bool, keeps_unknown: bool = False) -> None:
        super().__init__()
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.keeps_unknown = keeps_unknown
        self.plain: list[tuple[Field, WireConstruct]] = []
        self.tagged: list[tuple[Field, WireConstruct]] = []
        self.absent: list[Field] = []
        for field in schema_of(cls).fields:
            if version not in field.versions:
                self.absent.append(field)
            elif version in field.tagged:
                self.tagged.append((field, self._construct_of(field, tagged=True)))
            else:
                self.plain.append((field, self._construct_of(field, tagged=False)))
        self.tagged.sort(key=lambda pair: cast(int, pair[0].tag))
        assert flexible or not self.tagged, f"version {version} of {cls.__name__} has tags but is not flexible"
        self.min_size = max(1, sum(construct.min_size for _, construct in self.plain) + flexible)

    def _construct_of(self, field: Field, *, tagged: bool) -> WireConstruct:
        version, flexible = self.version, self.flexible
        nullable = version in field.nullable
        inside_nullable = nullable and not field.is_array
        element: WireConstruct
        if isinstance(field.kind, Primitive):
            match field.kind.name:
                case "string":
                    usual_count = _usual_count(field, nullable=inside_nullable)
                    element = Text(compact=flexible, nullable=inside_nullable, usual_count=usual_count)
                case "bytes":
                    element = Blob(compact=flexible, nullable=inside_nullable)
                case "records":
                    element = RecordsBlob(compact=flexible, nullable=inside_nullable)
                case "uuid":
                    element = Uuid()
                case _:
                    element = Fixed(field.kind.layout)
        else:
            body = Body(field.kind, version, flexible=flexible, keeps_unknown=self.keeps_unknown)
            element = Nullable(body, tagged=tagged) if inside_nullable else body
        if not field.is_array:
            return element
        usual_count = _usual_count(field, nullable=nullable)
        return Array(element, compact=flexible, nullable=nullable, usual_count=usual_count)

    @property
    def name_and_version(self) -> str:
        return f"{self.cls.__name__} version {self.version}"

    def read(self, data: Buffer, position: int) -> tuple[Any, int]:
        value: Any = object.__new__(self.cls)
        for field, construct in self.plain:
            item, position = construct.read(data, position)
            setattr(value, field.name, item)
        for field in [*self.absent, *(field for field, _ in self.tagged)]:
            setattr(value, field.name, field.fresh_default())
        return value, self._read_tags(value, data, position) if self.flexible else position

    def _read_tags(self, value: Any, data: Buffer, position: int) -> int:
        known = {field.tag: (field, construct) for field, construct in self.tagged}
        unknown: list[tuple[int, bytes]] = []
        count, end = decode_uvarint(data, position)
        for tag, start, end in tagged_fields(data, end, len(data), count):  # noqa: B020
            if tag in known:
                field, construct = known[tag]
                item, read_to = construct.read(data, start)
                if read_to != end:
                    raise Malformed(f"tagged field {tag} is not of its size")
                setattr(value, field.name, item)
            elif self.keeps_unknown:
                unknown.append((tag, bytes(data[start:end])))
        if unknown:
            value.unknown_tagged_fields = tuple(unknown)
        return end

    def emit_parse(self, code: ParseCode, target: str) -> None:
        value = target if target.isidentifier() else code.temporary("item")
        code.line(f"{value} = {code.bind(f'new_{self.cls.__name__}', bare(self.cls))}()")
        if value != target:
            code.aside(f"{target} = {value}")
        for field in [*self.absent, *(field for field, _ in self.tagged)]:
            default = f"{code.bind('new_default', field.fresh_default)}()" if field.default is EMPTY_STRUCT else None
            code.aside(f"{value}.{field.name} = {default or _literal(code, field.fresh_default())}")
        for field, construct in self.plain:
            construct.emit_parse(code, f"{value}.{field.name}")
        if self.flexible:
            count = code.temporary("tags")
            code.fixed("B", count)
            with code.block(f"if {count}:"):
                with code.block(f"if {count} > 127:"):
                    code.line(f"{count}, pos = finish_uvarint(data, pos, {count})")
                code.spend(count)
                arguments = f"data, pos, size, {count}"
                if self.tagged or self.keeps_unknown:
                    code.line(f"pos, left = {self._emit_parse_tags(code)}({value}, {arguments}, left)")
                else:
                    code.line(f"pos = skip_tags({arguments})")

    def _emit_parse_tags(self, outer: ParseCode) -> str:
        """Emit the function that reads tagged fields; most messages have none and never call it."""
        name = outer.temporary("parse_tags_")
        code = ParseCode(outer.generator)
        if self.keeps_unknown:
            code.line("unknown = []")
        with code.block("for tag, pos, end in tagged_fields(data, pos, size, count):"):
            for number, (field, construct) in enumerate(self.tagged):
                with code.block(f"{'elif' if number else 'if'} tag == {field.tag}:"):
                    construct.emit_parse(code, f"value.{field.name}")
            with code.block("else:" if self.tagged else "if True:"):
                if self.keeps_unknown:
                    code.line("unknown.append((tag, bytes(data[pos:end])))")
                code.line("pos = end")
            with code.block("if pos != end:"):
                code.line("malformed('tagged field %d is not of its size' % tag)")
        if self.keeps_unknown:
            with code.block("if unknown:"):
                code.line("value.unknown_tagged_fields = tuple(unknown)")
        code.line("return pos, left")
        code.function(f"{name}(value, data, pos, size, count, left)")
        return name

    def emit_build(self, code: BuildCode, value: str) -> None:
        if not value.isidentifier():
            held = code.temporary("item")
            code.aside(f"{held} = {value}")
            value = held
        for field in self.absent:
            if not field.ignorable and field.default is not MISSING:
                complaint = f"not_in_version('{self.cls.__name__}', '{field.name}', {self.version})"
                code.aside(f"if {_differs(code, field, f'{value}.{field.name}')}: {complaint}")
        conditions = [_differs(code, field, f"{value}.{field.name}") for field, _ in self.tagged]
        if self.keeps_unknown:
            conditions.append(f"hasattr({value}, 'unknown_tagged_fields')")
        has_tags = " or ".join(conditions)
        if code.is_usual and has_tags:
            code.leave_if(has_tags)
        for field, construct in self.plain:
            construct.emit_build(code, f"{value}.{field.name}")
        if not self.flexible:
            return
        if code.is_usual or not has_tags:
            code.fixed("B", "0")
        else:
            code.line(f"parts.append({self._emit_build_tags(code)}({value}) if {has_tags} else ZERO)")

    def _emit_build_tags(self, outer: BuildCode) -> str:
        name = outer.temporary("build_tags_")
        code = BuildCode(outer.generator)
        code.line("fields = []")
        for field, construct in self.tagged:
            with code.block(f"if {_differs(code, field, f'value.{field.name}')}:"):
                code.line("parts = []")
                construct.emit_build(code, f"value.{field.name}")
                code.line("body = join(parts)")
                if self.keeps_unknown:
                    code.line(f"fields.append(({field.tag}, encode_uvarint(len(body)) + body))")
                    continue
                tag = code.bind(f"TAG_{field.tag}", encode_uvarint(cast(int, field.tag)))
                code.line(f"fields.append({tag} + encode_uvarint(len(body)) + body)")
        if self.keeps_unknown:
            code.line("return merge_tags(fields, value)")
        else:
            code.line("return encode_uvarint(len(fields)) + join(fields)")
        code.function(f"{name}(value)")
        return name


def none_means_left_out(field: Field) -> bool:
    """Whether None stands for the default instance of a tagged struct, which is not sent."""
    never_null = field.nullable.lowest > field.nullable.highest
    return field.tag is not None and never_null and not field.is_array and not isinstance(field.kind, Primitive)


def _usual_count(field: Field, *, nullable: bool) -> int:
    """The number of an array's elements in messages of the usual shape, 1 for a string; -1 for null."""
    if field.is_array and field.default == []:
        return 0 if field.ignorable else 1
    return -1 if nullable and (field.is_array or field.default is None) else 1


def _literal(code: Code, value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str | bytes | list):
        return repr(value)
    return code.bind("DEFAULT", value)


def _differs(code: Code, field: Field, value: str) -> str:
    """An expression that is true if `value` is not at the field's default."""
    default = field.default
    if default is None:
        if not none_means_left_out(field):
            return f"{value} is not None"
        # Field by field, which is faster than __eq__: a follower's Fetch has such a struct.
        differs = [_differs(code, one, f"{value}.{one.name}") for one in schema_of(cast(type, field.kind)).fields]
        return f"({value} is not None and ({' or '.join(differs)} or hasattr({value}, 'unknown_tagged_fields')))"
    if default is EMPTY_STRUCT:
        return f"{value} != {code.bind(f'DEFAULT_{field.name}', field.fresh_default())}"
    if type(default) is list:
        return f"({value} or {value} is None)"
    if isinstance(default, UUID):
        literal = _literal(code, default)
        return f"({value} is not {literal} and {value} != {literal})"
    return f"{value} != {_literal(code, default)}"


def construct_for(cls: type, version: int) -> Body:
    """The construct of a message class in one version; KafkaError UNSUPPORTED_VERSION if it has no such version."""
    schema: Schema = schema_of(cls)
    if version not in schema.versions:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{cls.__name__} has no version {version}")
    return Body(cls, version, flexible=version in schema.flexible, keeps_unknown=schema.kind == "stored")


def compile_parser(construct: Body) -> Parser:
    """Generate the function that parses the same as `construct`; its source is at `.source`."""
    generator = CodeGen()
    code = ParseCode(generator)
    construct.emit_parse(code, "value")
    code.line("return value, pos")
    code.function("parse(data, pos, size, left)")
    return cast(Parser, compile_function(generator, "parse", f"parser of {construct.name_and_version}"))


def compile_builder(construct: Body) -> Builder:
    """Generate the function that builds what `construct` parses; its source is at `.source`."""
    generator = CodeGen()
    code = BuildCode(generator)
    with code.usual_shape():
        construct.emit_build(code, "value")
    construct.emit_build(code, "value")
    code.function("build(value, parts, opaques)")
    return cast(Builder, compile_function(generator, "build", f"builder of {construct.name_and_version}"))
