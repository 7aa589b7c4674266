"""TLS of kbroker and of Apache Kafka 4.3.1: `python -m compat.bench.tls [--quick] [--brokers kafka,kbroker]`.

Both have the same certificate (P-256) and the same cipher suite, TLS_AES_256_GCM_SHA384. The figures are full
handshakes a second on four connections at once, the median of a Produce of 100 B, and Fetch from the page cache with
the CPU time of the broker.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from compat.authority import make_authority
from compat.bench.frames import batch_of_now, batch_of_size, check_produced, fetch_frame, produce_frame, rate, receive
from compat.bench.rivals import Rival
from compat.brokers import KbrokerProcess, free_port
from compat.kafka import KafkaNode
from compat.kafka.node import AS_INSTALLED
from compat.oracle.batches import Item

HOST = "127.0.0.1"
CLIENTS = 4
MIB = 1 << 20


def settings(directory: Path, *plain: str, port: int) -> Mapping[str, str]:
    """The listener SSL, in addition to those of `plain`."""
    return {
        "listeners": ",".join([*plain, f"SSL://{HOST}:{port}"]),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "both.pem"),
        "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
        "ssl.enabled.protocols": "TLSv1.3",
    }


def brokers(directory: Path, which: set[str]) -> list[tuple[Rival, int]]:
    """The brokers, each with the port of its listener with TLS."""
    authority = make_authority(directory)
    pem = (authority / "server.key").read_text() + (authority / "server.pem").read_text()
    (directory / "both.pem").write_text(pem)
    found = []
    if "kafka" in which:
        port, plain, controller = free_port(), free_port(), free_port()
        listeners = (f"PLAINTEXT://{HOST}:{plain}", f"CONTROLLER://{HOST}:{controller}")
        given = {
            **settings(directory, *listeners, port=port),
            "controller.quorum.voters": f"1@{HOST}:{controller}",
        }
        node = KafkaNode(directory / "kafka", options=AS_INSTALLED, release="4.3", overrides=given)
        node.port = plain
        found.append((Rival(node), port))
    if "kbroker" in which:
        port, plain = free_port(), free_port()
        chosen = settings(directory, f"PLAINTEXT://{HOST}:{plain}", port=port)
        given = [f"{key}={value}" for key, value in chosen.items()]
        found.append((Rival(KbrokerProcess(directory / "kbroker", overrides=given, port=plain)), port))
    return found


def connect(context: ssl.SSLContext, port: int) -> ssl.SSLSocket:
    """A connection after its handshake."""
    plain = socket.create_connection((HOST, port), timeout=30)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(plain, server_hostname=HOST)


def handshakes(context: ssl.SSLContext, port: int, seconds: float) -> float:
    """Full handshakes a second on CLIENTS connections at once."""
    return rate(lambda: connect(context, port).close(), seconds, clients=CLIENTS)


def produce_us(connection: ssl.SSLSocket, topic: str, count: int) -> float:
    """The median of a Produce of one record of 100 B with acks=all."""
    frame = produce_frame(topic, batch_of_now([Item(b"x" * 100)]))
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        connection.sendall(frame)
        check_produced(receive(connection))
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


def fetch(rival: Rival, connection: ssl.SSLSocket, topic: str, gigabytes: float) -> tuple[float, float]:
    """MB/s of a Fetch of 1 MiB again and again, and CPU seconds of the broker for each GB."""
    for _ in range(2):
        connection.sendall(produce_frame(topic, batch_of_size(900_000)))
        check_produced(receive(connection))
    frame = fetch_frame(topic, 0, 0, MIB)
    began, before, received = time.perf_counter(), rival.cpu_seconds(), 0
    while received < gigabytes * 1e9:
        connection.sendall(frame)
        received += len(receive(connection))
    return received / 1e6 / (time.perf_counter() - began), (rival.cpu_seconds() - before) / (received / 1e9)


def measure(rival: Rival, port: int, authority: Path, *, quick: bool) -> dict[str, float]:
    """All figures of one broker, after as much work to warm it up."""
    context = ssl.create_default_context(cafile=str(authority))
    context.options |= ssl.OP_NO_TICKET
    rival.timed_start()
    try:
        topic, large = rival.topic("small"), rival.topic("large")
        figures: dict[str, float] = {}
        with connect(context, port) as connection:
            for _ in range(2):
                figures["handshakes/s"] = handshakes(context, port, 2 if quick else 10)
                figures["Produce of 100 B, p50 in us"] = produce_us(connection, topic, 1_000 if quick else 20_000)
                mb_s, cpu = fetch(rival, connection, large, 0.2 if quick else 4)
                figures |= {"Fetch in MB/s": mb_s, "Fetch, CPU s/GB": cpu}
        return figures
    finally:
        rival.broker.stop()


def main() -> None:
    """Measure one broker after the other, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m compat.bench.tls", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little work: proves the program, not the figures")
    parser.add_argument("--brokers", default="kafka,kbroker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for rival, port in brokers(directory, set(options.brokers.split(","))):
            figures = measure(rival, port, directory / "ca.pem", quick=options.quick)
            print(rival.name, *(f"{what}: {value:.1f}" for what, value in figures.items()), sep="\n  ")


if __name__ == "__main__":
    main()
