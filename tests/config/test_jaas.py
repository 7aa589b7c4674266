"""The value of sasl.jaas.config, as Java reads it."""

from __future__ import annotations

import pytest

from kbroker.config.client_properties import translate
from kbroker.config.jaas import parse_jaas, parse_jaas_file
from kbroker.config.values import ConfigError


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.b.PlainLoginModule required username="al" password="x y";', {"username": "al", "password": "x y"}),
        ("PlainLoginModule required\n  user_al='x'\n  n = 5 ;\n", {"user_al": "x", "n": "5"}),
        (r'PlainLoginModule required p="a\"b\\c;=\101\n";', {"p": 'a"b\\c;=A\n'}),
        (r'PlainLoginModule "Required" p="DOM\alice\v\477\q";', {"p": "DOM\alice\v'7q"}),
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
        'M required a="swordfish"; N required;', 'M requird a="swordfish";',
    ],
)  # fmt: skip
def test_a_broken_line_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.sasl\.jaas\.config: ") as raised:
        parse_jaas(text, key="x.sasl.jaas.config")
    assert "swordfish" not in str(raised.value)
    assert "swordfish" not in repr(parse_jaas('M required a="swordfish";'))


JAAS_FILE = """
/* of all listeners */
KafkaServer {
  org.apache.kafka.common.security.plain.PlainLoginModule required
  username="admin"
  password="}a;\\"{"
  user_al="x";

  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/etc/broker.keytab";
};
sasl_ssl.KafkaServer{a.b.ScramLoginModule required;};
Client {};
"""


def test_a_file_has_modules_by_part_and_name() -> None:
    found = parse_jaas_file(JAAS_FILE, key="f")
    assert {place: module.options for place, module in found.items()} == {
        ("KafkaServer", "PlainLoginModule"): {"username": "admin", "password": '}a;"{', "user_al": "x"},
        ("KafkaServer", "Krb5LoginModule"): {"useKeyTab": "true", "keyTab": "/etc/broker.keytab"},
        ("sasl_ssl.KafkaServer", "ScramLoginModule"): {},
    }
    assert parse_jaas_file("", key="f") == {}


@pytest.mark.parametrize(
    "text",
    [
        "KafkaServer", "KafkaServer { M required;", "KafkaServer { M required; }",
        'KafkaServer { M required a="swordfish" };',
        'KafkaServer { M; N required a="swordfish"; };', 'M required a="swordfish";',
        'KafkaServer { M required a="swordfish; };',
        "KafkaServer { M required swordfish; };", 'KafkaServer { M requird a="swordfish"; };',
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f: ") as raised:
        parse_jaas_file(text, key="f")
    assert "swordfish" not in str(raised.value)


def test_clients_take_a_token_from_a_file() -> None:
    wanted = {"sasl_oauthbearer_token_file": "/run/token"}
    assert translate({"sasl.oauthbearer.token.endpoint.url": "file:///run/token"})[0] == wanted
    assert translate({"sasl.jaas.config": 'OAuthBearerLoginModule required tokenFile="/run/token";'})[0] == wanted
    assert translate({"sasl.jaas.config": "OAuthBearerLoginModule required;"})[0] == {}
    with pytest.raises(ConfigError, match="only tokens in files"):
        translate({"sasl.oauthbearer.token.endpoint.url": "https://issuer/token"})
