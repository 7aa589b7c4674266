"""`ssl.principal.mapping.rules`, with the examples of Kafka's SslPrincipalMapperTest."""

from __future__ import annotations

import pytest

from kbroker.config.principal_rules import PrincipalRules
from kbroker.config.values import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "DEFAULT",
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        r"RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        r"RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        r"RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)
def test_valid_rules_are_accepted(text: str) -> None:
    assert PrincipalRules(text).rules


@pytest.mark.parametrize(
    "text",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        r"RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        r"rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        r"RULE:CN=(/$1/",
        r"RULE:(?u)CN=(.*)/$1/",
    ],
)
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Invalid rule"):
        PrincipalRules(text)


@pytest.mark.parametrize(
    ("distinguished_name", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_names_the_principal(distinguished_name: str, name: str) -> None:
    rules = PrincipalRules(
        ", ".join(
            [
                r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
                r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
                r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
                r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
                "DEFAULT",
            ]
        )
    )
    assert rules.name(distinguished_name) == name


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("[]", ""),
        ("[DEFAULT]", "DEFAULT"),
        ("[RULE:/]", "RULE://"),
        ("[RULE:/.*]", "RULE:/.*/"),
        ("[RULE:/.*/L]", "RULE:/.*/L"),
        ("[RULE:/, DEFAULT]", "RULE://,DEFAULT"),
        ("[RULE:/, DEFAULT]", "  RULE:// ,  DEFAULT  "),
        ("[RULE:   /     , DEFAULT]", "  RULE:   /     / ,  DEFAULT  "),
        ("[RULE:  /     /U, DEFAULT]", "  RULE:  /     /U   ,DEFAULT  "),
        (
            "[RULE:([A-Z]*)/$1/U, RULE:([a-z]+)/$1, DEFAULT]",
            "  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ",
        ),
        ("[]", ",   , , ,      , , ,   "),
        ("[RULE:/, DEFAULT]", ",,RULE://,,,DEFAULT,,"),
        ("[RULE: /   , DEFAULT]", ",  , RULE: /   /    ,,,   DEFAULT, ,   "),
        ("[RULE:   /  /U, DEFAULT]", "     ,  , RULE:   /  /U    ,,  ,DEFAULT, ,"),
        (r"[RULE:\/\\\(\)\n\t/\/\/]", r"RULE:\/\\\(\)\n\t/\/\//"),
        (
            r"[RULE:,RULE:,/,RULE:,\//U, RULE:,/RULE:,, RULE:,RULE:,/L,RULE:,/L, RULE:, DEFAULT, /DEFAULT, DEFAULT]",
            r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT",
        ),
    ],
)
def test_rules_are_split_as_by_kafka(shown: str, text: str) -> None:
    assert str(PrincipalRules(text)) == shown


def test_an_escaped_comma_belongs_to_the_name() -> None:
    rules = PrincipalRules(r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT")
    assert rules.name(r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz") == r"Tkac\, Adam"


@pytest.mark.parametrize(
    ("replacement", "name"),
    [("$1@$4", "a@$4"), ("$12", "a2"), (r"\$1", "$1"), ("$0", "CN=a,OU=b"), (r"\/$2", "/b")],
)
def test_a_reference_without_its_group_is_text(replacement: str, name: str) -> None:
    assert PrincipalRules(f"RULE:CN=(.*),OU=(.*)/{replacement}/").name("CN=a,OU=b") == name


@pytest.mark.parametrize("pattern", [r"CN=(\w+)", r"CN=([\w-]+)", r"(?i)cn=([a-z]+)"])
@pytest.mark.parametrize("name", ["\u212aafka", "\u0430dmin", "i\u017f"])
def test_letters_of_a_class_are_ascii_as_in_java(pattern: str, name: str) -> None:
    """In lower case a Kelvin sign is the letter k, and a long s is nearly an s."""
    rules = PrincipalRules(f"RULE:{pattern}/$1/L")
    assert rules.name(f"CN={name}") is None
    assert rules.name("CN=Kafka") == "kafka"


def test_without_a_matching_rule_there_is_no_name() -> None:
    assert PrincipalRules("RULE:CN=a/b/").name("CN=c") is None
