"""Which APIs and versions the broker advertises, and whether each of them answers a harmless request."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from compat.card.client import UNKNOWN_ID, Client
from compat.card.codec import Message, api_keys, decode_response, known_versions
from compat.card.outcome import code_name
from compat.card.registry import Area, NotOffered
from compat.card.session import ABSENT, SOFTWARE, shown
from compat.oracle.groups import beating, committing, fetching, joining, leaving, syncing
from compat.oracle.raw import Reply
from compat.oracle.schema import framed, request_header

AREA = Area("versions")

# The APIs of Kafka that `wire` does not declare, because kbroker does not serve them.
WITHOUT_SCHEMA = {
    38: "CreateDelegationToken", 39: "RenewDelegationToken", 40: "ExpireDelegationToken",
    41: "DescribeDelegationToken", 71: "GetTelemetrySubscriptions", 72: "PushTelemetry", 76: "ShareGroupHeartbeat",
    77: "ShareGroupDescribe", 78: "ShareFetch", 79: "ShareAcknowledge", 80: "AddRaftVoter", 81: "RemoveRaftVoter",
    83: "InitializeShareGroupState", 84: "ReadShareGroupState", 85: "WriteShareGroupState",
    86: "DeleteShareGroupState", 87: "ReadShareGroupStateSummary", 88: "StreamsGroupHeartbeat",
    89: "StreamsGroupDescribe", 90: "DescribeShareGroupOffsets", 91: "AlterShareGroupOffsets",
    92: "DeleteShareGroupOffsets",
}  # fmt: skip
# What brokers and controllers say to each other. Kafka's broker advertises none of it except the markers.
NOT_FOR_CLIENTS = {
    "AllocateProducerIds", "AlterPartition", "AssignReplicasToDirs", "BrokerHeartbeat", "BrokerRegistration",
    "ControllerRegistration", "Envelope", "FetchSnapshot",
}  # fmt: skip
# Kafka advertises these only with a plug-in that receives metrics.
OPTIONAL = {"GetTelemetrySubscriptions", "PushTelemetry"}


def names() -> dict[int, str]:
    """The names of Kafka's APIs that a broker may advertise, by key."""
    found = {key: name for name, key in api_keys().items() if name not in NOT_FOR_CLIENTS}
    return dict(sorted((found | WITHOUT_SCHEMA).items()))


def _advertised(key: int, client: Client) -> None:
    served = client.session.advertised.get(key)
    if served is None:
        raise NotOffered("the broker does not advertise the API")
    client.note("versions", shown(served))


for _key, _name in names().items():
    if _name not in OPTIONAL:
        AREA.add(f"{_name} is advertised in Kafka's versions", functools.partial(_advertised, _key))


@AREA.row("no API is advertised that Kafka does not have")
def _(client: Client) -> None:
    client.note("further API keys", sorted(set(client.session.advertised) - set(names())))


def _partitions(topic: str, **more: Any) -> Message:
    return {"Name": topic, "Partitions": [{"PartitionIndex": 0, **more}]}


TOPIC, BROKER = 2, 4
# A request of each API that changes nothing: it is about things that do not exist, or about nothing.
REQUESTS: dict[str, Message | Callable[[Client, int], Message]] = {
    "Produce": lambda _, version: {
        "Acks": 1,
        "TimeoutMs": 1000,
        "TopicData": [
            {
                "TopicId" if version >= 13 else "Name": UNKNOWN_ID if version >= 13 else ABSENT,
                "PartitionData": [{"Index": 0, "Records": b""}],
            }
        ],
    },
    "Fetch": {
        "MaxWaitMs": 0,
        "MinBytes": 0,
        "SessionEpoch": -1,
        "ReplicaId": -1,
        "Topics": [{"Topic": ABSENT, "TopicId": UNKNOWN_ID, "Partitions": [{"Partition": 0, "PartitionMaxBytes": 1}]}],
    },
    "ListOffsets": {"ReplicaId": -1, "Topics": [_partitions(ABSENT, Timestamp=-1)]},
    "Metadata": lambda client, version: {
        # Before version 4 the request creates an unknown topic.
        "Topics": [{"Name": ABSENT if version >= 4 else client.shared_topic("known", client.topic).name}],
        "AllowAutoTopicCreation": False,
    },
    "OffsetCommit": lambda client, _: committing(client.group(), {ABSENT: [(0, 1, None)]}),
    "OffsetFetch": lambda client, _: fetching(client.group(), {ABSENT: [0]}),
    "FindCoordinator": {"Key": ABSENT, "KeyType": 0, "CoordinatorKeys": [ABSENT]},
    "JoinGroup": lambda client, _: joining(client.group(), "nobody"),
    "Heartbeat": lambda client, _: beating(client.group(), 1, "nobody"),
    "LeaveGroup": lambda client, _: leaving(client.group(), ("nobody", None)),
    "SyncGroup": lambda client, _: syncing(client.group(), 1, "nobody"),
    "DescribeGroups": lambda client, _: {"Groups": [client.group()]},
    "ListGroups": {"TypesFilter": ["no such type"]},
    "SaslHandshake": {"Mechanism": "NONE-SUCH"},
    "ApiVersions": SOFTWARE,
    "CreateTopics": {"Topics": [], "timeoutMs": 1000},
    "DeleteTopics": {
        "Topics": [{"Name": ABSENT}],
        "TopicNames": [ABSENT],
        "TimeoutMs": 1000,
    },
    "DeleteRecords": {"Topics": [_partitions(ABSENT, Offset=0)], "TimeoutMs": 1000},
    "InitProducerId": {"TransactionalId": None, "TransactionTimeoutMs": 1000},
    "OffsetForLeaderEpoch": {
        "ReplicaId": -1,
        "Topics": [{"Topic": ABSENT, "Partitions": [{"Partition": 0, "LeaderEpoch": 0}]}],
    },
    "AddPartitionsToTxn": lambda client, _: _adding(client.transactional_id()),
    "AddOffsetsToTxn": lambda client, _: {**_transaction(client), "GroupId": "g"},
    "EndTxn": lambda client, _: {**_transaction(client), "Committed": False},
    "WriteTxnMarkers": {"Markers": []},
    "TxnOffsetCommit": lambda client, _: {**_transaction(client), "GroupId": client.group(), "Topics": []},
    "DescribeAcls": {
        "ResourceTypeFilter": 2,
        "ResourceNameFilter": ABSENT,
        "PatternTypeFilter": 3,
        "Operation": 1,
        "PermissionType": 1,
    },
    "CreateAcls": {"Creations": []},
    "DeleteAcls": {"Filters": []},
    "DescribeConfigs": {"Resources": [{"ResourceType": TOPIC, "ResourceName": ABSENT, "ConfigurationKeys": None}]},
    "AlterConfigs": {"Resources": [], "ValidateOnly": True},
    "AlterReplicaLogDirs": {"Dirs": []},
    "DescribeLogDirs": {"Topics": []},
    "SaslAuthenticate": {"AuthBytes": b""},
    "CreatePartitions": {"Topics": [], "TimeoutMs": 1000, "ValidateOnly": True},
    "DeleteGroups": lambda client, _: {"GroupsNames": [client.group()]},
    "ElectLeaders": {"ElectionType": 0, "TopicPartitions": [{"Topic": ABSENT, "Partitions": [0]}], "TimeoutMs": 1000},
    "IncrementalAlterConfigs": {"Resources": [], "ValidateOnly": True},
    "AlterPartitionReassignments": {"Topics": [], "TimeoutMs": 1000},
    "ListPartitionReassignments": {"Topics": [{"Name": ABSENT, "PartitionIndexes": [0]}], "TimeoutMs": 1000},
    "OffsetDelete": lambda client, _: {"GroupId": client.group(), "Topics": []},
    "DescribeClientQuotas": {
        "Components": [{"EntityType": "client-id", "MatchType": 0, "Match": ABSENT}],
        "Strict": True,
    },
    "AlterClientQuotas": {"Entries": [], "ValidateOnly": True},
    "DescribeUserScramCredentials": {"Users": [{"Name": ABSENT}]},
    "AlterUserScramCredentials": {"Deletions": [{"Name": ABSENT, "Mechanism": 1}], "Upsertions": []},
    "DescribeQuorum": {"Topics": []},
    "UpdateFeatures": {"FeatureUpdates": [], "timeoutMs": 1000, "ValidateOnly": True},
    "DescribeCluster": {},
    "DescribeProducers": {"Topics": [{"Name": ABSENT, "PartitionIndexes": [0]}]},
    "UnregisterBroker": {"BrokerId": 2_000_000_000},
    "DescribeTransactions": lambda client, _: {"TransactionalIds": [client.transactional_id()]},
    "ListTransactions": {"StateFilters": ["no such state"], "ProducerIdFilters": [], "DurationFilter": -1},
    "ConsumerGroupHeartbeat": lambda client, _: {
        "GroupId": client.group(),
        "MemberId": "nobody",
        "MemberEpoch": 7,
        "TopicPartitions": [],
    },
    "ConsumerGroupDescribe": lambda client, _: {"GroupIds": [client.group()]},
    "ListConfigResources": {"ResourceTypes": []},
    "DescribeTopicPartitions": {"Topics": [{"Name": ABSENT}], "ResponsePartitionLimit": 1},
}
# Whether these are refused depends on the authorizer, on the listener's security and on how the quorum is run.
WITHOUT_CODES = {"DescribeAcls", "CreateAcls", "DeleteAcls", "SaslHandshake", "SaslAuthenticate", "DescribeQuorum"}


def _transaction(client: Client) -> Message:
    return {"TransactionalId": client.transactional_id(), "ProducerId": 1 << 40, "ProducerEpoch": 0}


def _adding(name: str) -> Message:
    topics = [{"Name": ABSENT, "Partitions": [0]}]
    old = {"V3AndBelowTransactionalId": name, "V3AndBelowProducerId": 1 << 40, "V3AndBelowProducerEpoch": 0}
    new = {"TransactionalId": name, "ProducerId": 1 << 40, "ProducerEpoch": 0, "VerifyOnly": True, "Topics": topics}
    return {**old, "V3AndBelowTopics": topics, "Transactions": [new]}


def _codes(value: Any, name: str = "") -> set[str]:
    """The error codes in an answer."""
    if isinstance(value, dict):
        return {code for key, inner in value.items() for code in _codes(inner, key)}
    if isinstance(value, list):
        return {code for each in value for code in _codes(each, name)}
    return {code_name(value)} if name.endswith("ErrorCode") else set()


def _every_version(api: str, client: Client) -> None:
    client.newest(api)
    served = client.session.advertised[api_keys()[api]]
    made = REQUESTS[api]
    for version in known_versions(api):
        if version not in served:
            client.skip(f"version {version}")
            continue
        message = made(client, version) if callable(made) else made
        answer = client.call(api, version, message)
        codes = [] if api in WITHOUT_CODES else sorted(_codes(answer) - {"NONE"})
        client.note(f"version {version}", ", ".join(["decodes", *codes]))


for _name in names().values():
    if _name in api_keys():
        AREA.add(f"{_name} answers in each version", functools.partial(_every_version, _name))


@AREA.row("ApiVersions in an unknown version is answered with UNSUPPORTED_VERSION and the known ones")
def _(client: Client) -> None:
    for version in (5, 99, 32767):
        answer = client.ask(framed(request_header(18, version, 1, "card", flexible=True) + b"\x02a\x021\x00"))
        shape: Any = type(answer).__name__
        if isinstance(answer, Reply):
            found = decode_response("ApiVersions", 0, answer.payload)
            shape = [code_name(found["ErrorCode"]), found["ApiKeys"]]
        client.note(f"version {version}", shape)


SOFTWARE_NAMES = {
    "an empty name": ("", "1"),
    "an empty version": ("a", ""),
    "a name that begins with a dash": ("-a", "1"),
    "a name with a blank": ("a b", "1"),
    "a name with dots and dashes": ("a.b-c", "1.0-x"),
    "a name that is not ASCII": ("ä", "1"),
    "a version with a newline": ("a", "1\n"),
    "a long name": ("x" * 300, "1"),
}


@AREA.row("the client's software name is checked")
def _(client: Client) -> None:
    for label, (name, release) in SOFTWARE_NAMES.items():
        message = {"ClientSoftwareName": name, "ClientSoftwareVersion": release}
        client.note_code(label, client.call("ApiVersions", 3, message)["ErrorCode"])


@AREA.row("ApiVersions can be repeated on one connection")
def _(client: Client) -> None:
    first = client.call("ApiVersions", 3, SOFTWARE)
    client.note("the answers are the same", first["ApiKeys"] == client.call("ApiVersions", 3, SOFTWARE)["ApiKeys"])
