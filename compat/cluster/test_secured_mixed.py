"""Apache Kafka and kbroker in one cluster with SASL_SSL on all listeners, SCRAM and StandardAuthorizer on both sides.

What is made through either kind of broker holds on both, under a controller of either kind. The controller decides
about requests that a broker forwards by the principal of the client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat.cluster.nodes import KAFKA, KBROKER
from compat.cluster.secured import ADMIN, NODE, SCRAM_NUMBER, SecuredCluster, password
from compat.cluster.test_transactional_offsets import GROUP, TRANSACTION, one_on_each
from compat.kafka import libraries
from compat.kafka.tools import tool
from compat.oracle.schema import Message
from compat.waiting import until
from kbroker.security.authorizing import Operation, ResourceType

PATIENCE_S = 90.0
OK, TOPIC_DENIED = 0, 29
KINDS = {1: KBROKER, 2: KAFKA}
TOPIC, PREFIX = "orders", "shop"
"""The topic's partition 0 is led by broker 1, and partition 1 by broker 2."""
FAVOURITE = "favourite"
"""A user whom kbroker's broker takes for a super user, and the controllers do not."""


@pytest.fixture(scope="module", params=[KAFKA, KBROKER], ids=["kafka-controls", "kbroker-controls"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    libraries()
    with SecuredCluster(
        tmp_path_factory.mktemp("secured"),
        controllers=[request.param],
        brokers=list(KINDS.values()),
        super_users=(ADMIN, NODE),
    ) as made:
        made.brokers[1].settings["super.users"] += f";User:{FAVOURITE}"
        made.start()
        new = {"Name": TOPIC, "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": [
            {"PartitionIndex": 0, "BrokerIds": [1, 2]}, {"PartitionIndex": 1, "BrokerIds": [2, 1]},
        ]}  # fmt: skip
        with made.connect(1) as connection:
            answer = connection.call("CreateTopics", 7, {"Topics": [new], "timeoutMs": 30_000})
        assert [topic["ErrorCode"] for topic in answer["Topics"]] == [OK], answer
        yield made


def add_user(cluster: SecuredCluster, user: str, *, through: int) -> None:
    """Set the user's SCRAM password."""
    salt = b"salt of the user"
    upsertion = {
        "Name": user, "Mechanism": SCRAM_NUMBER, "Iterations": 4096, "Salt": salt,
        "SaltedPassword": hashlib.pbkdf2_hmac("sha512", password(user).encode(), salt, 4096),
    }  # fmt: skip
    with cluster.connect(through) as connection:
        answer = connection.call("AlterUserScramCredentials", 0, {"Deletions": [], "Upsertions": [upsertion]})
    assert [one["ErrorCode"] for one in answer["Results"]] == [OK], answer


def create(cluster: SecuredCluster, user: str, topic: str, *, through: int) -> int:
    """The code of a topic's creation."""
    new = {"Name": topic, "NumPartitions": 1, "ReplicationFactor": 2}
    with cluster.connect_as(user, through) as connection:
        answer: Message = connection.call("CreateTopics", 7, {"Topics": [new], "timeoutMs": 30_000})
    return int(answer["Topics"][0]["ErrorCode"])


def test_users_and_acls_made_through_either_broker_hold_on_both(cluster: SecuredCluster) -> None:
    for through in KINDS:
        user = f"{PREFIX}-{through}"
        add_user(cluster, user, through=through)
        cluster.await_view(user, TOPIC, TOPIC_DENIED)
        assert all(cluster.refuses(user, broker, "guess") for broker in KINDS)
        cluster.allow([(user, Operation.DESCRIBE, ResourceType.TOPIC, TOPIC)], through=through)
        cluster.await_view(user, TOPIC, OK)
        cluster.forbid_all(user, through=3 - through)
        cluster.await_view(user, TOPIC, TOPIC_DENIED)


def test_kafkas_tools_set_users_and_acls_on_both(cluster: SecuredCluster) -> None:
    user = f"{PREFIX}-tools"
    at = ("--bootstrap-server", cluster.brokers[1].address, "--command-config", cluster.command_config(ADMIN))
    added = f"SCRAM-SHA-512=[password={password(user)}]"
    named = ("--entity-type", "users", "--entity-name", user)
    tool("kafka.admin.ConfigCommand", *at, "--alter", "--add-config", added, *named)
    rule = ("--allow-principal", f"User:{user}", "--operation", "Describe", "--topic", TOPIC)
    tool("AclCommand", *at, "--add", *rule)
    cluster.await_view(user, TOPIC, OK)


def test_forwarded_requests_have_the_rights_of_their_client(cluster: SecuredCluster) -> None:
    creator = f"{PREFIX}-creator"
    for user in (creator, FAVOURITE):
        add_user(cluster, user, through=1)
    cluster.allow([(creator, Operation.CREATE, ResourceType.TOPIC, "made")], through=1)
    cluster.await_view(creator, TOPIC, TOPIC_DENIED)  # the users are known
    for through in KINDS:
        # A broker of kbroker refuses by itself until it has the ACL.
        until(lambda: create(cluster, creator, f"made-{through}", through=through) == OK, patience_s=PATIENCE_S)  # noqa: B023
        assert create(cluster, creator, f"other-{through}", through=through) == TOPIC_DENIED
    # This broker allows it, so the answer is the controller's.
    until(lambda: cluster.code_of(TOPIC, FAVOURITE, 1) == OK, patience_s=PATIENCE_S)
    assert create(cluster, FAVOURITE, "favoured", through=1) == TOPIC_DENIED
    (controller,) = cluster.controllers.values()
    if controller.kind == KBROKER:
        made = [line for line in controller.log().splitlines() if "topic created topic=made-" in line]
        assert len(made) == len(KINDS)
        assert all(f"principal=User:{creator} " in line for line in made)


def test_brokers_of_both_kinds_replicate_and_end_transactions_for_each_other(cluster: SecuredCluster) -> None:
    user = f"{PREFIX}-transactional"
    add_user(cluster, user, through=2)
    rules = [
        (user, Operation.READ, ResourceType.TOPIC, TOPIC),
        (user, Operation.WRITE, ResourceType.TOPIC, TOPIC),
        (user, Operation.READ, ResourceType.GROUP, "group"),
        (user, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "t-"),
    ]
    cluster.allow(rules, through=2)
    cluster.await_view(user, TOPIC, OK)
    groups, ids = one_on_each(cluster, "group", GROUP), one_on_each(cluster, "t", TRANSACTION)
    sent: list[bytes] = []
    for broker, transactional_id in ids.items():
        # With acks=all and min.insync.replicas=2 each record is on brokers of both kinds.
        producer = Producer({**cluster.client(user), "transactional.id": transactional_id})
        reader = Consumer({**cluster.client(user), "group.id": groups[3 - broker]})
        producer.init_transactions(PATIENCE_S)
        for is_commit in (True, False):
            producer.begin_transaction()
            for partition in (0, 1):
                value = f"{transactional_id} {partition} {is_commit}".encode()
                producer.produce(TOPIC, value, partition=partition)
                sent += [value] if is_commit else []
            places = [TopicPartition(TOPIC, 0, broker if is_commit else 99)]
            producer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), PATIENCE_S)
            if is_commit:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
        (found,) = reader.committed([TopicPartition(TOPIC, 0)], PATIENCE_S)
        assert found.offset == broker
        reader.close()
    cluster.brokers[1].kill()
    cluster.brokers[1].start()
    cluster.await_brokers(*KINDS)
    cluster.await_isrs(TOPIC, *KINDS)
    consumer = Consumer({**cluster.client(user), "group.id": "group-of-readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    received: list[bytes] = []

    def is_complete() -> bool:
        for message in consumer.consume(100, timeout=0.2):
            assert message.error() is None, message.error()
            received.append(message.value() or b"")
        return len(received) >= len(sent)

    until(is_complete, patience_s=PATIENCE_S)
    consumer.close()
    assert sorted(received) == sorted(sent)
