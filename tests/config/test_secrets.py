"""No error, warning or representation shows the value of a secret setting (row K15)."""

from __future__ import annotations

import traceback

import pytest

from kbroker.config.catalogue import BROKER, is_secret
from kbroker.config.container import read_container
from kbroker.config.describe import describe_broker, describe_cluster_defaults
from kbroker.config.jaas import LoginModule
from kbroker.config.load import Settings
from kbroker.config.sasl import SaslSettings
from kbroker.config.settings import Setting, setting, settings
from kbroker.config.tls import TlsSettings
from kbroker.config.values import ConfigError, Kind, Secret, parse, to_text
from kbroker.security.sasl.peer import PeerLogin
from kbroker.security.sasl.scram import Credential
from kbroker.security.stores import KeyStore

CANARY = "canary-4711-0815-4242"
PASSWORDS = [name for name, one in BROKER.items() if one.kind is Kind.PASSWORD]


@settings
class _Own:
    """Settings with a secret that refuses every text."""

    a_password: Secret | None = setting(check=lambda _: "it is too short")


def _shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_only_reveal_shows_a_secret() -> None:
    secret = parse("ssl.key.password", Kind.PASSWORD, f" {CANARY} ")
    assert isinstance(secret, Secret)
    assert secret == Secret(CANARY) != Secret("another")
    assert secret.reveal() == CANARY
    assert f"{secret} {secret!r} {to_text(secret)} {(secret,)}" == "[hidden] [hidden] [hidden] ([hidden],)"


@pytest.mark.parametrize(
    "holder",
    [
        KeyStore(CANARY.encode(), CANARY),
        LoginModule("PlainLoginModule", {"password": CANARY}),
        PeerLogin("PLAIN", {"sasl_plain_password": CANARY}),
        Credential(CANARY.encode(), CANARY.encode(), CANARY.encode(), 4096),
        SaslSettings(sasl_jaas_config=Secret(CANARY)),
        TlsSettings(ssl_key_password=Secret(CANARY)),
        read_container({"KAFKA_SSL_KEY_PASSWORD": CANARY, "KBROKER_HTTP_TOKEN": CANARY}),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_what_holds_a_secret_does_not_show_it(holder: object) -> None:
    assert CANARY not in f"{holder} {holder!r} {[holder]} {ValueError(holder)!r}"


def test_the_error_for_a_secret_does_not_show_it() -> None:
    one: Setting = _Own.SETTINGS[0]  # type: ignore[attr-defined]
    assert one.kind is Kind.PASSWORD
    with pytest.raises(ConfigError) as caught:
        one.parse(CANARY)
    assert str(caught.value) == "Invalid value [hidden] for configuration a.password: it is too short"


@pytest.mark.parametrize("name", [*PASSWORDS, "rsm.config.secret.key", "rlmm.config.sasl.jaas.config"])
def test_a_secret_setting_is_shown_nowhere(name: str) -> None:
    loaded = Settings.load(f"{name}={CANARY}".encode())
    loaded = loaded.with_dynamic({name: CANARY}, {f"listener.name.external.{name}": CANARY})
    assert CANARY not in repr(loaded)
    assert CANARY not in repr(loaded.layers)
    assert CANARY not in "".join(loaded.warnings)
    described = [*describe_broker(loaded), *describe_cluster_defaults(loaded)]
    assert CANARY not in repr(described)
    (entry,) = (one for one in described if one.name == name)
    assert (entry.value, entry.is_sensitive) == (None, True)
    assert {synonym.value for synonym in entry.synonyms} == {None}


@pytest.mark.parametrize("text", [f"ssl.key.password:{CANARY}", f"ssl.key.password {CANARY}", f" {CANARY}"])
def test_an_override_with_a_wrong_separator_shows_only_its_key(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(overrides=[text])
    assert CANARY not in _shown(caught.value)


def test_settings_for_one_listener_are_as_secret_as_their_base() -> None:
    assert is_secret("listener.name.external.ssl.keystore.password")
    assert is_secret("listener.name.external.scram-sha-256.sasl.jaas.config")
    assert is_secret("never.heard.of")
    assert not is_secret("listener.name.external.ssl.client.auth")


def test_a_secret_in_a_flag_causes_a_warning() -> None:
    flags = [f"ssl.key.password={CANARY}", f"rsm.config.secret.key={CANARY}", "rsm.config.bucket=b", "num.partitions=2"]
    warnings = [line for line in Settings.load(overrides=flags).warnings if "flags" in line]
    (line,) = warnings
    assert "move ssl.key.password, rsm.config.secret.key to a file" in line
    assert CANARY not in line
