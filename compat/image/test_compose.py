"""docker/compose.yaml: its brokers, started with the environment that it gives them, and a tier in a real MinIO.

No container engine is needed: the image's scripts run here, with the addresses of this machine in place of the names
of the compose file's network.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from compat.brokers import CHECKOUT, free_port
from compat.minio import BUCKET, MinioServer
from compat.tiered.minio_fixtures import admin, minio_server
from compat.waiting import until
from tests.image.test_entry_point import READY, Container

__all__ = ["minio_server"]
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
PAGES = 9644


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker" / "compose.yaml").read_text())["services"]
    return found


def test_published_ports_are_the_advertised_ones_and_those_of_the_pages(services: dict[str, Any]) -> None:
    published: set[str] = set()
    for name in BROKERS:
        advertised = services[name]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
        assert f"INTERNAL://{name}:9092," in advertised
        port = advertised.rpartition(":")[2]
        assert f"127.0.0.1:{port}:{port}" in services[name]["ports"]
        assert services[name]["volumes"] == [f"{name}:/var/lib/kafka/data"]
        assert services[name]["healthcheck"]["test"] == ["CMD", "/etc/kafka/docker/health"]
        (pages,) = (each.split(":")[1] for each in services[name]["ports"] if each.endswith(f":{PAGES}"))
        published |= {port, pages}
    assert len(published) == 2 * len(BROKERS)


def test_its_services_are_a_cluster_with_a_tier(
    services: dict[str, Any], minio_server: MinioServer, tmp_path: Path
) -> None:
    ports = {f"{name}:9092": free_port() for name in BROKERS} | {"kafka-1:9093": free_port()}
    ports |= {f"localhost:{port}": free_port() for port in (19092, 29092, 39092)}
    replaced = {address: f"127.0.0.1:{port}" for address, port in ports.items()}
    replaced["http://minio:9000"] = minio_server.endpoint

    def here(text: str) -> str:
        for address, real in replaced.items():
            text = text.replace(address, real)
        return text

    with ExitStack() as stack:
        containers, pages = [], []
        for name in BROKERS:
            given = {key: str(value) for key, value in services[name]["environment"].items()}
            for listener in given["KAFKA_LISTENERS"].split(","):
                port = listener.rpartition(":")[2]
                real = replaced.get(f"{name}:{port}") or replaced[f"localhost:{port}"]
                given["KAFKA_LISTENERS"] = given["KAFKA_LISTENERS"].replace(f"://:{port}", f"://{real}")
            given |= {
                "KAFKA_RSM_CONFIG_BUCKET": BUCKET,
                "KAFKA_RSM_CONFIG_ACCESS_KEY": minio_server.access_key,
                "KAFKA_RSM_CONFIG_SECRET_KEY": minio_server.secret_key,
            }
            assert given["KAFKA_KBROKER_HTTP_LISTENER"] == f"0.0.0.0:{PAGES}"
            given["KAFKA_KBROKER_HTTP_LISTENER"] = f"127.0.0.1:{free_port()}"
            pages.append(given["KAFKA_KBROKER_HTTP_LISTENER"])
            container = Container(tmp_path / name)
            variables = {key: here(value) for key, value in given.items()}
            running = stack.enter_context(container.running(container.kafka / "run", **variables))
            containers.append((container, running))
        for _, running in containers:
            log = running.wait_for(READY)
            assert "is ignored" not in log
        container = containers[0][0]

        def run(*words: str, input: str = "") -> str:
            command = [str(container.scripts / words[0].rpartition("/")[2]), *map(here, words[1:])]
            done = subprocess.run(
                command, input=input, capture_output=True, text=True, check=False, timeout=60, env=container.environment
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        at = "--bootstrap-server=localhost:29092"
        until(lambda: run("kafka-broker-api-versions.sh", at).count("(id: ") == len(BROKERS), patience_s=30)
        run(*services["topics"]["command"])
        assert "ReplicationFactor: 3" in run("kafka-topics.sh", at, "--describe", "--topic=events")
        values = "".join(f"{number}\n" for number in range(100))
        run("kafka-console-producer.sh", at, "--topic=events", input=values)
        kbroker = [str(container.path / "bin" / "kbroker"), "tier", "flush", "-b", replaced["localhost:39092"]]
        subprocess.run([*kbroker, "-t", "events"], check=True, timeout=60, env=container.environment)
        assert any("events" in each.object_name for each in admin(minio_server).list_objects(BUCKET, recursive=True))
        read = run("kafka-console-consumer.sh", at, "--topic=events", "--from-beginning", "--max-messages=100")
        assert sorted(read.split(), key=int) == values.split()
        for (each, _), page in zip(containers, pages, strict=True):
            assert each.health().returncode == 0
            with urlopen(f"http://{page}/health") as answer:
                assert answer.status == HTTPStatus.OK
        for _, running in reversed(containers):
            assert running.stop() == 0
