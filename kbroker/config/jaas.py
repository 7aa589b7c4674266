"""Reads the value of `sasl.jaas.config`: one login module with its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="al" password="x" user_al="x";

Source  JaasConfig of Apache Kafka 4.3.1, which uses java.io.StreamTokenizer
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.config.values import ConfigError

_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<mark>[=;])|(?P<word>[^\s=;"']+)""",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


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
        raise ConfigError(f"{key}: after the login module there must be a flag, such as required")
    if ";" not in tokens:
        raise ConfigError(f"{key}: the semicolon at the end is missing")
    end = tokens.index(";")
    if end != len(tokens) - 1:
        raise ConfigError(f"{key}: only one login module is possible")
    options: dict[str, str] = {}
    rest = tokens[2:end]
    for at in range(0, len(rest), 3):
        if len(rest) < at + 3 or rest[at + 1] != "=":
            raise ConfigError(f'{key}: each option must be of the form name="value"')
        options[_value(rest[at])] = _value(rest[at + 2])
    return LoginModule(tokens[0].rpartition(".")[2], options)


def _tokens(text: str, key: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
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
