"""The value of sasl.jaas.config, as Java reads it."""

from __future__ import annotations

import pytest

from kbroker.config.client_properties import translate
from kbroker.config.jaas import parse_jaas
from kbroker.config.values import ConfigError


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.b.PlainLoginModule required username="al" password="x y";', {"username": "al", "password": "x y"}),
        ("PlainLoginModule required\n  user_al='x'\n  n = 5 ;\n", {"user_al": "x", "n": "5"}),
        (r'PlainLoginModule required p="a\"b\\c;=\101\n";', {"p": 'a"b\\c;=A\n'}),
        ("// users\nPlainLoginModule /* all */ required;", {}),
    ],
)
def test_options_are_read_as_in_java(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == ("PlainLoginModule", options)


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "PlainLoginModule", "PlainLoginModule;", "PlainLoginModule required", 'M required a="swordfish"',
        'M required a="swordfish', "M required swordfish;", "M required a=;", 'M required a "swordfish";',
        'M required a="swordfish"; N required;',
    ],
)  # fmt: skip
def test_a_broken_line_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.sasl\.jaas\.config: ") as raised:
        parse_jaas(text, key="x.sasl.jaas.config")
    assert "swordfish" not in str(raised.value)
    assert "swordfish" not in repr(parse_jaas('M required a="swordfish";'))


def test_clients_take_a_token_from_a_file() -> None:
    wanted = {"sasl_oauthbearer_token_file": "/run/token"}
    assert translate({"sasl.oauthbearer.token.endpoint.url": "file:///run/token"})[0] == wanted
    assert translate({"sasl.jaas.config": 'OAuthBearerLoginModule required tokenFile="/run/token";'})[0] == wanted
    assert translate({"sasl.jaas.config": "OAuthBearerLoginModule required;"})[0] == {}
    with pytest.raises(ConfigError, match="only tokens in files"):
        translate({"sasl.oauthbearer.token.endpoint.url": "https://issuer/token"})
