"""Declares settings. Each is declared once, with its type, default, bounds, effect and description.

A class under `@settings` is an immutable dataclass whose attributes are settings. The attribute's name determines
Kafka's name: `replica_lag_time_max_ms` is `replica.lag.time.max.ms`. Its annotation, such as `int`, `Long`,
`Secret` or `str | None`, determines Kafka's type. The declaration is used to read properties files, `--override` and
environment variables, to answer DescribeConfigs, to validate IncrementalAlterConfigs, and to write
docs/configuration.md.

kbroker does not implement all of Kafka's keys. A key without effect is not an attribute; see without_effect.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar, cast, dataclass_transform

from kbroker.config.values import InvalidValue, Kind, Value, parse, to_text

T = TypeVar("T")

KB = 1 << 10
MB = 1 << 20
GB = 1 << 30
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1


class Dynamic(Enum):
    """Whether and where a key can be set while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Effect(Enum):
    """How kbroker treats a key."""

    ENFORCED = "enforced"
    HARMLESS = "no effect"
    REFUSED = "refused"


@dataclass(eq=False, slots=True)
class Setting:
    """The declaration of one key.

    Shape   synonyms are the broker keys that a topic key falls back to, strongest first, each with the factor that
            converts its unit to that of the topic key; warn gives a warning about a valid value
    Units   in the key's name (`.ms`, `.bytes`), as in Kafka
    """

    default: Value = None
    _: KW_ONLY
    kind: Kind = Kind.UNKNOWN
    name: str = ""
    doc: str = ""
    at_least: float | None = None
    at_most: float | None = None
    also: int | None = None
    one_of: tuple[str, ...] = ()
    check: Callable[[Any], str | None] | None = None
    warn: Callable[[Any], str | None] | None = None
    warn_below: int | None = None
    dynamic: Dynamic = Dynamic.READ_ONLY
    effect: Effect = Effect.ENFORCED
    why: str = ""
    synonyms: tuple[tuple[str, int], ...] = ()
    internal: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether the value is hidden."""
        return self.kind in (Kind.PASSWORD, Kind.UNKNOWN)

    @property
    def attribute(self) -> str:
        """The attribute's name in the area's class."""
        return self.name.replace(".", "_")

    @property
    def default_text(self) -> str | None:
        """The default in Kafka's notation; None if there is none."""
        return to_text(self.default)

    def parse(self, text: str) -> Value:
        """Parse a text and check the bounds of this key.

        Errors  InvalidValue, with Kafka's message
        """
        value = parse(self.name, self.kind, text)
        self.validate(value)
        return value

    def validate(self, value: Value) -> None:
        """Check the bounds as Kafka's validators do. Errors: InvalidValue, with Kafka's message."""
        if isinstance(value, int | float) and not isinstance(value, bool) and value != self.also:
            self._validate_number(value)
        if self.one_of and value is not None:
            for element in value if isinstance(value, tuple) else (value,):
                if element not in self.one_of:
                    raise InvalidValue(self.name, element, f"String must be one of: {', '.join(self.one_of)}")
        if self.check is not None and (why := self.check(value)) is not None:
            raise InvalidValue(self.name, f"[{', '.join(value)}]" if isinstance(value, tuple) else to_text(value), why)

    def _validate_number(self, value: float) -> None:
        low = self.at_least is not None and value < self.at_least
        high = self.at_most is not None and value > self.at_most
        if self.also is not None and (low or high):
            why = f"Value must be between {self.at_least} and {self.at_most} or equal to {self.also}"
            raise InvalidValue(self.name, to_text(value), why)
        if low:
            raise InvalidValue(self.name, to_text(value), f"Value must be at least {self.at_least}")
        if high:
            raise InvalidValue(self.name, to_text(value), f"Value must be no more than {self.at_most}")


Short: TypeAlias = int
Long: TypeAlias = int
_KINDS = {
    "bool": Kind.BOOLEAN,
    "int": Kind.INT,
    "Short": Kind.SHORT,
    "Long": Kind.LONG,
    "float": Kind.DOUBLE,
    "str": Kind.STRING,
    "tuple[str, ...]": Kind.LIST,
    "Secret": Kind.PASSWORD,
}


def setting(default: Any = None, **how: Any) -> Any:
    """Declare one attribute of a class under `@settings`; the arguments are those of `Setting`."""
    return Setting(default, **how)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, dataclasses.field))
def settings(cls: type[T]) -> type[T]:
    """Turn a class of settings into an immutable dataclass; its `SETTINGS` holds the declarations."""
    declared: list[Setting] = []
    for attribute, annotation in cls.__annotations__.items():
        one = vars(cls)[attribute]
        if isinstance(one, dataclasses.Field):
            continue  # not a setting: the code that creates the object sets it
        assert isinstance(one, Setting), f"{cls.__name__}.{attribute} is not declared by setting()"
        one.name, one.kind = attribute.replace("_", "."), _KINDS[annotation.removesuffix(" | None")]
        declared.append(one)
        setattr(cls, attribute, one.default)
    # dataclass() would compile methods with dozens of names for each class. That takes a twentieth of a broker's start.
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    made.__init__, made.__eq__, made.__setattr__ = _take, _equals, _refuse
    made.SETTINGS = tuple(declared)
    return cast(type[T], made)


def _take(self: Any, **given: Any) -> None:
    """The constructor of the classes under `@settings`. Defaults are attributes of the class."""
    for field in dataclasses.fields(self):
        if field.name in given:
            vars(self)[field.name] = given.pop(field.name)
        elif field.default_factory is not dataclasses.MISSING:
            vars(self)[field.name] = field.default_factory()
    if given:
        raise TypeError(f"{type(self).__name__} has no attribute {', '.join(given)}")


def _equals(self: Any, other: object) -> bool:
    return type(self) is type(other) and vars(self) == vars(other)


def _refuse(self: Any, name: str, _: object) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot change")


def declarations(cls: type[Any]) -> tuple[Setting, ...]:
    """The settings of a class under `@settings`."""
    declared: tuple[Setting, ...] = cls.SETTINGS
    return declared
