"""Transactions are not implemented: each client gets a fatal error immediately.

A client that gets a retriable error retries until its time is up. Each client here has a minute, and each test checks
the name of the error, so that a time-out is a failure. docs/clients.md has the texts.
"""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer

from compat.brokers import Broker
from compat.clients.conftest import NewTopic
from compat.conftest import KafkaTool, Kcat

PATIENCE_S = 60
NOT_YET = "transactions are not implemented yet"


@pytest.fixture(autouse=True)
def only_kbroker(broker: Broker) -> None:
    """Apache Kafka serves them."""
    if broker.name != "kbroker":
        pytest.skip("this broker supports transactions")


def test_librdkafka_is_refused_transactions_for_good(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "log_level": 0})
    with pytest.raises(KafkaException, match=NOT_YET) as caught:
        producer.init_transactions(PATIENCE_S)
    error = caught.value.args[0]
    assert error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert error.fatal()


def test_kcat_is_refused_transactions_for_good(kcat: Kcat, new_topic: NewTopic) -> None:
    with pytest.raises(AssertionError, match=NOT_YET):
        kcat("-P", "-t", new_topic("kcat"), "-X", "transactional.id=t", input=b"value\n", timeout_s=PATIENCE_S)


def test_kafka_python_is_refused_transactions_for_good(broker: Broker) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="t", max_block_ms=PATIENCE_S * 1000
    )
    with pytest.raises(Exception, match="ClusterAuthorizationFailedError"):
        producer.init_transactions()
    producer.close(timeout=1)


def test_aiokafka_is_refused_transactions_for_good(broker: Broker) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t")
        try:
            await asyncio.wait_for(producer.start(), PATIENCE_S)
        finally:
            await producer.stop()

    with pytest.raises(Exception, match="ClusterAuthorizationFailedError"):
        asyncio.run(start())


def test_java_is_refused_transactions_for_good(broker: Broker, kafka_tool: KafkaTool, new_topic: NewTopic) -> None:
    size = ("--num-records", "10", "--record-size", "10", "--throughput", "-1")
    transaction = ("--transactional-id", "t", "--transaction-duration-ms", "1000")
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", new_topic("java"))
    patience = ("--command-property", f"max.block.ms={PATIENCE_S * 1000}")
    done = kafka_tool("ProducerPerformance", *at, *size, *transaction, *patience, status=1)
    assert NOT_YET in done.stderr


def test_tools_that_look_at_transactions_end(broker: Broker, kafka_tool: KafkaTool) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    described = kafka_tool("TransactionsCommand", *at, "describe", "--transactional-id", "t", status=1)
    assert "FindCoordinator" in described.stdout + described.stderr
    listed = kafka_tool("TransactionsCommand", *at, "list", status=1)
    assert "does not support LIST_TRANSACTIONS" in listed.stdout + listed.stderr
