"""What each API asks an authorizer: a request for each check, the rights that it needs, and the code of a refusal.

One table serves the tests of the broker, those of the controller, the comparison with Apache Kafka, and the table in
docs/security.md.

Source: KafkaApis, ControllerApis and AclApis of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kbroker import quorum
from kbroker.handlers import discover
from kbroker.security.authorizing import CLUSTER_NAME, Operation, ResourceType
from tests.handlers.asking import batch
from wire.errors import ErrorCode
from wire.schema import MISSING, schema_of
from wire.types import ZERO_UUID, Primitive

ORDERS, GROUP, TXN = "orders", "grp", "txn"
"""A topic that exists, a group and a transactional id."""

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TXN_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
DENIALS = frozenset({TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TXN_DENIED})

Right = tuple[Operation, ResourceType, str]


class OrdersId:
    """Stands for the id of the topic ORDERS in a request."""


class SecretId:
    """Stands for the id of another topic in a request."""


@dataclass(frozen=True)
class Row:
    """One check of an API.

    needs   the rights that the request needs, each "OPERATION TYPE name", or alternatives separated by " | "
    code    of the refusal if one of them is missing; None: what is denied is left out of the answer
    codes   of the refusals of single needs, where they differ from `code`
    """

    api: str
    fields: Mapping[str, Any]
    needs: tuple[str, ...]
    code: ErrorCode | None
    version: int | None = None
    codes: tuple[ErrorCode, ...] = ()

    def request(self, orders_id: UUID, secret_id: UUID = ZERO_UUID) -> Any:
        """The request as a wire message."""
        return build(request_of(self.api), self.fields, {OrdersId: orders_id, SecretId: secret_id})

    def rights(self) -> list[list[Right]]:
        """The alternatives of each need."""
        return [[right_of(text) for text in need.split(" | ")] for need in self.needs]

    def code_without(self, need: int) -> ErrorCode | None:
        """The code of the refusal if one need is missing."""
        return self.codes[need] if self.codes else self.code

    def __str__(self) -> str:
        return f"{self.api} v{'newest' if self.version is None else self.version} {dict(self.fields)}"


def right_of(text: str) -> Right:
    """A right from its text."""
    operation, kind, *name = text.split(" ", 2)
    return Operation[operation], ResourceType[kind], name[0] if name else CLUSTER_NAME


_SERVED = {handler.name: handler.request_class for handler in (*discover().values(), *quorum.discover().values())}


def request_of(api: str) -> type:
    """The request class of an API."""
    return _SERVED[api]


def build(kind: Any, values: Mapping[str, Any], ids: Mapping[type, UUID]) -> Any:
    """A message or struct from nested values; what is left out is the default of its type."""
    made: dict[str, Any] = {}
    for field in schema_of(kind).fields:
        if field.name in values:
            value = values[field.name]
        elif field.default is not MISSING:
            continue
        elif field.is_array:
            value = []
        else:
            value = field.kind.default if isinstance(field.kind, Primitive) else {}
        if isinstance(value, type):
            value = ids[value]
        elif hasattr(field.kind, "__schema__") and value is not None:
            made_of = [build(field.kind, one, ids) for one in (value if field.is_array else [value])]
            value = made_of if field.is_array else made_of[0]
        made[field.name] = value
    return kind(**made)


def codes_in(answer: Any) -> Iterator[int]:
    """All error codes in an answer."""
    if isinstance(answer, list):
        for one in answer:
            yield from codes_in(one)
    elif hasattr(type(answer), "__schema__"):
        for field in schema_of(type(answer)).fields:
            value = getattr(answer, field.name)
            if field.name.endswith("error_code"):
                yield value
            else:
                yield from codes_in(value)


def cluster(api: str, operation: str, fields: Mapping[str, Any] | None = None, **more: Any) -> Row:
    """A request that needs a right on the cluster as a whole."""
    return Row(api, fields or {}, (f"{operation} CLUSTER",), CLUSTER_DENIED, **more)


def _partitions(**fields: Any) -> list[dict[str, Any]]:
    return [{"partitions": [fields], "name": ORDERS}]


_BATCH = batch(b"x")
_PRODUCED = [{"index": 0, "records": _BATCH}]
_COMMITTED = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
_FETCHED = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
_PROTOCOLS = [{"name": "range", "metadata": b""}]
_MEMBER = {"group_id": GROUP, "generation_id": 1, "member_id": "m"}
_PRODUCER = {"transactional_id": TXN, "producer_id": 9_999, "producer_epoch": 0}
_ADDED = [{"name": ORDERS, "partitions": [0]}]
_READ_TOPIC, _WRITE_TOPIC, _DESCRIBE_TOPIC = (f"{one} TOPIC {ORDERS}" for one in ("READ", "WRITE", "DESCRIBE"))
_READ_GROUP, _DESCRIBE_GROUP, _DELETE_GROUP = (f"{one} GROUP {GROUP}" for one in ("READ", "DESCRIBE", "DELETE"))
_WRITE_TXN, _DESCRIBE_TXN = f"WRITE TRANSACTIONAL_ID {TXN}", f"DESCRIBE TRANSACTIONAL_ID {TXN}"

_LOGGER = {"name": "root", "config_operation": 0, "value": "INFO"}
_RETENTION = {"name": "retention.ms", "config_operation": 0, "value": "86400000"}


def changing(kind: int, name: str, *configs: Mapping[str, Any]) -> dict[str, Any]:
    found = [{"resource_type": kind, "resource_name": name, "configs": list(configs)}]
    return {"resources": found, "validate_only": True}


def _settings(kind: int, name: str) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}


_OF_LOGGER = changing(8, "1", _LOGGER)
_ACL_FILTER = {"resource_type_filter": 2, "resource_name_filter": "no", "operation": 3, "permission_type": 3}
_ACL = {
    "resource_type": 2, "resource_name": "no", "principal": "User:nobody", "host": "*", "operation": 3,
    "permission_type": 3,
}  # fmt: skip

BROKER = (
    Row(
        "Produce", {"acks": -1, "timeout_ms": 1_000, "transactional_id": None,
                    "topic_data": [{"name": ORDERS, "partition_data": _PRODUCED}]},
        (_WRITE_TOPIC,), TOPIC_DENIED, version=12,
    ),
    Row(
        "Produce", {"acks": -1, "timeout_ms": 1_000, "transactional_id": None,
                    "topic_data": [{"topic_id": OrdersId, "partition_data": _PRODUCED}]},
        (_WRITE_TOPIC,), TOPIC_DENIED, version=13,
    ),
    Row(
        "Produce", {"acks": -1, "timeout_ms": 1_000, "transactional_id": TXN, "topic_data": [
            {"name": ORDERS, "partition_data": [
                {"index": 0, "records": batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0,
                                              is_transactional=True)}]}]},
        (_WRITE_TXN, _WRITE_TOPIC), None, version=11, codes=(TXN_DENIED, TOPIC_DENIED),
    ),
    Row("Fetch", {"min_bytes": 0, "max_bytes": 1 << 20, "topics": [{"topic": ORDERS, "partitions": _FETCHED}]},
        (_READ_TOPIC,), TOPIC_DENIED, version=12),
    Row("Fetch", {"min_bytes": 0, "max_bytes": 1 << 20, "topics": [{"topic_id": OrdersId, "partitions": _FETCHED}]},
        (_READ_TOPIC,), TOPIC_DENIED, version=17),
    Row("Fetch", {"replica_id": 7, "min_bytes": 0, "max_bytes": 1 << 20,
                  "topics": [{"topic": ORDERS, "partitions": _FETCHED}]},
        ("CLUSTER_ACTION CLUSTER",), TOPIC_DENIED, version=12),
    Row("Fetch", {"replica_id": -2, "min_bytes": 0, "max_bytes": 1 << 20,
                  "topics": [{"topic": ORDERS, "partitions": _FETCHED}]}, (_READ_TOPIC,), TOPIC_DENIED, version=12),
    Row("ListOffsets", {"replica_id": -1, "topics": _partitions(partition_index=0, timestamp=-1)},
        (_DESCRIBE_TOPIC,), TOPIC_DENIED, version=9),
    Row("ListOffsets", {"replica_id": 7, "topics": _partitions(partition_index=0, timestamp=-1)},
        (_DESCRIBE_TOPIC,), TOPIC_DENIED, version=9),
    Row("Metadata", {"topics": [{"name": ORDERS}], "allow_auto_topic_creation": False},
        (_DESCRIBE_TOPIC,), TOPIC_DENIED),
    Row("Metadata", {"topics": [{"name": None, "topic_id": OrdersId}], "allow_auto_topic_creation": False},
        (_DESCRIBE_TOPIC,), TOPIC_DENIED),
    Row("Metadata", {"topics": [{"name": "new"}], "allow_auto_topic_creation": True},
        ("DESCRIBE TOPIC new", "CREATE CLUSTER | CREATE TOPIC new"), TOPIC_DENIED),
    Row("Metadata", {"topics": None, "allow_auto_topic_creation": False}, (_DESCRIBE_TOPIC,), None),
    Row("OffsetCommit", {"group_id": GROUP, "topics": [{"name": ORDERS, "partitions": [_COMMITTED]}]},
        (_READ_GROUP, _READ_TOPIC), None, version=9, codes=(GROUP_DENIED, TOPIC_DENIED)),
    Row("OffsetCommit", {"group_id": GROUP, "topics": [{"topic_id": OrdersId, "partitions": [_COMMITTED]}]},
        (_READ_GROUP, _READ_TOPIC), None, version=10, codes=(GROUP_DENIED, TOPIC_DENIED)),
    Row("OffsetFetch", {"group_id": GROUP, "topics": [{"name": ORDERS, "partition_indexes": [0]}]},
        (_DESCRIBE_GROUP, _DESCRIBE_TOPIC), None, version=1, codes=(GROUP_DENIED, TOPIC_DENIED)),
    Row("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": [{"name": ORDERS, "partition_indexes": [0]}]}]},
        (_DESCRIBE_GROUP, _DESCRIBE_TOPIC), None, version=9, codes=(GROUP_DENIED, TOPIC_DENIED)),
    Row("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": [{"topic_id": OrdersId, "partition_indexes": [0]}]}]},
        (_DESCRIBE_GROUP, _DESCRIBE_TOPIC), None, version=10, codes=(GROUP_DENIED, TOPIC_DENIED)),
    Row("FindCoordinator", {"key_type": 0, "key": GROUP}, (_DESCRIBE_GROUP,), GROUP_DENIED, version=3),
    Row("FindCoordinator", {"key_type": 0, "coordinator_keys": [GROUP]}, (_DESCRIBE_GROUP,), GROUP_DENIED),
    Row("FindCoordinator", {"key_type": 1, "coordinator_keys": [TXN]}, (_DESCRIBE_TXN,), TXN_DENIED),
    cluster("FindCoordinator", "CLUSTER_ACTION", {"key_type": 2, "coordinator_keys": ["no-share-key"]}),
    Row("JoinGroup", {"group_id": GROUP, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000,
                      "protocol_type": "consumer", "protocols": _PROTOCOLS}, (_READ_GROUP,), GROUP_DENIED),
    Row("Heartbeat", _MEMBER, (_READ_GROUP,), GROUP_DENIED),
    Row("LeaveGroup", {"group_id": GROUP, "members": [{"member_id": "m"}]}, (_READ_GROUP,), GROUP_DENIED),
    Row("SyncGroup", {**_MEMBER, "protocol_type": "consumer", "protocol_name": "range"}, (_READ_GROUP,), GROUP_DENIED),
    Row("DescribeGroups", {"groups": [GROUP], "include_authorized_operations": True},
        (_DESCRIBE_GROUP,), GROUP_DENIED),
    Row("ListGroups", {}, (f"DESCRIBE CLUSTER | {_DESCRIBE_GROUP}",), None),
    Row("CreateTopics", {"topics": [{"name": "fresh", "num_partitions": 1, "replication_factor": 1}],
                         "validate_only": True, "timeout_ms": 1_000},
        ("CREATE CLUSTER | CREATE TOPIC fresh", "DESCRIBE_CONFIGS TOPIC fresh"), None,
        codes=(TOPIC_DENIED, TOPIC_DENIED)),
    Row("DeleteTopics", {"topic_names": ["nowhere"], "timeout_ms": 1_000},
        ("DELETE CLUSTER | DELETE TOPIC nowhere",), TOPIC_DENIED, version=5),
    Row("DeleteTopics", {"topics": [{"name": "nowhere"}], "timeout_ms": 1_000},
        ("DELETE CLUSTER | DELETE TOPIC nowhere",), TOPIC_DENIED),
    Row("DeleteRecords", {"topics": _partitions(partition_index=0, offset=0), "timeout_ms": 1_000},
        (f"DELETE TOPIC {ORDERS}",), TOPIC_DENIED),
    Row("InitProducerId", {"transactional_id": None, "transaction_timeout_ms": 1_000},
        ("IDEMPOTENT_WRITE CLUSTER | WRITE TOPIC other",), CLUSTER_DENIED),
    Row("InitProducerId", {"transactional_id": TXN, "transaction_timeout_ms": 1_000}, (_WRITE_TXN,), TXN_DENIED),
    Row("OffsetForLeaderEpoch", {"topics": [{"topic": ORDERS, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        (f"CLUSTER_ACTION CLUSTER | {_DESCRIBE_TOPIC}",), TOPIC_DENIED),
    Row("AddPartitionsToTxn", {"v3_and_below_transactional_id": TXN, "v3_and_below_producer_id": 9_999,
                               "v3_and_below_topics": _ADDED},
        (_WRITE_TXN, _WRITE_TOPIC), None, version=3, codes=(TXN_DENIED, TOPIC_DENIED)),
    cluster("AddPartitionsToTxn", "CLUSTER_ACTION", {"transactions": [
        {**_PRODUCER, "verify_only": True, "topics": _ADDED}]}),
    Row("AddOffsetsToTxn", {**_PRODUCER, "group_id": GROUP}, (_WRITE_TXN, _READ_GROUP), None,
        codes=(TXN_DENIED, GROUP_DENIED)),
    Row("EndTxn", {**_PRODUCER, "committed": True}, (_WRITE_TXN,), TXN_DENIED),
    Row("WriteTxnMarkers", {"markers": [{"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "topics": [
        {"name": "nowhere", "partition_indexes": [0]}], "coordinator_epoch": 0}]},
        ("ALTER CLUSTER | CLUSTER_ACTION CLUSTER",), CLUSTER_DENIED),
    Row("TxnOffsetCommit", {**_PRODUCER, "group_id": GROUP, "topics": [{"name": ORDERS, "partitions": [_COMMITTED]}]},
        (_WRITE_TXN, _READ_GROUP, _READ_TOPIC), None, version=3, codes=(TXN_DENIED, GROUP_DENIED, TOPIC_DENIED)),
    cluster("DescribeAcls", "DESCRIBE", {**_ACL_FILTER, "principal_filter": None, "host_filter": None}),
    cluster("CreateAcls", "ALTER", {"creations": [_ACL]}),
    cluster("DeleteAcls", "ALTER", {"filters": [{**_ACL_FILTER, "principal_filter": None, "host_filter": None}]}),
    Row("DescribeConfigs", _settings(2, ORDERS), (f"DESCRIBE_CONFIGS TOPIC {ORDERS}",), TOPIC_DENIED),
    Row("DescribeConfigs", _settings(32, GROUP), (f"DESCRIBE_CONFIGS GROUP {GROUP}",), GROUP_DENIED),
    *(cluster("DescribeConfigs", "DESCRIBE_CONFIGS", _settings(kind, "1")) for kind in (4, 8, 16)),
    Row("AlterConfigs", changing(2, ORDERS, _RETENTION), (f"ALTER_CONFIGS TOPIC {ORDERS}",), TOPIC_DENIED),
    Row("AlterConfigs", changing(32, GROUP), (f"ALTER_CONFIGS GROUP {GROUP}",), GROUP_DENIED),
    *(cluster("AlterConfigs", "ALTER_CONFIGS", changing(kind, "1")) for kind in (4, 16)),
    Row("IncrementalAlterConfigs", changing(2, ORDERS, _RETENTION), (f"ALTER_CONFIGS TOPIC {ORDERS}",), TOPIC_DENIED),
    Row("IncrementalAlterConfigs", changing(32, GROUP), (f"ALTER_CONFIGS GROUP {GROUP}",), GROUP_DENIED),
    *(cluster("IncrementalAlterConfigs", "ALTER_CONFIGS", changing(kind, "1")) for kind in (4, 16)),
    cluster("IncrementalAlterConfigs", "ALTER_CONFIGS", _OF_LOGGER),
    cluster("AlterReplicaLogDirs", "ALTER", {"dirs": [{"path": "/no", "topics": _ADDED}]}),
    cluster("DescribeLogDirs", "DESCRIBE", {"topics": []}),
    Row("CreatePartitions", {"topics": [{"name": ORDERS, "count": 9, "assignments": None}], "timeout_ms": 1_000,
                             "validate_only": True}, (f"ALTER TOPIC {ORDERS}",), TOPIC_DENIED),
    Row("DeleteGroups", {"groups_names": ["nobody"]}, ("DELETE GROUP nobody",), GROUP_DENIED),
    cluster("ElectLeaders", "ALTER", {"topic_partitions": [{"topic": ORDERS, "partitions": [0]}], "timeout_ms": 1_000}),
    cluster("AlterPartitionReassignments", "ALTER", {"topics": [
        {"name": ORDERS, "partitions": [{"partition_index": 0, "replicas": None}]}], "timeout_ms": 1_000}),
    cluster("ListPartitionReassignments", "DESCRIBE"),
    Row("OffsetDelete", {"group_id": GROUP, "topics": _partitions(partition_index=0)},
        (_DELETE_GROUP, _READ_TOPIC), None, codes=(GROUP_DENIED, TOPIC_DENIED)),
    cluster("DescribeClientQuotas", "DESCRIBE_CONFIGS"),
    cluster("AlterClientQuotas", "ALTER_CONFIGS", {"entries": [
        {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": []}], "validate_only": True}),
    cluster("AlterUserScramCredentials", "ALTER", {"deletions": [{"name": "u", "mechanism": 1}], "upsertions": []}),
    cluster("DescribeUserScramCredentials", "DESCRIBE", {"users": []}),
    cluster("DescribeQuorum", "DESCRIBE", {"topics": [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}),
    cluster("UpdateFeatures", "ALTER"),
    Row("DescribeProducers", {"topics": [{"name": ORDERS, "partition_indexes": [0]}]}, (_READ_TOPIC,), TOPIC_DENIED),
    cluster("UnregisterBroker", "ALTER", {"broker_id": 77}),
    Row("DescribeTransactions", {"transactional_ids": [TXN]}, (_DESCRIBE_TXN,), TXN_DENIED),
    Row("ListTransactions", {"transactional_id_pattern": None}, (_DESCRIBE_TXN,), None),
    Row("ConsumerGroupHeartbeat", {"group_id": GROUP, "member_id": "m", "member_epoch": 5,
                                   "subscribed_topic_names": [ORDERS]},
        (_READ_GROUP, _DESCRIBE_TOPIC), None, codes=(GROUP_DENIED, TOPIC_DENIED)),
    Row("ConsumerGroupDescribe", {"group_ids": [GROUP], "include_authorized_operations": True},
        (_DESCRIBE_GROUP,), GROUP_DENIED),
    cluster("ListConfigResources", "DESCRIBE_CONFIGS"),
    Row("DescribeTopicPartitions", {"topics": [{"name": ORDERS}]}, (_DESCRIBE_TOPIC,), TOPIC_DENIED),
)  # fmt: skip
"""The checks of a broker."""

NO_RIGHTS = {
    "ApiVersions": "clients need it before anything else; the answer has only the APIs and features of the program",
    "DescribeCluster": "every client may know the brokers; the authorized operations need DESCRIBE on the cluster",
    "SaslHandshake": "part of the authentication",
    "SaslAuthenticate": "part of the authentication",
}
"""The APIs of a broker that need no right, with the reason."""

_SNAPSHOT = {"partition": 0, "current_leader_epoch": 0, "snapshot_id": {"end_offset": 7, "epoch": 1}, "position": 0}
_OF_NODES = (
    "AllocateProducerIds", "AssignReplicasToDirs", "BrokerHeartbeat", "BrokerRegistration", "ControllerRegistration",
    "Envelope", "Fetch",
)  # fmt: skip
_SHARED = frozenset(
    {
        "AlterClientQuotas", "AlterConfigs", "AlterPartitionReassignments", "AlterUserScramCredentials",
        "CreateAcls", "CreatePartitions", "CreateTopics", "DeleteAcls", "DeleteTopics", "DescribeAcls",
        "DescribeConfigs", "DescribeQuorum", "ElectLeaders", "IncrementalAlterConfigs", "ListPartitionReassignments",
        "UnregisterBroker", "UpdateFeatures",
    }
)  # fmt: skip

CONTROLLER = (
    *(cluster(api, "CLUSTER_ACTION") for api in _OF_NODES),
    cluster("AlterPartition", "CLUSTER_ACTION", {"topics": [{"topic_id": OrdersId}]}),
    # Apache Kafka's controller stops if it is asked for nothing.
    cluster("FetchSnapshot", "CLUSTER_ACTION", {"cluster_id": "another", "replica_id": 55, "topics": [
        {"name": "__cluster_metadata", "partitions": [_SNAPSHOT]}]}),
    Row("DescribeCluster", {"endpoint_type": 2}, ("CLUSTER_ACTION CLUSTER | ALTER CLUSTER",), CLUSTER_DENIED),
    *(row for row in BROKER if row.api in _SHARED and row.fields != _OF_LOGGER),
    cluster("IncrementalAlterConfigs", "CLUSTER_ACTION", changing(8, "77", _LOGGER)),
)  # fmt: skip
"""The checks of a controller."""
