"""SCRAM logins of kbroker and of Apache Kafka: `python -m compat.bench.logins [--quick] [--brokers kafka,kbroker]`.

With --steps it measures instead what each part of a login costs the broker: the CPU time of all its threads, the lowest
of WINDOWS turns, because the caches of a busy machine only add to it.

A login is a new connection, SaslHandshake, two SaslAuthenticate with a proof, and its end; CLIENTS connections at once.
The client hashes the password once for each broker, because each login would take it longer than a broker: the
figures are of the brokers. They share the machine with the clients. Each mechanism is measured twice, to show whether
a figure depends on the order: Java's compiler works during the first ones.
"""

from __future__ import annotations

import argparse
import base64
import math
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from compat.bench.frames import rate
from compat.bench.rivals import Rival
from compat.brokers import KbrokerProcess, free_port
from compat.kafka import KafkaNode
from compat.kafka.node import AS_INSTALLED
from compat.oracle.raw import connected
from compat.processes import cpu_us
from kbroker.security.sasl.scram import MECHANISMS, ScramMechanism, salted_password
from wire.framing import encode_request_frame
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.messages.sasl_handshake import SaslHandshakeRequest

HOST, USER, PASSWORD, ITERATIONS, SALT = "127.0.0.1", "al", "pencil", 4096, b"1k2j3h4g5f6d7s8a"
CLIENTS, WINDOWS = 4, 12


def overrides(listeners: str) -> dict[str, str]:
    """A listener with SCRAM and PLAIN, in addition to those of a plain broker."""
    users = f'user_{USER}="{PASSWORD}" user_bo="sesame";'
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *MECHANISMS)),
        "listener.name.sasl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users}"
        ),
        "listener.name.sasl.plain.connections.max.reauth.ms": "600000",
        **{f"listener.name.sasl.{name.lower()}.sasl.jaas.config": module for name in MECHANISMS},
    }


def brokers(directory: Path, which: set[str]) -> list[tuple[Rival, int]]:
    """The brokers, each with the port of its listener with SASL."""
    found = []
    if "kafka" in which:
        port, plain, controller = free_port(), free_port(), free_port()
        listeners = f"PLAINTEXT://{HOST}:{plain},CONTROLLER://{HOST}:{controller},SASL://{HOST}:{port}"
        given = overrides(listeners) | {"controller.quorum.voters": f"1@{HOST}:{controller}"}
        node = KafkaNode(directory / "kafka", options=AS_INSTALLED, release="4.3", overrides=given)
        node.port = plain
        found.append((Rival(node), port))
    if "kbroker" in which:
        port, plain = free_port(), free_port()
        listeners = f"PLAINTEXT://{HOST}:{plain},SASL://{HOST}:{port}"
        given_here = [f"{key}={value}" for key, value in overrides(listeners).items() if key != "listeners"]
        made = KbrokerProcess(directory / "kbroker", overrides=[f"listeners={listeners}", *given_here], port=plain)
        found.append((Rival(made), port))
    return found


@cache
def salted(mechanism: ScramMechanism) -> bytes:
    """The hash of the password; it takes milliseconds."""
    return salted_password(mechanism, PASSWORD, SALT, ITERATIONS)


def set_credentials(rival: Rival) -> None:
    """Give the user a credential for each mechanism."""
    for mechanism in MECHANISMS.values():
        change = {
            "Name": USER, "Mechanism": mechanism.number, "Iterations": ITERATIONS, "Salt": SALT,
            "SaltedPassword": salted(mechanism),
        }  # fmt: skip
        with connected(rival.servers) as connection:
            answer = connection.call("AlterUserScramCredentials", 0, {"Deletions": [], "Upsertions": [change]})
        assert answer["Results"][0]["ErrorCode"] == 0, answer


def frame(request: object, version: int) -> bytes:
    """A request as bytes."""
    return b"".join(map(_bytes, encode_request_frame(request, version, correlation_id=1, client_id="bench")))


def _bytes(part: Any) -> bytes:
    assert isinstance(part, bytes)
    return part


def answer_of(connection: socket.socket) -> bytes:
    """The body of the next answer, without its correlation id."""
    data = connection.recv(4096)
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        data += connection.recv(4096)
    return data[8:]


def token_of(answer: bytes) -> str:
    """The token in an answer to SaslAuthenticate 0: an error code, an empty message, and bytes."""
    code, message = struct.unpack_from(">hh", answer)
    assert (code, message) == (0, 0), answer
    return answer[8:].decode()


def log_in(mechanism: ScramMechanism, port: int, *, requests: int = 3) -> None:
    """One login over a connection of its own, or its first requests; the end is that of the broker too."""
    with socket.create_connection((HOST, port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask(connection, mechanism, requests)
        connection.shutdown(socket.SHUT_WR)
        assert not connection.recv(1)


def _ask(connection: socket.socket, mechanism: ScramMechanism, requests: int) -> None:
    if requests > 0:
        connection.sendall(frame(SaslHandshakeRequest(mechanism=mechanism.name), 1))
        assert answer_of(connection)[:2] == b"\0\0"
    if requests > 1:
        first = f"n={USER},r={os.urandom(12).hex()}"
        connection.sendall(frame(SaslAuthenticateRequest(auth_bytes=f"n,,{first}".encode()), 0))
        challenge = token_of(answer_of(connection))
    if requests > 2:
        unproven = f"c=biws,{challenge.partition(',')[0]}"
        signed = f"{first},{challenge},{unproven}".encode()
        key = mechanism.sign(salted(mechanism), b"Client Key")
        signature = mechanism.sign(mechanism.digest(key), signed)
        proof = base64.b64encode(bytes(one ^ other for one, other in zip(key, signature, strict=True))).decode()
        connection.sendall(frame(SaslAuthenticateRequest(auth_bytes=f"{unproven},p={proof}".encode()), 0))
        expected = mechanism.sign(mechanism.sign(salted(mechanism), b"Server Key"), signed)
        assert token_of(answer_of(connection)) == f"v={base64.b64encode(expected).decode()}"


def logins(mechanism: ScramMechanism, port: int, seconds: float) -> float:
    """Logins a second on CLIENTS connections at once."""
    return rate(lambda: log_in(mechanism, port), seconds, clients=CLIENTS)


def costs_us(mechanism: ScramMechanism, rival: Rival, port: int, count: int) -> dict[str, float]:
    """CPU time of the broker for each part of a login. Units: microseconds."""
    pid = rival.broker.pid
    held: list[socket.socket] = []

    def connect() -> None:
        held.append(connection := socket.create_connection((HOST, port), timeout=30))
        connection.sendall(frame(SaslHandshakeRequest(mechanism=mechanism.name), 1))
        assert answer_of(connection)[:2] == b"\0\0"

    def close() -> None:
        with held.pop() as connection:
            connection.shutdown(socket.SHUT_WR)
            assert not connection.recv(1)

    acts: dict[str, Callable[[], None]] = {
        "open": connect,
        "close": close,
        **{str(number): partial(log_in, mechanism, port, requests=number) for number in range(4)},
    }
    lowest = dict.fromkeys(acts, math.inf)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(WINDOWS):
            for name, act in acts.items():
                before = cpu_us(pid)
                for done in [pool.submit(act) for _ in range(count)]:
                    done.result()
                lowest[name] = min(lowest[name], (cpu_us(pid) - before) / count)
    handshake = lowest["1"] - lowest["0"]
    return {
        "accept": lowest["open"] - handshake,
        "SaslHandshake": handshake,
        "first message": lowest["2"] - lowest["1"],
        "proof": lowest["3"] - lowest["2"],
        "close": lowest["close"],
        "all": lowest["3"],
    }


def main() -> None:
    """Measure one broker after the other."""
    parser = argparse.ArgumentParser(description="SCRAM logins of kbroker and Apache Kafka")
    parser.add_argument("--quick", action="store_true", help="one second for each figure")
    parser.add_argument("--brokers", default="kafka,kbroker")
    parser.add_argument("--steps", action="store_true", help="the CPU time of each part of a login")
    options = parser.parse_args()
    seconds = 1.0 if options.quick else 10.0
    with tempfile.TemporaryDirectory() as directory:
        for rival, port in brokers(Path(directory), set(options.brokers.split(","))):
            rival.timed_start()
            try:
                set_credentials(rival)
                if options.steps:
                    mechanism = next(iter(MECHANISMS.values()))
                    logins(mechanism, port, 2 * seconds)
                    found = costs_us(mechanism, rival, port, 100 if options.quick else 400)
                    print(f"{rival.name:8} {', '.join(f'{name} {cost:.0f} us' for name, cost in found.items())}")
                    continue
                for mechanism in 2 * list(MECHANISMS.values()):
                    logins(mechanism, port, 2 * seconds)  # Java's compiler needs some runs
                    before = rival.cpu_seconds()
                    rate = logins(mechanism, port, seconds)
                    cost_ms = 1000 * (rival.cpu_seconds() - before) / (rate * seconds)
                    print(f"{rival.name:8} {mechanism.name}: {rate:.0f} logins/s, {cost_ms:.2f} ms of CPU each")
            finally:
                rival.broker.stop()


if __name__ == "__main__":
    main()
