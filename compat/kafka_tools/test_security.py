"""The commands against Apache Kafka with TLS and SASL, which kbroker's own listeners do not have yet."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from compat.authority import make_authority
from compat.brokers import free_port
from compat.kafka import KafkaNode, run_tool
from kbroker.cli import main

PASSWORD = "open sesame"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENERS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")

Properties = Callable[[str, str], Path]
"""`properties(listener, mechanism)`: a client's file; the mechanism is "" without SASL."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With client.pem: the certificate with its key, in one file."""
    made = make_authority(tmp_path_factory.mktemp("authority"))
    (made / "client.pem").write_text((made / "server.key").read_text() + (made / "server.pem").read_text())
    return made


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {listener: free_port() for listener in LISTENERS}


@pytest.fixture(scope="module")
def node(authority: Path, ports: Mapping[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """A broker with a listener for each protocol; the one for SSL requires a client's certificate."""
    made = KafkaNode(tmp_path_factory.mktemp("kafka"))
    controller = f"CONTROLLER://127.0.0.1:{made._controller_port}"
    secured = [f"{listener}://127.0.0.1:{port}" for listener, port in ports.items()]
    made._overrides = {
        "listeners": ",".join([f"PLAINTEXT://127.0.0.1:{made.port}", controller, *secured]),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority / "client.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.security.protocol.map": ",".join(
            ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *(f"{listener}:{listener}" for listener in LISTENERS)]
        ),
    }
    modules = "org.apache.kafka.common.security"
    for listener in ("sasl_plaintext", "sasl_ssl"):
        login = f'{modules}.plain.PlainLoginModule required user_al="{PASSWORD}";'
        made._overrides[f"listener.name.{listener}.plain.sasl.jaas.config"] = login
        for number in (256, 512):
            name = f"listener.name.{listener}.scram-sha-{number}.sasl.jaas.config"
            made._overrides[name] = f"{modules}.scram.ScramLoginModule required;"
    made.start()
    for mechanism in MECHANISMS[1:]:
        words = ["--alter", "--add-config", f"{mechanism}=[password={PASSWORD}]", "--entity-type", "users"]
        at = ["--bootstrap-server", made.bootstrap_servers]
        done = run_tool("kafka.admin.ConfigCommand", *at, *words, "--entity-name", "al")
        assert done.returncode == 0, done.stdout + done.stderr
    yield made
    made.discard()


@pytest.fixture
def properties(authority: Path, ports: Mapping[str, int], tmp_path: Path) -> Properties:
    def properties(listener: str, mechanism: str, password: str = PASSWORD) -> Path:
        settings = {
            "bootstrap.servers": f"127.0.0.1:{ports[listener]}",
            "security.protocol": listener,
            "default.api.timeout.ms": "5000",
        }
        if listener.endswith("SSL"):
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority / "ca.pem")}
        if listener == "SSL":
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(authority / "client.pem")}
        if mechanism:
            settings["sasl.mechanism"] = mechanism
            settings["sasl.jaas.config"] = f'LoginModule required username="al" password="{password}";'
        path = tmp_path / "client.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    return properties


pytestmark = pytest.mark.usefixtures("node")

WAYS = [("SSL", ""), *((listener, mechanism) for listener in LISTENERS[1:] for mechanism in MECHANISMS)]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_commands_work_over_tls_and_sasl(
    properties: Properties,
    listener: str,
    mechanism: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = ["--command-config", str(properties(listener, mechanism))]
    name = f"secured-{listener}-{mechanism}"
    assert main(["topic", *at, "--create", "--topic", name]) == 0, capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert main(["produce", *at, "-t", name, "-z", "lz4"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["consume", *at, "-t", name, "-g", name, "--from-beginning", "-e"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["one", "two"]
    assert main(["group", *at, "--describe", "--group", name, "--state"]) == 0
    assert main(["config", *at, "--describe", "--broker", "1", "--all"]) == 0
    capsys.readouterr()
    assert main(["health", *at]) == 0
    assert "all with a leader" in capsys.readouterr().out


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused_at_once(
    properties: Callable[..., Path], mechanism: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--command-config", str(properties("SASL_SSL", mechanism, "guess"))]
    for command in (["topic", "--list"], ["health"]):
        assert main([*command, *at]) == 1
        assert "uthentication failed" in capsys.readouterr().err


def test_a_mechanism_that_the_broker_lacks_is_refused(
    properties: Properties, capsys: pytest.CaptureFixture[str]
) -> None:
    path = properties("SASL_PLAINTEXT", "PLAIN")
    path.write_text(path.read_text().replace("sasl.mechanism=PLAIN", "sasl.mechanism=UNKNOWN"))
    assert main(["topic", "--list", "--command-config", str(path)]) == 1
    assert "not UNKNOWN" in capsys.readouterr().err
