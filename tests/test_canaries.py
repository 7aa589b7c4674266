"""Secrets appear in no output of a broker and its commands, and what it writes is private (row K15)."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from kbroker.config.catalogue import BROKER
from kbroker.config.values import Kind
from kbroker.runtime.free_ports import free_ports
from tests.broker_process import BrokerProcess
from tests.security.certificates import Authority
from wire.errors import ErrorCode
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

CANARY = "canary-8f14e45f"
TOKEN = f"{CANARY}-token-of-the-pages"
PASSWORDS = [name for name, one in BROKER.items() if one.kind is Kind.PASSWORD and name != "kbroker.http.token"]
DYNAMIC = "listener.name.plaintext.ssl.key.password"


def part(claims: dict[str, object]) -> str:
    """A part of a token without a signature."""
    return urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()


CLAIMS = part({"sub": "eve", "iat": 1, "exp": 99999999999, "jti": CANARY})
TOKENS = {
    "right": f"{part({'alg': 'none'})}.{CLAIMS}.",
    "signed": f"{part({'alg': 'none'})}.{CLAIMS}.AAAA",
    "no": CANARY,
}
"""The first one is accepted: the listener takes tokens without a signature."""
SECRETS = (CANARY, CLAIMS)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """A file with a canary in every setting that holds a secret."""
    lines = [f"{name}={CANARY}-{number}" for number, name in enumerate(PASSWORDS)]
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="{CANARY}-jaas";'
    lines += [
        f"rsm.config.secret.key={CANARY}-rsm",
        f"rlmm.config.sasl.jaas.config={CANARY}-rlmm",
        f"listener.name.plaintext.scram-sha-256.sasl.jaas.config={jaas}",
        f"kbroker.bootstrap.users.file={tmp_path}/users.properties",
        "listener.name.users.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "listener.name.users.kbroker.sasl.oauthbearer.unsecured=true",
        "metadata.log.max.record.bytes.between.snapshots=1",
        f'listener.name.users.plain.sasl.jaas.config=x.PlainLoginModule required user_alice="{CANARY}-alice";',
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        f"listeners=PLAINTEXT://127.0.0.1:{free_ports(1)[0]},USERS://127.0.0.1:{free_ports(1)[0]}",
    ]
    (tmp_path / "users.properties").write_text(f"carol={CANARY}-carol")
    (tmp_path / "wrong.properties").write_text(f"carol={CANARY}-carol\u00ad")  # SASLprep changes it
    (tmp_path / "nameless.properties").write_text(f"{CANARY}-carol\n")
    (tmp_path / "password").write_text(f"{CANARY}-dave")
    for name, token in TOKENS.items():
        (tmp_path / name).write_text(token)
    Authority().sign().write_pkcs12(tmp_path / "keys.p12", "the right password")
    (tmp_path / "tls.properties").write_text(
        "listeners=SSL://127.0.0.1:0\ninter.broker.listener.name=SSL\n"
        f"ssl.keystore.location={tmp_path}/keys.p12\nssl.keystore.password={CANARY}-key-store\n"
    )
    path = tmp_path / "server.properties"
    path.write_text("\n".join(lines))
    return path


def run(*words: object) -> str:
    """What a command prints, whether or not it fails."""
    command = [sys.executable, "-m", "kbroker", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def pages(port: int) -> Iterator[str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
        for path in ("/", "/metrics", "/health", "/state", "/state/view", "/state/group?name=x", "/none"):
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            yield f"{response.getheaders()} {response.read().decode()}"
    connection.close()


def command_lines(broker: int) -> Iterator[str]:
    """The arguments of a broker and of the processes that it has started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if broker in (parent, int(process.name)):
                yield (process / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended


@pytest.mark.long
def test_secrets_are_shown_nowhere(settings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, data = free_ports(1)[0], tmp_path / "data"
    monkeypatch.setenv("KBROKER_HTTP_TOKEN", TOKEN)
    flags = ("--config", str(settings_file), "--http", f":{port}", "--log-level", "debug")
    shown: list[str] = []
    with BrokerProcess(data, *flags, module="tests.faulty_broker", listen=None, start_seconds=120) as broker:
        process = Path(f"/proc/{broker.process.pid}")
        shown += command_lines(broker.process.pid)
        with broker.client() as client:
            change = AlterConfigsResource(
                resource_type=4,
                resource_name="1",
                configs=[AlterableConfig(name=DYNAMIC, config_operation=0, value=f"{CANARY}-dynamic")],
            )
            changed = client.ask(IncrementalAlterConfigsRequest(resources=[change], validate_only=False), version=1)
            assert changed.responses[0].error_code == 0, changed
            wrong = change.configs[0]
            wrong.name = "ssl.keystore.password"  # refused: only with a listener's prefix
            refused = client.ask(IncrementalAlterConfigsRequest(resources=[change], validate_only=False), version=1)
            assert refused.responses[0].error_code != 0
            for name in ("1", ""):
                resource = DescribeConfigsResource(resource_type=4, resource_name=name, configuration_keys=None)
                request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
                described = client.ask(request, version=4)
                shown.append(repr(described))
                if name:
                    entries = {one.name: one for one in described.results[0].configs}
            for secret in (*PASSWORDS, DYNAMIC, "rsm.config.secret.key", "kbroker.http.token"):
                assert (entries[secret].value, entries[secret].is_sensitive) == (None, True)
            shown += [repr(changed), repr(refused)]
            failed = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), version=0)
            assert failed.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            shown.append(repr(failed))
        shown += pages(port)
        address = f"{broker.host}:{broker.port}"
        users = re.findall(r"USERS://(\S+?),?$", settings_file.read_text(), re.MULTILINE)[0]
        client_files = []
        for name, password in (("alice", f"{CANARY}-alice"), ("alice", f"{CANARY}-wrong")):
            client_files.append(tmp_path / f"client-{len(client_files)}.properties")
            client_files[-1].write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nrequest.timeout.ms=3000\n"
                f'sasl.jaas.config=x.PlainLoginModule required username="{name}" password="{password}";'
            )
        about_broker = ("config", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
        for name in TOKENS:
            client_files.append(tmp_path / f"client-{len(client_files)}.properties")
            client_files[-1].write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nrequest.timeout.ms=3000\n"
                f"sasl.oauthbearer.token.endpoint.url=file:{tmp_path}/{name}"
            )
        logged_in = [run(*about_broker, "-b", users, "--command-config", each) for each in client_files]
        assert ["num.partitions" in said for said in logged_in] == [True, False, True, False, False], logged_in
        shown += [
            *logged_in,
            run(*about_broker, "-b", address),
            run(*about_broker, "-b", address, "--command-config", client_files[0]),  # no SASL there
            run("user", "--create", "--user", "dave", "--password-file", tmp_path / "password", "-b", address),
            run("tier", "why", "t-0", "--http", f"127.0.0.1:{port}"),
        ]
        assert "Created user dave" in shown[-2]
        start = ("serve", "--data-dir", tmp_path / "other", "--config", settings_file, "--override")
        monkeypatch.setenv("KBROKER_HTTP_TOKEN", f"{CANARY} with blanks")
        shown.append(run(*start, "num.partitions=1"))
        monkeypatch.delenv("KBROKER_HTTP_TOKEN")
        for wrong_setting in (
            "num.partitions=x",
            f"kbroker.http.token={CANARY} with blanks",
            f"kbroker.bootstrap.users.file={tmp_path}/wrong.properties",
            f"kbroker.bootstrap.users.file={tmp_path}/nameless.properties",
        ):
            shown.append(run(*start, wrong_setting))
        no_key = (
            "listener.security.protocol.map=PLAINTEXT:SSL,USERS:SASL_PLAINTEXT",
            *("--override", "ssl.keystore.type=PEM", "--override", "ssl.truststore.certificates="),
        )
        shown.append(run(*start, *no_key))
        shown.append(run("serve", "--data-dir", tmp_path / "other", "--config", tmp_path / "tls.properties"))
        assert "ssl.keystore: the key and its certificates cannot be used" in shown[-2]
        assert "cannot be read with ssl.keystore.password" in shown[-1]
        assert [text for text in shown[-7:] if "kbroker ready" in text] == []
        limits = (process / "limits").read_text()
        assert re.search(r"^Max core file size +1 +1 ", limits, re.MULTILINE)
        assert "Umask:\t0077" in (process / "status").read_text()
        for path in (data, *data.rglob("*")):
            assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
        code, _ = broker.stop(signal.SIGABRT)
        assert code == -signal.SIGABRT
        log = broker.stop_and_read_errors()
    for directory in (tmp_path, Path.cwd()):
        assert not list(directory.glob("core*")), "a core file"
    assert "ZeroDivisionError" in log
    assert "setting changed" in log
    shown.append(log)
    metadata = sorted(str(path) for path in data.glob("__cluster_metadata-0/*.log"))
    snapshots = sorted(str(path) for path in data.glob("__cluster_metadata-0/*.checkpoint"))
    checkpoint = str(data / "bootstrap.checkpoint")
    dumped = run("dump-log", "--cluster-metadata-decoder", "--files", *metadata, *snapshots[-1:], checkpoint)
    for user in ("carol", "dave"):
        assert f'"name":"{user}"' in dumped
    assert len(re.findall('"storedKey":"[^"]*"', dumped)) == dumped.count('"storedKey":"(redacted)"') >= 4
    assert f'"name":"{DYNAMIC}","value":"(redacted)"' in dumped
    stored = {path: Path(path).read_bytes() for path in (*metadata, *snapshots)}
    for paths in (metadata, snapshots):
        assert any(f"{CANARY}-dynamic".encode() in stored[path] for path in paths), "as in Kafka, see docs"
    for path in data.rglob("*"):
        if path.is_file():
            contents = path.read_bytes().replace(f"{CANARY}-dynamic".encode(), b"")
            assert not any(secret.encode() in contents for secret in SECRETS), path
    for secret in SECRETS:
        found = [text[max(0, at - 200) : at + 100] for text in (*shown, dumped) if (at := text.find(secret)) >= 0]
        assert not found, found[0]
    assert all(text.strip() for text in shown)
