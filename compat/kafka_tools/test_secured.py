"""Java clients over SASL_SSL with OAUTHBEARER: a signed token in a file, an expired one, and re-authentication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from compat import secured
from compat.clients.tokens import Issuer
from compat.kafka import run_tool
from compat.kafka.tools import QUICK_START
from compat.secured import USER, Secured

COUNT, A_SECOND = 20, 5
"""Takes longer than a session of two seconds."""
SUCCESSES = '"name":"producer_send_success"'


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer: Issuer, kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    assert kafka_libraries.is_dir()
    with secured.started(tmp_path_factory.mktemp("secured"), issuer.settings) as made:
        yield made


Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def run(broker: Secured, tmp_path: Path) -> Run:
    """`run(token, class, *arguments)`: one of Kafka's tools, whose client reads the token from a file."""

    def run(token: str, main_class: str, *arguments: str) -> CompletedProcess[str]:
        file, properties = tmp_path / "token", tmp_path / "client.properties"
        file.write_text(token)
        package = "org.apache.kafka.common.security.oauthbearer"
        settings = {
            **broker.java_tls(),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={file.as_uri()}"
        at = ["--bootstrap-server", broker.bootstrap_servers, "--command-config", str(properties)]
        options = [*QUICK_START, allowed, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={file}"]
        return run_tool(f"org.apache.kafka.tools.{main_class}", *at, *arguments, options=options)

    return run


def test_a_producer_logs_in_with_a_token_and_again_when_its_session_ends(
    broker: Secured, issuer: Issuer, run: Run
) -> None:
    expired = broker.log.count("session has expired")
    arguments = ["--topic", "java", "--max-messages", str(COUNT), "--throughput", str(A_SECOND)]
    done = run(issuer.token(USER), "VerifiableProducer", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(SUCCESSES) == COUNT, done.stdout
    assert broker.log.count("session has expired") == expired


def test_an_expired_token_is_refused_with_kafkas_words(broker: Secured, issuer: Issuer, run: Run) -> None:
    done = run(issuer.token(USER, -100), "TopicCommand", "--list")
    assert done.returncode != 0
    assert 'SaslAuthenticationException: {"status":"invalid_token"}' in done.stdout + done.stderr
    assert "the token has expired" in broker.log
