"""Declarations: a message is a class whose annotations carry wire types.

    @message(api_key=12, versions="0-4", flexible="4+")
        group_id: string
        generation_id: int32
        member_id: string
        group_instance_id: string | None = field(versions="3+", default=None)

The order of the annotations is the order on the wire, versions use Kafka's notation, and an attribute is the snake_case
of Kafka's field name. The decorators make a class with slots, a keyword-only constructor, equality and a repr. The
expensive parts (the constructor, the resolved fields) are made at first use, because a broker loads some 150 of these
classes at its start and uses a third of them.

`X | None` means nullable in every version of the field unless `nullable` says otherwise. A *tagged* struct that Kafka
declares as not nullable has `default=None, nullable="none"`: None means that it is left out, which equals Kafka's
default instance on the wire without an object for each absent field. A tagged struct that may be null and whose absence
means the default instance has `default=EMPTY_STRUCT`.

Source: Kafka's message generator (its README under clients/src/main/resources/common/message), KIP-482.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, ParamSpec, TypeVar, dataclass_transform

from wire.types import Primitive

C = TypeVar("C")
P = ParamSpec("P")
_HIGHEST = 32767


class Versions(NamedTuple):
    """A range of versions, both ends included; empty if `lowest > highest`."""

    lowest: int
    highest: int

    @staticmethod
    @cache
    def parse(text: str) -> Versions:
        """Read Kafka's notation: "3+", "0-14", "2" or "none"."""
        if text == "none":
            return Versions(0, -1)
        match = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
        if match is None:
            raise ValueError(f"{text!r} is not a range of versions")
        lowest = int(match[1])
        return Versions(lowest, _HIGHEST if match[2] else int(match[3] or lowest))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest

    def __str__(self) -> str:
        if self.lowest > self.highest:
            return "none"
        if self.highest == _HIGHEST:
            return f"{self.lowest}+"
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest}-{self.highest}"


MISSING: Any = dataclasses.MISSING
"""The absence of a default, because None is a value."""

EMPTY_STRUCT: Any = object()
"""The default of a struct field: a struct with its own defaults, created for each message."""


class FieldOptions(NamedTuple):
    """The arguments of `field()`, unresolved."""

    default: Any
    versions: str
    nullable: str | None
    tag: int | None
    tagged: str | None
    ignorable: bool


def field(
    *,
    default: Any = MISSING,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare what the annotation alone does not express.

    default    the value if the constructor is not given one, and if a version lacks the field; a list is copied
    versions   the versions that have the field
    nullable   the versions in which it may be null (default: all, if the annotation says `| None`)
    tag        its tag, if it is a tagged field; `tagged` the versions in which it is one (default: all of its versions)
    ignorable  whether a value other than the default is dropped silently if a version lacks the field
    """
    return FieldOptions(default, versions, nullable, tag, tagged, ignorable)


class Field(NamedTuple):
    """One field of a message or struct, resolved.

    kind is a Primitive or, for a struct, its class; `default` is MISSING if the constructor requires the field.
    """

    name: str
    kind: Primitive | type
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    default: Any

    def fresh_default(self) -> Any:
        """A fresh copy of the default (a list or a struct is mutable)."""
        if self.default is EMPTY_STRUCT:
            assert isinstance(self.kind, type), f"{self.name} is no struct"
            return self.kind()
        return [] if type(self.default) is list else self.default


@dataclasses.dataclass(eq=False)
class Schema:
    """The declaration of a class: `schema_of(cls)`.

    Shape   kind is "request", "response", "struct" or "stored"; declared has each field's annotation and value in the
            class's body
    """

    name: str
    kind: str
    versions: Versions
    flexible: Versions
    declared: dict[str, tuple[Any, Any]]
    api_key: int | None = None
    record_type: int | None = None

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The fields in wire order; tagged ones in the place of their declaration."""
        return tuple(_resolve(self.name, name, *pair) for name, pair in self.declared.items())


def _resolve(owner: str, name: str, annotation: Any, given: Any) -> Field:
    options = given if isinstance(given, FieldOptions) else field(default=given)
    is_nullable, is_array = False, False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation,) = (part for part in typing.get_args(annotation) if part is not type(None))
        is_nullable = True
    if typing.get_origin(annotation) is list:
        (annotation,) = typing.get_args(annotation)
        is_array = True
    metadata = getattr(annotation, "__metadata__", None)
    kind = metadata[0] if metadata else annotation
    assert isinstance(kind, Primitive) or is_struct(kind), f"{owner}.{name} has no wire type: {annotation!r}"
    versions = Versions.parse(options.versions)
    nullable = Versions.parse(options.nullable or "0+") if is_nullable else Versions(0, -1)
    tagged = Versions.parse(options.tagged or options.versions) if options.tag is not None else Versions(0, -1)
    return Field(name, kind, is_array, versions, nullable, options.tag, tagged, options.ignorable, options.default)


class Message:
    """The base of the decorated classes: constructor, equality, repr. Messages are mutable and so not hashable.

    Shape  unknown_tagged_fields: (tag, bytes), ascending, the tagged fields of a stored record (or a struct in one)
           that its version does not declare; the slot is empty without any. Encoding the record writes them again
    """

    __slots__ = ("unknown_tagged_fields",)
    unknown_tagged_fields: tuple[tuple[int, bytes], ...]
    __schema__: Schema
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        # The first instance of a class compiles the class's own constructor, which replaces this one.
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _unknown(self) == _unknown(other) and all(
            getattr(self, name) == getattr(other, name) for name in _names(self)
        )

    def __repr__(self) -> str:
        parts = [f"{name}={_shown(getattr(self, name))}" for name in _names(self)]
        parts += [f"tag {tag}={_shown(data)}" for tag, data in _unknown(self)]
        return f"{type(self).__name__}({', '.join(parts)})"


def _names(value: Message) -> tuple[str, ...]:
    return typing.cast(tuple[str, ...], type(value).__slots__)


def _unknown(value: object) -> tuple[tuple[int, bytes], ...]:
    return getattr(value, "unknown_tagged_fields", ())


def _shown(value: object) -> str:
    # Bytes are record batches or secrets: neither belongs in a log.
    return f"<{len(value)} bytes>" if isinstance(value, bytes | bytearray | memoryview) else repr(value)


def bare(cls: type[C]) -> Callable[[], C]:
    """Makes instances of a class without calling its constructor; takes two thirds of the time of object.__new__."""
    return partial(object.__new__, cls)


def maker(cls: Callable[P, C]) -> Callable[P, C]:
    """A function that does what a call of the class does, in half the time: Python passes keyword arguments to a
    constructor in a new dictionary, but not to a function. For the handlers of the most frequent requests.
    """
    return typing.cast(Callable[P, C], _constructor(typing.cast(type[Message], cls), makes=True))


def _constructor(cls: type[Message], *, makes: bool = False) -> Callable[..., Any]:
    """The class's own __init__; or, if it `makes`, a function that returns an instance."""
    parameters, body = [], []
    defaults: dict[str, Any] = {"MISSING": MISSING}
    for f in cls.__schema__.fields:
        parameter, value = f"{f.name}=MISSING", f.name
        if f.default is MISSING:
            parameter = f.name
        elif type(f.default) is list:
            value = f"[] if {f.name} is MISSING else {f.name}"
        elif f.default is EMPTY_STRUCT:
            defaults[f"new_{f.name}"] = f.fresh_default
            value = f"new_{f.name}() if {f.name} is MISSING else {f.name}"
        else:
            parameter = f"{f.name}=default_{f.name}"
            defaults[f"default_{f.name}"] = f.default
        parameters.append(parameter)
        body.append(f"self.{f.name} = {value}")
    if parameters:
        parameters.insert(0, "*")
    if makes:
        defaults["new"] = bare(cls)
        body = ["self = new()", *body, "return self"]
    else:
        parameters.insert(0, "self")
    source = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"])
    exec(compile(source, f"<constructor of {cls.__name__}>", "exec"), defaults)  # noqa: S102  (made from declarations, not from input)
    constructor: Callable[..., Any] = defaults["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor


def _declare(
    cls: type, kind: str, versions: str, flexible: str, *, api_key: int | None = None, record_type: int | None = None
) -> type:
    annotations = inspect.get_annotations(cls)
    namespace = {k: v for k, v in cls.__dict__.items() if k not in annotations and k not in ("__dict__", "__weakref__")}
    declared = {name: (annotation, cls.__dict__.get(name, MISSING)) for name, annotation in annotations.items()}
    namespace["__slots__"] = tuple(annotations)
    namespace["__schema__"] = Schema(
        cls.__name__, kind, Versions.parse(versions), Versions.parse(flexible), declared, api_key, record_type
    )
    return type(cls.__name__, (Message,), namespace)


NEVER_FLEXIBLE = _HIGHEST + 1
first_flexible: dict[int, int] = {}
"""By api key, for loaded modules, the first flexible version: from there on request headers have tags."""

_requests: dict[int, type] = {}
_responses: dict[int, type] = {}


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def message(*, api_key: int, versions: str, flexible: str) -> Callable[[type[C]], type[C]]:
    """Declare a request or a response (by the end of the class's name) and add it to the registry."""

    def declare(cls: type[C]) -> type[C]:
        is_request = cls.__name__.endswith("Request")
        assert is_request or cls.__name__.endswith("Response"), f"{cls.__name__} is neither a request nor a response"
        declared = _declare(cls, "request" if is_request else "response", versions, flexible, api_key=api_key)
        (_requests if is_request else _responses)[api_key] = declared
        has_flexible = flexible != "none"
        first_flexible[api_key] = Versions.parse(flexible).lowest if has_flexible else NEVER_FLEXIBLE
        return declared

    return declare


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def struct(cls: type[C]) -> type[C]:
    """Declare a struct inside messages; the versions of its fields are versions of the message."""
    return _declare(cls, "struct", "0+", "none")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def stored(*, versions: str, flexible: str, record_type: int | None = None) -> Callable[[type[C]], type[C]]:
    """Declare a record that is stored, not sent; `record_type` is the number in its frame, if it has one."""

    def declare(cls: type[C]) -> type[C]:
        return _declare(cls, "stored", versions, flexible, record_type=record_type)

    return declare


def schema_of(cls: type) -> Schema:
    """The declaration of a message class."""
    schema: Schema = cls.__schema__  # type: ignore[attr-defined]
    return schema


def declared_in(module: types.ModuleType) -> list[type]:
    """The messages and stored records (not the structs) that a module declares or imports, in its order."""
    classes = [value for value in vars(module).values() if isinstance(value, type) and hasattr(value, "__schema__")]
    return [cls for cls in classes if schema_of(cls).kind != "struct"]


def is_struct(cls: object) -> bool:
    """Whether `cls` is a declared struct (and not a message or something else)."""
    return isinstance(cls, type) and hasattr(cls, "__schema__") and schema_of(cls).kind == "struct"


def request_class(api_key: int) -> type | None:
    """The loaded request class of an api key, if there is one."""
    return _requests.get(api_key)


def response_class(api_key: int) -> type | None:
    """The loaded response class of an api key, if there is one."""
    return _responses.get(api_key)
