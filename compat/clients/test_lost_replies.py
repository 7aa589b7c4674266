"""R6 with real clients: the broker does what each request of a transaction asks, and its reply is lost.

The broker drops the replies itself, so these tests need kbroker.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat.clients.members import CLIENTS
from compat.clients.transactional import PRODUCERS
from compat.oracle.raw import connected
from kbroker.testing import Server
from kbroker.testing import broker as new_broker

APIS = ("InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with new_broker(in_process=True) as running:
        yield running


@pytest.mark.parametrize(
    ("client", "version"), [("confluent-kafka", 1), ("confluent-kafka", 2), ("kafka-python", 2), ("aiokafka", 1)]
)
def test_r6_a_transaction_survives_the_loss_of_each_reply(server: Server, client: str, version: int) -> None:
    topic = server.create_topic(f"lost-{client}-{version}", partitions=2)
    update = {"Feature": "transaction.version", "MaxVersionLevel": version, "UpgradeType": 1}
    with connected(server.bootstrap_servers) as connection:
        connection.call("UpdateFeatures", 1, {"timeoutMs": 30_000, "FeatureUpdates": [update]})
    rules = {api: server.faults.drop_reply(api) for api in APIS}
    producer = PRODUCERS[client](server.bootstrap_servers, topic)
    member = CLIENTS[client](server.bootstrap_servers, f"group of {topic}", topic)
    for number, commits in enumerate((True, False, True)):
        producer.begin()
        producer.send(topic, {partition: [b"%d" % number] for partition in range(2)})
        producer.send_offsets(member, {0: 10 * number, 1: 20 * number})
        producer.commit() if commits else producer.abort()
    assert not producer.fenced
    producer.close()
    member.close()
    assert {api: rule.hits for api, rule in rules.items()} == dict.fromkeys(APIS, 1)
    assert [(one.partition, one.value) for one in server.records(topic)] == [
        (partition, value) for partition in range(2) for value in (b"0", b"2")
    ]
    assert len(server.records(topic, read_committed=False)) == 6
    assert [server.consumer_offset(f"group of {topic}", topic, partition) for partition in range(2)] == [20, 40]
