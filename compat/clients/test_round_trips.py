"""Each client writes with every codec, idempotent and not; each client reads what each wrote."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import cast

import pytest

from compat.brokers import Broker
from compat.clients import aio, confluent, kafka_python
from compat.clients import kcat as kcat_output
from compat.clients.conftest import NewTopic
from compat.clients.samples import CODECS, Client, Sample, samples

CLIENTS = [cast(Client, module) for module in (kafka_python, confluent, aio)]
NAMES = [client.name for client in CLIENTS]
COUNT = 120
Kcat = Callable[..., bytes]
Written = dict[str, tuple[str, dict[int, list[Sample]]]]


@pytest.fixture(scope="module")
def written(broker: Broker, new_topic: NewTopic) -> Callable[[Client], tuple[str, dict[int, list[Sample]]]]:
    """The topic that a client has written and its records: a partition for each codec, idempotent and not."""
    done: Written = {}

    def write(client: Client) -> tuple[str, dict[int, list[Sample]]]:
        if client.name not in done:
            topic = new_topic(client.name, partitions=2 * len(CODECS))
            expected = {}
            for partition in range(2 * len(CODECS)):
                expected[partition] = samples(COUNT, seed=partition, null_headers=client.null_headers)
                idempotent, codec = divmod(partition, len(CODECS))
                client.produce(
                    broker.bootstrap_servers,
                    topic,
                    partition,
                    expected[partition],
                    CODECS[codec],
                    idempotent=bool(idempotent),
                )
            done[client.name] = topic, expected
        return done[client.name]

    return write


@pytest.mark.parametrize("reader", CLIENTS, ids=NAMES)
@pytest.mark.parametrize("writer", CLIENTS, ids=NAMES)
def test_every_client_reads_what_every_client_wrote(
    broker: Broker, written: Callable[[Client], tuple[str, dict[int, list[Sample]]]], writer: Client, reader: Client
) -> None:
    topic, expected = written(writer)
    counts = {partition: len(records) for partition, records in expected.items()}
    found = reader.consume(broker.bootstrap_servers, topic, counts)
    for partition, records in expected.items():
        assert found[partition] == records, f"partition {partition}"


@pytest.mark.parametrize("writer", CLIENTS, ids=NAMES)
def test_kcat_reads_what_every_client_wrote(
    kcat: Kcat, written: Callable[[Client], tuple[str, dict[int, list[Sample]]]], writer: Client
) -> None:
    topic, expected = written(writer)
    printed = kcat("-C", "-q", "-t", topic, "-o", "beginning", "-e", "-f", kcat_output.FORMAT)
    found = kcat_output.parse(printed, headers=False)
    for partition, records in expected.items():
        bare = [dataclasses.replace(record, headers=()) for record in records]
        assert found[partition] == bare, f"partition {partition}"


@pytest.mark.parametrize("idempotent", ["false", "true"])
def test_every_client_reads_what_kcat_wrote(broker: Broker, kcat: Kcat, new_topic: NewTopic, idempotent: str) -> None:
    topic = new_topic("kcat", partitions=len(CODECS))
    lines = [f"key-{number % 5}|value {number} " + "\u00fcx" * (number % 90) for number in range(300)]
    began = int(time.time() * 1000)
    for partition, codec in enumerate(CODECS):
        kcat(
            "-P", "-t", topic, "-p", str(partition), "-z", codec, "-K", "|", "-H", "one=1", "-H", "two=zwei",
            "-X", f"enable.idempotence={idempotent}",
            input="\n".join(lines).encode(),
        )  # fmt: skip
    ended = int(time.time() * 1000)
    headers = (("one", b"1"), ("two", b"zwei"))
    wanted = [(*(part.encode() for part in line.split("|")), headers) for line in lines]
    counts = dict.fromkeys(range(len(CODECS)), len(lines))
    everybody = {client.name: client.consume(broker.bootstrap_servers, topic, counts) for client in CLIENTS}
    printed = kcat("-C", "-q", "-t", topic, "-o", "beginning", "-e", "-f", kcat_output.FORMAT)
    everybody["kcat"] = kcat_output.parse(printed)
    for name, found in everybody.items():
        for partition in counts:
            assert [(record.key, record.value, record.headers) for record in found[partition]] == wanted, name
            assert all(began <= record.timestamp_ms <= ended for record in found[partition]), name
            assert found[partition] == everybody["kcat"][partition]
