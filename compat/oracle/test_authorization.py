"""The rights that each API needs, compared with Apache Kafka: the same requests under the same ACLs.

Both brokers know their clients as ANONYMOUS. So the address tells who a client is: the administrator comes from
127.0.0.1 and may do everything; the user comes from 127.0.0.2 and has the rights of a row of
tests/handlers/authorizations.py, of which one is then missing. After that the user has all rights but this one: so a
right that opens more here than in Apache Kafka would be seen too. Requests to the controllers' listeners are compared
in the same ways.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from itertools import chain
from uuid import UUID

import pytest

from compat.brokers import WITHOUT_RETENTION, KbrokerProcess, address_of, free_port
from compat.kafka import KafkaNode
from compat.oracle.conftest import await_leaders
from compat.oracle.raw import Closed, RawConnection, connected
from compat.oracle.schema import Message, decode_response
from compat.waiting import until
from kbroker.security.authorizing import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from kbroker.testing.draws import Draws
from tests.handlers.asking import batch
from tests.handlers.authorizations import (
    BROKER,
    CONTROLLER,
    GROUP,
    ORDERS,
    TXN,
    OrdersId,
    Right,
    Row,
    SecretId,
    request_of,
    right_of,
)
from tests.security.acl_model import IMPLIES
from wire.framing import encode_request_frame
from wire.schema import schema_of

SECRET, OPEN = "secret", "open"
"""A topic that the user may not use; a transactional id with an open transaction."""

ADMINISTRATOR, USER = "127.0.0.1", "127.0.0.2"
DENY, ALLOW, LITERAL, ANY = 2, 3, 3, 1
SETTINGS = {
    **WITHOUT_RETENTION,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # until the first ACLs exist, which apply to all names
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
EVERYTHING = [
    (Operation.ALL, ResourceType.TOPIC, "*"),
    (Operation.ALL, ResourceType.GROUP, "*"),
    (Operation.ALL, ResourceType.TRANSACTIONAL_ID, "*"),
    (Operation.ALL, ResourceType.CLUSTER, CLUSTER_NAME),
]


class OfController(Row):
    """A request to the listener of the controller."""

    @classmethod
    def of(cls, row: Row) -> OfController:
        """A row of CONTROLLER, with what Apache Kafka needs."""
        needs = ("ALTER CLUSTER",) if row.api == "DescribeCluster" else row.needs
        return cls(**{**vars(row), "needs": needs})


ROWS = (*BROKER, *map(OfController.of, CONTROLLER))


class UserConnection(RawConnection):
    """A connection from the address of the user."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.timeout_s = 15
        self.socket = socket.create_connection(
            address_of(bootstrap_servers), timeout=self.timeout_s, source_address=(USER, 0)
        )


class Secured:
    """One of the two nodes, which are broker and controller."""

    def __init__(self, address: str, controller: str) -> None:
        self.address = address
        self.controller = controller
        self.grant(EVERYTHING, ADMINISTRATOR)
        with connected(address) as client:
            topics = [{"Name": name, "NumPartitions": 1, "ReplicationFactor": 1} for name in (ORDERS, SECRET)]
            created = client.call("CreateTopics", 7, {"Topics": topics, "timeoutMs": 30_000})
            ids = {topic["Name"]: UUID(bytes=topic["TopicId"]) for topic in created["Topics"]}
            self.orders_id, self.secret_id = ids[ORDERS], ids[SECRET]
            for name in ids:
                await_leaders(address, name, 1)
            for kind, key in enumerate((GROUP, TXN)):
                asked = {"KeyType": kind, "CoordinatorKeys": [key]}
                until(lambda asked=asked: not client.call("FindCoordinator", 6, asked)["Coordinators"][0]["ErrorCode"])
            until(lambda: client.call("DescribeGroups", 6, {"Groups": [GROUP]})["Groups"][0]["ErrorCode"] != 14)
            asked = {"TransactionalIds": [TXN]}
            until(lambda: client.call("DescribeTransactions", 0, asked)["TransactionStates"][0]["ErrorCode"] == 105)
            producer = {"TransactionalId": None, "TransactionTimeoutMs": 60_000}
            until(lambda: not client.call("InitProducerId", 4, producer)["ErrorCode"])
            self._make_state(client)

    def _make_state(self, client: RawConnection) -> None:
        """Committed offsets of GROUP, and an open transaction of OPEN, both with ORDERS and SECRET."""
        partition = {"PartitionIndex": 0, "CommittedOffset": 0, "CommittedMetadata": ""}
        topics = [{"Name": name, "Partitions": [partition]} for name in (ORDERS, SECRET)]
        commit = {"GroupId": GROUP, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": topics}
        done = client.call("OffsetCommit", 9, commit)
        assert not any(topic["Partitions"][0]["ErrorCode"] for topic in done["Topics"]), done
        made: Message = {}

        def is_made() -> bool:
            made.update(client.call("InitProducerId", 4, {"TransactionalId": OPEN, "TransactionTimeoutMs": 600_000}))
            return not made["ErrorCode"]

        until(is_made)
        added = {
            "V3AndBelowTransactionalId": OPEN, "V3AndBelowProducerId": made["ProducerId"],
            "V3AndBelowProducerEpoch": made["ProducerEpoch"],
            "V3AndBelowTopics": [{"Name": name, "Partitions": [0]} for name in (ORDERS, SECRET)],
        }  # fmt: skip

        def is_added() -> bool:
            results = client.call("AddPartitionsToTxn", 3, added)["ResultsByTopicV3AndBelow"]
            return not any(one["ResultsByPartition"][0]["PartitionErrorCode"] for one in results)

        until(is_added)

    def grant(
        self, rights: Iterable[Right], host: str, *, denied: Iterable[Right] = (), at_controller: bool = False
    ) -> None:
        """Replace all rights of a host, and deny others; returns when that is in effect."""
        permissions = dict.fromkeys(rights, ALLOW) | dict.fromkeys(denied, DENY)
        matching = {
            "ResourceTypeFilter": ANY, "ResourceNameFilter": None, "PatternTypeFilter": ANY, "PrincipalFilter": None,
            "HostFilter": host, "Operation": ANY, "PermissionType": ANY,
        }  # fmt: skip
        creations = [
            {
                "ResourceType": int(kind), "ResourceName": name, "ResourcePatternType": LITERAL,
                "Principal": "User:ANONYMOUS", "Host": host, "Operation": int(operation), "PermissionType": permission,
            }
            for (operation, kind, name), permission in permissions.items()
        ]  # fmt: skip
        with connected(self.address) as client:
            deleted = client.call("DeleteAcls", 3, {"Filters": [matching]})
            assert [one["ErrorCode"] for one in deleted["FilterResults"]] == [0]
            added = client.call("CreateAcls", 3, {"Creations": creations})
            assert not any(one["ErrorCode"] for one in added["Results"]), added

            def are_in_effect(client: RawConnection) -> bool:
                return permissions.keys() == {
                    (entry["Operation"], one["ResourceType"], one["ResourceName"])
                    for one in client.call("DescribeAcls", 3, matching)["Resources"]
                    for entry in one["Acls"]
                }

            until(lambda: are_in_effect(client), each_s=0.002)
        if at_controller:
            with connected(self.controller) as controller:
                until(lambda: are_in_effect(controller), each_s=0.002)

    def ask(self, row: Row) -> Message | str:
        """The answer to the user's request; that of the controller if the row is one of its table."""
        request = row.request(self.orders_id, self.secret_id)
        served = schema_of(request_of(row.api)).versions
        version = NEWEST.get(row.api, served.highest) if row.version is None else row.version
        parts = encode_request_frame(request, version, correlation_id=1, client_id="compat")
        client = UserConnection(self.controller if isinstance(row, OfController) else self.address)
        try:
            got = client.exchange(b"".join(parts))  # type: ignore[arg-type]
        finally:
            client.close()
        return "closed" if isinstance(got, Closed) else decode_response(row.api, version, got.payload)  # type: ignore[union-attr]


NEWEST = {"BrokerHeartbeat": 1, "Fetch": 18, "InitProducerId": 5}
"""The newest version that kbroker serves, if its schema has a newer one."""


@pytest.fixture(scope="module")
def secured(kafka_libraries: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Secured]]:
    """Apache Kafka and kbroker with authorizers."""
    assert kafka_libraries
    node = KafkaNode(tmp_path_factory.mktemp("kafka"), overrides=SETTINGS)
    controller = f"127.0.0.1:{free_port()}"
    listening = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://{controller}", "controller.listener.names": "CONTROLLER",
    }  # fmt: skip
    overrides = [f"{key}={value}" for key, value in {**SETTINGS, **listening}.items()]
    ours = KbrokerProcess(tmp_path_factory.mktemp("broker"), overrides=overrides)
    node.start()
    ours.start()
    try:
        yield [Secured(node.bootstrap_servers, node.bootstrap_controllers), Secured(ours.bootstrap_servers, controller)]
    finally:
        ours.kill()
        node.discard()


_NAMES = frozenset({"GroupId", "TransactionalId", "Name", "TopicName", "EntityName", "EntityType", "ResourceName"})


def shown(answer: object, path: str = "") -> Iterator[str]:
    """The error codes and authorized operations of an answer, with the names that it contains."""
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, list):
        for one in answer:
            yield from shown(one, path)
    elif isinstance(answer, dict):
        for key, value in answer.items():
            if isinstance(value, dict | list):
                yield from shown(value, f"{path}.{key}" if path else key)
            elif key in _NAMES and path.endswith(("Configs", "Listeners")):
                continue
            elif key.endswith(("ErrorCode", "Operations")) or key in _NAMES:
                yield f"{path}.{key}={value}"


def cases(row: Row) -> Iterator[tuple[str, list[Right]]]:
    """What is to be granted to the user for a row, with a text."""
    needs = row.rights()
    yield "nothing", []
    for number, alternatives in enumerate(needs):
        others = [each[0] for at, each in enumerate(needs) if at != number]
        if others:
            yield f"all but {alternatives}", others
        for right in alternatives:
            yield f"all with {right}", [*others, right]
    for operation, kind, name in dict.fromkeys(chain.from_iterable(needs)):
        for other in IMPLIES.get(operation, ()):
            others = [each[0] for each in needs if (operation, kind, name) not in each]
            yield f"{other.name} instead of {operation.name}", [*others, (other, kind, name)]


def differences(
    secured: list[Secured], rows: list[Row], why: str, rights: list[Right], *, denied: Iterable[Right] = ()
) -> Iterator[str]:
    """What the two answer differently under the same rights."""
    for broker in secured:
        broker.grant(rights, USER, denied=denied, at_controller=any(isinstance(row, OfController) for row in rows))
    for row in rows:
        theirs, ours = (sorted(shown(broker.ask(row))) for broker in secured)
        if theirs != ours:
            yield f"{type(row).__name__} {row}\n  {why}:\n    Kafka  {theirs}\n    broker {ours}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{type(row).__name__}-{row.api}-{ROWS.index(row)}")
def test_both_brokers_need_the_same_rights(secured: list[Secured], row: Row) -> None:
    faults = [fault for why, rights in cases(row) for fault in differences(secured, [row], why, rights)]
    assert not faults, "\n".join(faults)


def everything_but(missing: list[Right]) -> list[Right]:
    """All operations on all resources, except those on the types of some rights that give one of them."""
    without = {(operation, kind) for operation, kind, _ in missing}
    without |= {(other, kind) for operation, kind in without for other in IMPLIES.get(operation, ())}
    names = {kind: name for _, kind, name in EVERYTHING}
    every = [(operation, kind, names[kind]) for kind in names for operation in Operation if operation > Operation.ALL]
    return [right for right in every if right[:2] not in without]


def is_for_brokers_too(row: Row) -> bool:
    """What kbroker also answers to brokers, with CLUSTER_ACTION alone (docs/security.md)."""
    if row.api == "ListOffsets":
        return bool(row.fields["replica_id"] >= 0)
    return row.api == "DescribeCluster"


@pytest.mark.parametrize("need", dict.fromkeys(need for row in ROWS for need in row.needs))
def test_both_brokers_take_no_other_right_for_a_missing_one(secured: list[Secured], need: str) -> None:
    rows = [row for row in ROWS if need in row.needs and not is_for_brokers_too(row)]
    missing = [right_of(text) for text in need.split(" | ")]
    implying = [(other, kind, name) for operation, kind, name in missing for other in IMPLIES.get(operation, ())]
    several = [[right] for right in missing] if len(missing) > 1 else []
    faults = [*differences(secured, rows, "all other rights", everything_but(missing))]
    for denied in filter(None, (missing, implying, *several)):
        faults += differences(secured, rows, f"all rights, {denied} denied", EVERYTHING, denied=denied)
    assert not faults, "\n".join(faults)


def _named(fields: Message) -> list[Message]:
    """A struct for each of the topics that a user may use, may not use, and that does not exist."""
    return [{"name": name, **fields} for name in (ORDERS, SECRET, "nowhere")]


_DATA = {"partition_data": [{"index": 0, "records": batch(b"x")}]}
_DESCRIBES, _READS = f"DESCRIBE TOPIC {ORDERS}", f"READ TOPIC {ORDERS}"
_OFFSETS = {"partition_indexes": [0]}
_COMMIT = {"partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}
_WRITES_TXN, _READS_GROUP = f"WRITE TRANSACTIONAL_ID {TXN}", f"READ GROUP {GROUP}"
_ASKS_OPERATIONS = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
MIXED = (
    *(
        Row("Produce", {"acks": acks, "timeout_ms": 1_000, "transactional_id": None, "topic_data": _named(_DATA)},
            (f"WRITE TOPIC {ORDERS}",), None, version=12)
        for acks in (-1, 0, 7)
    ),
    Row("Fetch", {"min_bytes": 0, "max_bytes": 1 << 20, "topics": [
        {"topic": name, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}
        for name in (ORDERS, SECRET, "nowhere")]}, (_READS,), None, version=12),
    Row("Fetch", {"min_bytes": 0, "max_bytes": 1 << 20, "topics": [
        {"topic_id": topic_id, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}
        for topic_id in (OrdersId, SecretId, UUID(int=77))]}, (_READS,), None),
    Row("ListOffsets", {"replica_id": -1, "topics": _named({"partitions": [{"partition_index": 0, "timestamp": -1}]})},
        (_DESCRIBES,), None, version=9),
    *(
        Row("Metadata", {"topics": topics, "allow_auto_topic_creation": False, **_ASKS_OPERATIONS},
            needs, None, version=version)
        for topics in (None, [{"name": name} for name in (ORDERS, SECRET, "nowhere", "not legal")])
        for needs in ((), (_DESCRIBES,), (f"WRITE TOPIC {ORDERS}", "ALTER CLUSTER"), (f"ALL TOPIC {ORDERS}",))
        for version in (8, 10)
    ),
    Row("Metadata", {"topics": [{"name": None, "topic_id": one} for one in (OrdersId, SecretId, UUID(int=77))],
                     "allow_auto_topic_creation": False}, (_DESCRIBES,), None),
    Row("Metadata", {"topics": []}, (_DESCRIBES,), None, version=0),
    Row("DescribeTopicPartitions", {"topics": _named({})}, (f"READ TOPIC {ORDERS}",), None),
    Row("DescribeTopicPartitions", {"topics": []}, (f"READ TOPIC {ORDERS}",), None),
    *(
        Row("DescribeCluster", {"include_cluster_authorized_operations": True}, needs, None)
        for needs in ((), ("DESCRIBE CLUSTER",), ("ALTER CLUSTER",), ("CREATE CLUSTER",), ("ALL CLUSTER",))
    ),
    *(
        Row("DescribeGroups", {"groups": [GROUP, "other"], "include_authorized_operations": True}, (need,), None)
        for need in (f"DESCRIBE GROUP {GROUP}", f"READ GROUP {GROUP}", f"DELETE GROUP {GROUP}", f"ALL GROUP {GROUP}")
    ),
    Row("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": None}, {"group_id": "other", "topics": None}]},
        (f"DESCRIBE GROUP {GROUP}", _DESCRIBES), None, version=9),
    Row("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": None}]},
        (f"DESCRIBE GROUP {GROUP}", _DESCRIBES), None, version=10),
    Row("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": _named(_OFFSETS)}]},
        (f"DESCRIBE GROUP {GROUP}", _DESCRIBES), None, version=9),
    Row("OffsetCommit", {"group_id": GROUP, "topics": _named(_COMMIT)}, (_READS_GROUP, _READS), None, version=9),
    Row("TxnOffsetCommit", {"transactional_id": TXN, "producer_id": 9_999, "producer_epoch": 0, "group_id": GROUP,
                            "topics": _named(_COMMIT)}, (_WRITES_TXN, _READS_GROUP, _READS), None, version=3),
    Row("OffsetDelete", {"group_id": GROUP, "topics": _named({"partitions": [{"partition_index": 0}]})},
        (f"DELETE GROUP {GROUP}", _DESCRIBES), None),
    *(
        Row("AddPartitionsToTxn", {"v3_and_below_transactional_id": TXN, "v3_and_below_producer_id": 9_999,
                                   "v3_and_below_topics": topics},
            (_WRITES_TXN, f"WRITE TOPIC {ORDERS}", "WRITE TOPIC __consumer_offsets"), None, version=3)
        for topics in (_named({"partitions": [0]}), [{"name": "__consumer_offsets", "partitions": [0]}])
    ),
    Row("DeleteRecords", {"topics": _named({"partitions": [{"partition_index": 0, "offset": 0}]}), "timeout_ms": 1_000},
        (f"DELETE TOPIC {ORDERS}",), None),
    Row("DescribeProducers", {"topics": [*_named(_OFFSETS), {"name": "not legal", **_OFFSETS}]}, (_READS,), None),
    Row("OffsetForLeaderEpoch", {"topics": [
        {"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]} for name in (ORDERS, SECRET, "nowhere")]},
        (_DESCRIBES,), None),
    Row("CreateTopics", {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}
                                    for name in (ORDERS, SECRET, "made", "other", "other", "__cluster_metadata")],
                         "validate_only": True, "timeout_ms": 1_000},
        (f"CREATE TOPIC {ORDERS}", "CREATE TOPIC made"), None),
    Row("CreatePartitions", {"topics": [{**one, "assignments": None} for one in _named({"count": 5})],
                             "timeout_ms": 1_000, "validate_only": True}, (f"ALTER TOPIC {ORDERS}",), None),
    *(
        Row("DeleteTopics", {"topics": [
            {"name": None, "topic_id": SecretId}, {"name": None, "topic_id": UUID(int=77)}, {"name": "nowhere"},
            {"name": SECRET}, {"name": "twice"}, {"name": "twice"}], "timeout_ms": 1_000}, needs, None)
        for needs in ((), (f"DESCRIBE TOPIC {SECRET}",), ("DELETE TOPIC nowhere",), (f"DELETE TOPIC {ORDERS}",),
                      ("DESCRIBE TOPIC nowhere",))
    ),
    Row("DescribeConfigs", {"resources": [
        {"resource_type": kind, "resource_name": name, "configuration_keys": ["retention.ms"]}
        for kind, name in ((2, ORDERS), (2, SECRET), (2, "nowhere"), (2, "not legal"), (4, "1"), (32, GROUP))]},
        (f"DESCRIBE_CONFIGS TOPIC {ORDERS}", f"DESCRIBE_CONFIGS GROUP {GROUP}"), None),
    *(
        Row(api, {"validate_only": True, "resources": [
            {"resource_type": kind, "resource_name": name, "configs": []}
            for kind, name in ((2, ORDERS), (2, SECRET), (2, "nowhere"), (2, "not legal"), (4, ""), (4, "77"),
                               (32, GROUP), (16, "sub"), (99, "x"))]},
            (f"ALTER_CONFIGS TOPIC {ORDERS}", f"ALTER_CONFIGS GROUP {GROUP}"), None)
        for api in ("AlterConfigs", "IncrementalAlterConfigs")
    ),
    Row("DescribeTransactions", {"transactional_ids": [OPEN, TXN]},
        (f"DESCRIBE TRANSACTIONAL_ID {OPEN}", _DESCRIBES), None),
    Row("ListTransactions", {"transactional_id_pattern": None}, (f"DESCRIBE TRANSACTIONAL_ID {OPEN}",), None),
    Row("ListTransactions", {"transactional_id_pattern": None}, (), None),
    *(
        Row("InitProducerId", {"transactional_id": None, "transaction_timeout_ms": 1_000}, (need,), None)
        for need in (f"WRITE TOPIC {ORDERS}", f"ALL TOPIC {ORDERS}", f"READ TOPIC {ORDERS}", "WRITE TOPIC *")
    ),
    Row("ConsumerGroupHeartbeat", {"group_id": GROUP, "member_id": "m", "member_epoch": 5,
                                   "subscribed_topic_names": [ORDERS, SECRET, "nowhere"]},
        (_READS_GROUP, _DESCRIBES), None),
    Row("ListGroups", {}, (), None),
    Row("DeleteGroups", {"groups_names": ["nobody", "other"]}, ("DELETE GROUP nobody",), None),
)  # fmt: skip
"""Requests with several resources, of which the user may use some; they are compared under these rights only."""


@pytest.mark.parametrize("row", MIXED, ids=lambda row: f"{row.api}-{MIXED.index(row)}")
def test_both_brokers_decide_each_resource_apart(secured: list[Secured], row: Row) -> None:
    found = []
    for broker in secured:
        broker.grant([alternatives[0] for alternatives in row.rights()], USER)
        found.append(sorted(shown(broker.ask(row))))
    assert found[0] == found[1], f"{row} with {row.needs}\n    Kafka  {found[0]}\n    broker {found[1]}"


def test_both_brokers_agree_under_any_rights(secured: list[Secured]) -> None:
    draws, faults = Draws("rights", 1), []
    names = {
        ResourceType.TOPIC: (ORDERS, SECRET, "nowhere", "*"), ResourceType.GROUP: (GROUP, "*"),
        ResourceType.TRANSACTIONAL_ID: (TXN, OPEN, "*"), ResourceType.CLUSTER: (CLUSTER_NAME,),
    }  # fmt: skip
    for _ in range(15):
        kinds = [draws.choice(list(names)) for _ in range(draws.between(2, 10))]
        rights = [(draws.choice((Operation.ALL, *OPERATIONS[kind])), kind, draws.choice(names[kind])) for kind in kinds]
        rows = [row for row in MIXED if row.api != "DeleteTopics" and draws.chance(0.4)]
        faults += differences(secured, rows, f"{rights}", rights, denied=[one for one in rights if draws.chance(0.2)])
    assert not faults, "\n".join(faults)


def test_a_deletion_by_id_needs_no_right_to_describe(secured: list[Secured]) -> None:
    found = []
    for broker in secured:
        with connected(broker.address) as client:
            asked = {"Name": "doomed", "NumPartitions": 1, "ReplicationFactor": 1}
            created = client.call("CreateTopics", 7, {"Topics": [asked], "timeoutMs": 30_000})
            doomed = UUID(bytes=created["Topics"][0]["TopicId"])
            await_leaders(broker.address, "doomed", 1)
        may, may_not = right_of("DELETE TOPIC doomed"), right_of("DESCRIBE TOPIC doomed")
        broker.grant([may], USER, denied=[may_not])
        by_name, by_id = {"name": "doomed"}, {"name": None, "topic_id": doomed}
        for topic in (by_name, by_id):
            row = Row("DeleteTopics", {"topics": [topic], "timeout_ms": 10_000}, (), None)
            found.append(list(shown(broker.ask(row))))
    assert found[:2] == found[2:]
    by_id_answer = " ".join(found[1])
    assert "ErrorCode=0" in by_id_answer, found
