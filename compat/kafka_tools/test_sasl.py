"""Logins of stock clients at kbroker: Java's tools, librdkafka, kafka-python, aiokafka, kcat, kbroker's commands."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient

from compat.brokers import KbrokerProcess
from compat.kafka import run_tool
from kbroker.cli import main

PASSWORD = "open sesame"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENTS = ("confluent", "kafka-python", "aiokafka")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KbrokerProcess]:
    """A single broker with one listener, as in a CI job."""
    directory = tmp_path_factory.mktemp("sasl")
    users = directory / "users.properties"
    users.write_text(f"al={PASSWORD}\n")
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_al="{PASSWORD}" user_bo="x";'
    made = KbrokerProcess(
        directory,
        overrides=[
            "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
            f"listener.name.plaintext.plain.sasl.jaas.config={jaas}",
            "connections.max.reauth.ms=2000",
            f"kbroker.bootstrap.users.file={users}",
        ],
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
def properties(broker: KbrokerProcess, tmp_path: Path) -> Path:
    """A Java client's file for SCRAM."""
    return client_file(broker, tmp_path, "SCRAM-SHA-256", "al", PASSWORD)


def client_file(broker: KbrokerProcess, directory: Path, mechanism: str, user: str, password: str) -> Path:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path = directory / f"{user}-{mechanism}.properties"
    path.write_text(
        f"bootstrap.servers={broker.bootstrap_servers}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";\ndefault.api.timeout.ms=10000\nrequest.timeout.ms=5000\n'
    )
    return path


def topics_seen_by(client: str, broker: KbrokerProcess, mechanism: str, password: str) -> set[str]:
    """The topics that a client lists after its login. Errors: those of the client."""
    at = broker.bootstrap_servers
    if client == "confluent":
        settings = {
            "bootstrap.servers": at, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
            "sasl.username": "al", "sasl.password": password, "log_level": 0,
        }  # fmt: skip
        return set(AdminClient(settings, logger=None).list_topics(timeout=3).topics)
    names = {
        "bootstrap_servers": at, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
        "sasl_plain_username": "al", "sasl_plain_password": password,
    }  # fmt: skip
    if client == "kafka-python":
        consumer = kafka.KafkaConsumer(**names, bootstrap_timeout_ms=3_000)
        try:
            return set(consumer.topics())
        finally:
            consumer.close()

    async def ask() -> set[str]:
        consumer = aiokafka.AIOKafkaConsumer(**names)
        try:
            await consumer.start()
            return set(await consumer.topics())
        finally:
            await consumer.stop()

    return asyncio.run(ask())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in(client: str, mechanism: str, broker: KbrokerProcess, properties: Path) -> None:
    assert main(["topic", "--command-config", str(properties), "--create", "--if-not-exists", "--topic", "t"]) == 0
    assert "t" in topics_seen_by(client, broker, mechanism, PASSWORD)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_wrong_password_is_refused(client: str, broker: KbrokerProcess) -> None:
    errors = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)
    with pytest.raises(errors):
        topics_seen_by(client, broker, "SCRAM-SHA-512", "guess")


def test_kcat_logs_in(broker: KbrokerProcess) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed")
    # By PLAIN: librdkafka before 2.6.1 repeats its nonce in SCRAM's final message, which Kafka 4 refuses too.
    settings = (
        "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=al",
        f"sasl.password={PASSWORD}",
    )  # fmt: skip
    words = [word for setting in settings for word in ("-X", setting)]
    done = subprocess.run(
        [kcat, "-b", broker.bootstrap_servers, "-L", *words], capture_output=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert b"1 brokers" in done.stdout


def test_a_client_stays_connected_when_it_logs_in_again(broker: KbrokerProcess, properties: Path) -> None:
    """librdkafka logs in again before the session ends (KIP-368); the session lasts two seconds here."""
    main(["topic", "--command-config", str(properties), "--create", "--if-not-exists", "--topic", "long"])
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "al", "sasl.password": PASSWORD,
            "error_cb": failures.append,
        }
    )  # fmt: skip
    for index in range(25):
        producer.produce("long", str(index), on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(5) == 0
        producer.poll(0.1)
    assert not failures


def test_kafka_configs_sets_a_credential_and_a_java_client_logs_in(
    broker: KbrokerProcess, properties: Path, tmp_path: Path
) -> None:
    at = ["--bootstrap-server", broker.bootstrap_servers, "--command-config", str(properties)]
    user = ["--entity-type", "users", "--entity-name", "java"]
    added = ["--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=coffee]"]
    done = run_tool("kafka.admin.ConfigCommand", *at, *user, *added)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_tool("kafka.admin.ConfigCommand", *at, *user, "--describe")
    assert "SCRAM-SHA-512=iterations=8192" in done.stdout
    java = client_file(broker, tmp_path, "SCRAM-SHA-512", "java", "coffee")
    where = ["--bootstrap-server", broker.bootstrap_servers, "--command-config"]
    done = run_tool("org.apache.kafka.tools.TopicCommand", *where, str(java), "--list")
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = client_file(broker, tmp_path, "SCRAM-SHA-512", "java", "tea")
    done = run_tool("org.apache.kafka.tools.TopicCommand", *where, str(wrong), "--list")
    assert done.returncode != 0
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in done.stdout + done.stderr


def test_kbroker_user_creates_lists_and_deletes(
    broker: KbrokerProcess,
    properties: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = ["--command-config", str(properties)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("zwölf\n".encode())))
    assert main(["user", "create", "eve", *at]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["user", "list", *at]) == 0
    assert "eve\tSCRAM-SHA-256\t8192\neve\tSCRAM-SHA-512\t8192\n" in capsys.readouterr().out
    eve = str(client_file(broker, tmp_path, "SCRAM-SHA-256", "eve", "zwölf"))
    assert main(["topic", "--list", "--command-config", eve]) == 0
    assert main(["user", "delete", "eve", "--mechanism", "SCRAM-SHA-256", *at]) == 0
    assert main(["topic", "--list", "--command-config", eve]) == 1
    assert "Authentication failed" in capsys.readouterr().err
    assert main(["user", "--delete", "--user", "eve", *at]) == 0
    assert main(["user", "delete", "eve", *at]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert PASSWORD not in broker.log_tail()
    assert "zwölf" not in broker.log_tail()
