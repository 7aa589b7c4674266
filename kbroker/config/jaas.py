"""Reads login modules in Java's syntax: the value of `sasl.jaas.config`, which is one module with its options,

    org.apache.kafka.common.security.plain.PlainLoginModule required username="al" password="x" user_al="x";

and a file of `java.security.auth.login.config`, in which `KafkaServer { ... };` surrounds the modules of all listeners.

Source  JaasConfig and JaasContext of Apache Kafka 4.3.1; java.io.StreamTokenizer; sun.security.provider.ConfigFile
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.config.values import ConfigError


def _pattern(marks: str) -> re.Pattern[str]:
    quoted = r"""(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    return re.compile(rf"""\s+|//[^\n]*|/\*.*?\*/|{quoted}|(?P<mark>[{marks}])|(?P<word>[^\s{marks}"']+)""", re.DOTALL)


_TOKEN: Final = _pattern("=;")
_IN_FILE: Final = _pattern("=;{}")
_ESCAPED: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


class LoginModule(NamedTuple):
    """A login module: the last part of its class's name, and its options."""

    name: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name})"


def parse_jaas(text: str, *, key: str = "sasl.jaas.config") -> LoginModule:
    """Parse one login module. Errors: ConfigError, which names the key and never the value."""
    tokens = list(_tokens(text, key))
    if not tokens:
        raise ConfigError(f"{key}: it has no login module")
    if len(tokens) < 2 or ";" in (tokens[0], tokens[1]):
        raise ConfigError(f"{key}: after the login module there must be one of {', '.join(_FLAGS)}")
    if ";" not in tokens:
        raise ConfigError(f"{key}: the semicolon at the end is missing")
    end = tokens.index(";")
    if end != len(tokens) - 1:
        raise ConfigError(f"{key}: only one login module is possible")
    return _module(tokens[:end], key)


def parse_jaas_file(text: str, *, key: str) -> dict[tuple[str, str], LoginModule]:
    """Parse a file of `java.security.auth.login.config`: the modules by the name of their part, such as KafkaServer,
    and by their own. Errors: ConfigError, which names the key and no value.
    """
    found: dict[tuple[str, str], LoginModule] = {}
    tokens = list(_tokens(text, key, _IN_FILE))
    while tokens:
        if tokens[1:2] != ["{"] or "}" not in tokens:
            raise ConfigError(f"{key}: each part must be of the form NAME {{ ... }};")
        part, end = _value(tokens[0]), tokens.index("}")
        modules, tokens = tokens[2:end], tokens[end + 1 :]
        if tokens[:1] != [";"]:
            raise ConfigError(f"{key}: there must be a semicolon after the brace that closes {part[:100]}")
        tokens = tokens[1:]
        while modules:
            if ";" in modules[:2] or ";" not in modules:
                raise ConfigError(f"{key}: in {part[:100]} a login module lacks its flag or the semicolon at its end")
            at = modules.index(";")
            module = _module(modules[:at], key)
            found.setdefault((part, module.name), module)
            modules = modules[at + 1 :]
    return found


def _module(tokens: Sequence[str], key: str) -> LoginModule:
    if _value(tokens[1]).lower() not in _FLAGS:
        raise ConfigError(f"{key}: after the login module there must be one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    rest = tokens[2:]
    for at in range(0, len(rest), 3):
        if len(rest) < at + 3 or rest[at + 1] != "=":
            raise ConfigError(f'{key}: each option must be of the form name="value"')
        options[_value(rest[at])] = _value(rest[at + 2])
    return LoginModule(tokens[0].rpartition(".")[2], options)


def _tokens(text: str, key: str, pattern: re.Pattern[str] = _TOKEN) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise ConfigError(f"{key}: a quotation mark is missing")
        if match.lastgroup is not None:
            yield match[0]
        at = match.end()


def _value(token: str) -> str:
    if token[0] not in "\"'":
        return token
    return _ESCAPED.sub(_unescaped, token[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    found = match[1]
    return chr(int(found, 8)) if found[0] in "01234567" else _ESCAPES.get(found, found)
