"""`ssl.principal.mapping.rules`: which name a client's certificate gives its principal.

A rule is DEFAULT, the whole distinguished name, or RULE:pattern/replacement/ with an optional L or U that converts the
result to lower or upper case. Commas separate rules; the first whose pattern matches the whole name applies. `$1` is
the pattern's first group. A slash in a pattern or replacement is written `\\/`. As in Java, `\\w`, `\\d` and `(?i)`
know only ASCII letters: a rule for `\\w+` must not take a name with a letter that merely looks like one of them.

Source  KIP-371; SslPrincipalMapper of Apache Kafka 4.3.1
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kbroker.config.values import ConfigError

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
_IN_REPLACEMENT: Final = re.compile(r"\\(.)|\$([0-9]+)", re.DOTALL)


class Rule(NamedTuple):
    """One rule; pattern None is DEFAULT, case is "", "L" or "U"."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The principal's name for a distinguished name, None if the rule does not match."""
        if self.pattern is None:
            return name
        if not self.pattern.fullmatch(name):
            return None
        result = self.pattern.sub(self._expanded, name)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result

    def _expanded(self, found: re.Match[str]) -> str:
        groups = found.re.groups

        def replace(part: re.Match[str]) -> str:
            if part[1] is not None:
                return part[1]
            # As in Java, use as many digits as give a group that exists; without one the text stays as it is.
            digits, rest = part[2], ""
            while int(digits) > groups and len(digits) > 1:
                digits, rest = digits[:-1], digits[-1] + rest
            if int(digits) > groups:
                return part[0]
            return (found[int(digits)] or "") + rest

        return _IN_REPLACEMENT.sub(replace, self.replacement)

    def __str__(self) -> str:
        if self.pattern is None:
            return "DEFAULT"
        replacement = f"/{self.replacement}" + (f"/{self.case}" if self.case else "")
        return f"RULE:{self.pattern.pattern}{replacement}"


class PrincipalRules:
    """The rules of one listener. Errors: ConfigError if the text is not valid."""

    def __init__(self, text: str) -> None:
        self.rules: list[Rule] = []
        for found in _SPLITTER.finditer(text.strip()):
            self._add(found[1])

    def _add(self, text: str) -> None:
        parsed = _PARSER.match(text)
        if parsed is None or parsed.end() != len(text):
            raise ConfigError(f"Invalid rule: {text}")
        if parsed[1] is not None:
            self.rules.append(Rule(None))
        elif parsed[2] is not None:
            try:
                self.rules.append(Rule(re.compile(parsed[2], re.ASCII), parsed[3], parsed[4]))
            except (re.error, ValueError) as error:  # ValueError: the flag (?u)
                raise ConfigError(f"Invalid rule: {text}: {error}") from error

    def name(self, distinguished_name: str) -> str | None:
        """The principal's name; None if no rule matches, which refuses the client."""
        for rule in self.rules:
            if (name := rule.apply(distinguished_name)) is not None:
                return name
        return None

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.rules))}]"
