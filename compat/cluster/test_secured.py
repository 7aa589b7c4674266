"""Three brokers and a controller of kbroker with everything switched on that docs/security.md and docs/quotas.md
describe.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from compat.clients import franz
from compat.cluster import limited
from compat.cluster.secured import ADMIN, SecuredCluster, password
from compat.cluster.switched_on import everything
from compat.cluster.tiered_load import TIERED, TOPIC, local_start
from compat.kafka import libraries, run_tool
from compat.waiting import until
from kbroker.security.authorizing import Operation, ResourceType

USER, GUEST, GROUP = "shop", "guest", "readers"
PATIENCE_S = 60.0
EACH = 20
"""Records of each client besides librdkafka."""
OK, TOPIC_DENIED, GROUP_DENIED = 0, 29, 30
SCRAM_512 = ScramMechanism.SCRAM_SHA_512


class Shop:
    """A user with only the necessary rights runs a transactional producer and a consumer group."""

    def __init__(self, cluster: SecuredCluster) -> None:
        self._cluster = cluster
        self.sent: list[bytes] = []
        self._producer = Producer({**cluster.client(USER), "transactional.id": f"{TOPIC}-shop"})
        self._producer.init_transactions(PATIENCE_S)
        self._consumer = self._join(GROUP)
        self._received: list[bytes] = []

    def _join(self, group: str) -> Consumer:
        consumer = Consumer({**self._cluster.client(USER), "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        return consumer

    def produce(self, count: int) -> None:
        """One transaction; the group gets its records."""
        new = [b"%06d" % (len(self.sent) + number) + b"x" * 100 for number in range(count)]
        self._producer.begin_transaction()
        for number, value in enumerate(new):
            self._producer.produce(TOPIC, value)
            if number % 50 == 0:
                assert self._producer.flush(PATIENCE_S) == 0
        self._producer.commit_transaction(PATIENCE_S)
        self.sent += new
        self._read(self._consumer, self._received)

    def read_all(self) -> None:
        """Another group gets everything, from the beginning."""
        consumer, found = self._join(f"{GROUP}-again"), []
        self._read(consumer, found)
        consumer.close()

    def _read(self, consumer: Consumer, found: list[bytes]) -> None:
        def is_complete() -> bool:
            for message in consumer.consume(1_000, timeout=0.2):
                assert message.error() is None, message.error()
                found.append(message.value() or b"")
            return len(found) >= len(self.sent)

        until(is_complete, patience_s=PATIENCE_S)
        assert found == self.sent

    def close(self) -> None:
        self._consumer.close()


def produce_with_other_clients(cluster: SecuredCluster) -> list[bytes]:
    """kafka-python, franz-go and Kafka's tool, each as the user. Returns what they wrote, in order."""
    written = [b"kafka-python %d" % number for number in range(EACH)]
    with closing(KafkaProducer(**cluster.kafka_python(USER), acks="all")) as producer:
        for sent in [producer.send(TOPIC, value) for value in written]:
            sent.get(timeout=PATIENCE_S)
    franz.run("produce", topic=TOPIC, codec="none", count=EACH, **cluster.franz(USER, 2))
    written += [b"none-%d" % number for number in range(EACH)]
    of_java = [b"java %d" % number for number in range(EACH)]
    console(cluster, "ConsoleProducer", input=b"\n".join(of_java).decode())
    return written + of_java


def console(cluster: SecuredCluster, tool: str, *arguments: str, input: str | None = None) -> str:
    """Run one of Kafka's tools as the user; returns its standard output."""
    at = ("--bootstrap-server", cluster.bootstrap_servers, "--command-config", cluster.command_config(USER))
    done = run_tool(f"org.apache.kafka.tools.{tool}", *at, "--topic", TOPIC, *arguments, input=input)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_that_other_clients_read(cluster: SecuredCluster, sent: list[bytes]) -> None:
    """kafka-python and Kafka's tool in groups, and franz-go without one, get everything from the beginning."""
    found: list[bytes] = []
    with closing(
        KafkaConsumer(
            **cluster.kafka_python(USER),
            group_id=f"{GROUP}-python",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
    ) as consumer:
        # If it joins the group before it knows the partitions, it assigns none to itself, for ever.
        until(lambda: bool(consumer.partitions_for_topic(TOPIC)), patience_s=PATIENCE_S)
        consumer.subscribe([TOPIC])

        def is_complete() -> bool:
            found.extend(record.value for records in consumer.poll(timeout_ms=200).values() for record in records)
            return len(found) >= len(sent)

        until(is_complete, patience_s=PATIENCE_S)
    assert found == sent
    texts = [value.decode() for value in sent]
    read = franz.run("consume", topic=TOPIC, count=len(sent), isolation="read_committed", **cluster.franz(USER, 2))
    assert read == {"0": texts}
    limits = ("--from-beginning", "--max-messages", str(len(sent)), "--timeout-ms", "30000")
    committed = ("--isolation-level", "read_committed", "--group", f"{GROUP}-java")
    assert console(cluster, "consumer.ConsoleConsumer", *limits, *committed).splitlines() == texts


def create_user(admin: AdminClient, user: str) -> None:
    info = ScramCredentialInfo(SCRAM_512, 4096)
    change = UserScramCredentialUpsertion(user, info, password(user).encode())
    admin.alter_user_scram_credentials([change])[user].result(PATIENCE_S)


def check_that_a_guest_sees_nothing(cluster: SecuredCluster) -> None:
    for broker in cluster.brokers:
        with cluster.connect_as(GUEST, broker) as connection:
            seen = connection.call("Metadata", 5, {"Topics": None, "AllowAutoTopicCreation": False})
            assert seen["Topics"] == []
            partition = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": -1}
            asked = {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": [partition]}]}
            (topic,) = connection.call("ListOffsets", 7, asked)["Topics"]
            assert topic["Partitions"][0]["ErrorCode"] == TOPIC_DENIED
            found = connection.call("FindCoordinator", 3, {"Key": GROUP, "KeyType": 0})
            assert found["ErrorCode"] == GROUP_DENIED


def await_certificate(cluster: SecuredCluster, wanted: bytes) -> None:
    """Wait until every listener of the running nodes shows a certificate."""
    for node in (each for each in cluster.nodes if each.is_running):
        for listener in node.settings["listeners"].split(","):
            address = listener.partition("://")[2]
            until(lambda: cluster.certificate(address) == wanted, each_s=0.1, patience_s=PATIENCE_S)  # noqa: B023


def test_w13_a_secured_cluster_outlives_a_leader_and_its_certificates(tmp_path: Path) -> None:
    libraries()
    franz.binary()
    with everything(tmp_path) as cluster:
        cluster.start()
        admin = AdminClient(cluster.client(ADMIN, broker=1))
        for user in (USER, GUEST, *limited.USERS):
            create_user(admin, user)
        new = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2, 3]], config=TIERED)
        places = [[limited.LEADER, 3, 1]]
        of_limited = NewTopic(limited.TOPIC, num_partitions=1, replica_assignment=places, config=limited.CONFIG)
        for made in admin.create_topics([new, of_limited]).values():
            made.result(PATIENCE_S)
        cluster.allow(
            [
                (USER, Operation.READ, ResourceType.TOPIC, TOPIC),
                (USER, Operation.WRITE, ResourceType.TOPIC, TOPIC),
                (USER, Operation.READ, ResourceType.GROUP, GROUP),
                (USER, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, TOPIC),
            ],
            through=2,
        )
        # What was made through one broker holds on all.
        cluster.await_view(USER, TOPIC, OK)
        cluster.await_view(GUEST, TOPIC, TOPIC_DENIED)
        assert cluster.refuses(USER, 3, "guess")
        check_that_a_guest_sees_nothing(cluster)
        cluster.check_audit(GUEST, TOPIC)
        cluster.check_logins(USER, TOPIC)
        cluster.check_pages()
        limited.check_that_quotas_limit(cluster)

        shop = Shop(cluster)
        shop.produce(1_000)
        until(lambda: local_start(cluster, 1) > 500, patience_s=PATIENCE_S)
        assert cluster.leader(TOPIC, ask=2) == 1
        cluster.brokers[1].kill()
        await_certificate(cluster, cluster.renew_certificates())
        shop.produce(100)
        cluster.brokers[1].start()
        cluster.await_brokers(1, 2, 3)
        cluster.await_isrs(TOPIC, 1, 2, 3)
        shop.produce(100)
        cluster.change_certificate_of_clients()
        shop.sent += produce_with_other_clients(cluster)
        shop.read_all()
        check_that_other_clients_read(cluster, shop.sent)

        cluster.forbid_all(USER, through=1)
        cluster.await_view(USER, TOPIC, TOPIC_DENIED)
        admin.alter_user_scram_credentials([UserScramCredentialDeletion(USER, SCRAM_512)])[USER].result(PATIENCE_S)
        cluster.await_refusal(USER)
        shop.close()
        cluster.check_that_no_secret_was_logged(ADMIN, USER, GUEST, *limited.USERS)
