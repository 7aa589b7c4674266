"""`kbroker serve` with TLS, as clients and operators meet it: librdkafka, openssl, files that change, SIGHUP."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from cryptography.x509.oid import NameOID

from kbroker.client.blocking import Connection
from kbroker.runtime.free_ports import free_ports
from tests.broker_process import BrokerProcess, serve_and_fail
from tests.security.certificates import Authority
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

AUTHORITY = Authority()
USER = AUTHORITY.sign((NameOID.COMMON_NAME, "duke"), names=())
BROKER_RESOURCE = 4
INVALID_REQUEST = 42


def overrides(*given: str) -> list[str]:
    return [part for one in given for part in ("--override", one)]


class Secured:
    """A broker with the listener SSL on its ready port, and PLAINTEXT."""

    def __init__(self, directory: Path, broker: BrokerProcess, log: Path, plain_port: int) -> None:
        self.key_store = directory / "server.pem"
        self.authority = directory / "ca.pem"
        self.user = directory / "user.pem"
        self.broker = broker
        self.plain_port = plain_port
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until_logged(self, text: str) -> None:
        deadline = time.monotonic() + 10
        while text not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def certificate(self) -> bytes:
        """What the broker shows now, in DER."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.user)
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # whose handshake ends with the broker's decision
        plain = socket.create_connection(("127.0.0.1", self.broker.port), timeout=10)
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    AUTHORITY.sign().write(directory / "server.pem")
    USER.write(directory / "user.pem")
    (directory / "ca.pem").write_text(AUTHORITY.chain)
    (directory / "revoked.pem").write_text(AUTHORITY.revoke())
    plain_port = free_ports(1)[0]
    arguments = overrides(
        f"listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:{plain_port}",
        "listener.name.ssl.ssl.keystore.type=PEM",
        f"listener.name.ssl.ssl.keystore.location={directory}/server.pem",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={directory}/ca.pem",
        "listener.name.ssl.ssl.client.auth=required",
        f"listener.name.ssl.kbroker.ssl.crl.location={directory}/revoked.pem",
        "kbroker.authentication.timeout.ms=2000",
        "kbroker.tls.reload.interval.ms=600000",
    )
    log = directory / "log"
    broker = BrokerProcess(directory / "data", *arguments, listen=None)
    assert broker.process.stderr is not None
    # The log goes to a file, so that a test can read it while the broker runs.
    copying = ThreadPoolExecutor(1)
    with log.open("w") as copy, broker:

        def copy_lines() -> None:
            for line in broker.process.stderr or ():
                copy.write(line)
                copy.flush()

        copied = copying.submit(copy_lines)
        yield Secured(directory, broker, log, plain_port)
        broker.process.kill()
        copied.result(timeout=10)
    copying.shutdown()


def test_librdkafka_produces_and_consumes(secured: Secured) -> None:
    security = {
        "bootstrap.servers": f"localhost:{secured.broker.port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.authority),
        "ssl.certificate.location": str(secured.user),
        "ssl.key.location": str(secured.user),
    }
    values = [bytes([number]) * 20_000 for number in range(50)]
    producer = Producer({**security, "acks": "all"})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(20) == 0
    consumer = Consumer({**security, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found = []
    deadline = time.monotonic() + 20
    while len(found) < len(values):
        assert time.monotonic() < deadline
        if (message := consumer.poll(1)) is not None:
            assert message.error() is None
            found.append(message.value())
    consumer.close()
    assert found == values


def test_a_client_without_tls_is_told_off_and_logged(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.broker.port), timeout=5) as plain:
        plain.sendall(b"\0\0\0\x14\0\x12\0\x03\0\0\0\0\0\x04test\0\0\0\0\0")
        while plain.recv(100):  # an alert of TLS at most
            pass
    secured.until_logged("does not speak TLS; its security.protocol is probably PLAINTEXT")


def test_tls_on_a_port_without_it_is_closed_and_logged(secured: Secured) -> None:
    context = ssl.create_default_context()
    plain = socket.create_connection(("127.0.0.1", secured.plain_port), timeout=5)
    with plain, pytest.raises(OSError, match=r"."):
        context.wrap_socket(plain, server_hostname="localhost")
    secured.until_logged("this listener has no TLS")


def test_half_open_connections_end_and_do_not_keep_others_out(secured: Secured) -> None:
    half_open = [socket.create_connection(("127.0.0.1", secured.broker.port), timeout=10) for _ in range(200)]
    for index, one in enumerate(half_open):
        one.sendall(b"\x16\x03\x01\x02\x00\x01"[: index % 7])
    assert secured.certificate()
    for one in half_open:
        assert one.recv(1) == b""
        one.close()


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_x6_old_versions_are_refused(secured: Secured, version: str) -> None:
    command = [
        "openssl",
        "s_client",
        version,
        "-cipher",
        "ALL:@SECLEVEL=0",
        "-connect",
        f"127.0.0.1:{secured.broker.port}",
    ]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=20, check=False)
    assert done.returncode != 0
    assert b"alert protocol version" in done.stderr


def test_x6_a_client_cannot_renegotiate(secured: Secured) -> None:
    command = [
        "openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{secured.broker.port}",
        "-cert", str(secured.user), "-key", str(secured.user),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(20, process.kill)
        late.start()
        any(b"Verify return code" in line for line in process.stdout)  # the end of the handshake
        process.stdin.write(b"R\n")
        process.stdin.close()
        out = process.stdout.read()
        late.cancel()
    assert b"RENEGOTIATING" in out
    assert b"no renegotiation" in out


def test_certificates_are_renewed_on_sighup_and_by_a_dynamic_setting(secured: Secured) -> None:
    renewed = AUTHORITY.sign()
    renewed.write(secured.key_store)
    secured.broker.process.send_signal(signal.SIGHUP)
    secured.until_logged("reloaded certificates")
    assert secured.certificate() == renewed.der
    moved = AUTHORITY.sign()
    path = moved.write(secured.key_store.with_name("moved.pem"))
    with Connection("127.0.0.1", secured.plain_port, client_id="test", timeout_s=20) as client:
        client.negotiate()

        def alter(value: str) -> tuple[int, str | None]:
            config = AlterableConfig(name="listener.name.ssl.ssl.keystore.location", config_operation=0, value=value)
            resource = AlterConfigsResource(resource_type=BROKER_RESOURCE, resource_name="1", configs=[config])
            answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)).responses[0]
            return answer.error_code, answer.error_message

        code, message = alter(f"{path}.missing")
        assert code == INVALID_REQUEST
        assert "moved.pem.missing" in str(message)
        other = AUTHORITY.sign((NameOID.COMMON_NAME, "another")).write(secured.key_store.with_name("other.pem"))
        code, message = alter(other)
        assert code == INVALID_REQUEST
        assert "Keystore DistinguishedName does not match" in str(message)
        assert alter(path) == (0, None)
    deadline = time.monotonic() + 10
    while secured.certificate() != moved.der:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_x6_a_certificate_that_is_revoked_while_the_broker_runs_is_refused(secured: Secured) -> None:
    assert secured.certificate()
    secured.user.with_name("revoked.pem").write_text(AUTHORITY.revoke(USER))
    secured.broker.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    with pytest.raises(ssl.SSLError, match="certificate revoked"):  # noqa: PT012  (the wait is for the error)
        while secured.certificate():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    secured.until_logged("TLS handshake failed: certificate: certificate revoked")


def test_a_listener_without_a_certificate_does_not_start(tmp_path: Path) -> None:
    code, output = serve_and_fail(tmp_path / "data", *overrides("listeners=SSL://127.0.0.1:0"), listen=None)
    assert code == 1
    assert "listener SSL: TLS requires a certificate: set ssl.keystore.location or ssl.keystore.key" in output
    jks = tmp_path / "server.jks"
    jks.write_bytes(bytes.fromhex("feedfeed00000002"))
    given = overrides("listeners=SSL://127.0.0.1:0", f"ssl.keystore.location={jks}", "ssl.keystore.password=x")
    code, output = serve_and_fail(tmp_path / "data", *given, listen=None)
    assert code == 1
    assert "keytool -importkeystore" in output
