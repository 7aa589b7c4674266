"""`kbroker cluster --status`: the brokers, leaders, in-sync replicas and lag of a running cluster."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from kbroker.cli._admin import admin_client
from kbroker.cli._say import say, say_json
from kbroker.cli._table import print_rows
from kbroker.client.cluster import Cluster, Partition
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

DEBUGGING: Final = -2
"""The replica id for a ListOffsets that any replica answers, with its own log end offset."""
LATEST: Final = -1
FENCED_SHOWN: Final = 2
"""The first version of DescribeCluster that can name fenced brokers."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """One broker; `leaders`, `replicas` and `out_of_sync` count its partitions."""

    id: int
    address: str
    rack: str | None
    is_fenced: bool
    leaders: int
    replicas: int
    out_of_sync: int


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """One partition; `leader` is -1 if there is none.

    lag maps each follower to the number of records that its log lacks, None if its broker or the leader does not answer
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    lag: dict[int, int | None]


def show(options: argparse.Namespace) -> int:
    """Print the state; return 0, or 1 if a partition has no leader or an out-of-sync replica."""
    with admin_client(options) as client:
        shows_fenced = client.serves(DescribeClusterRequest, version=FENCED_SHOWN)
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=shows_fenced
        )
        described = client.ask(request)
        metadata = client.metadata(None)
        partitions = _partitions(client, metadata)
    brokers = _brokers(described, partitions)
    is_healthy = all(one.leader >= 0 and len(one.isr) == len(one.replicas) for one in partitions)
    if options.format == "json":
        say_json(
            {
                "cluster_id": described.cluster_id,
                "is_healthy": is_healthy,
                "brokers": [asdict(broker) for broker in brokers],
                "partitions": [asdict(one) for one in partitions],
            }
        )
        return 0 if is_healthy else 1
    say(f"cluster {described.cluster_id}")
    print_rows(
        ("broker", "address", "rack", "state", "leaders", "replicas", "out of sync"),
        [
            (
                *(broker.id, broker.address, broker.rack or "-", "fenced" if broker.is_fenced else "running"),
                *(broker.leaders, broker.replicas, broker.out_of_sync),
            )
            for broker in brokers
        ],
    )
    if partitions:
        say()
        print_rows(
            ("partition", "leader", "epoch", "replicas", "isr", "lag"),
            [
                (
                    f"{one.topic}-{one.partition}",
                    one.leader if one.leader >= 0 else "none",
                    one.leader_epoch,
                    _ids(one.replicas),
                    _ids(one.isr),
                    ",".join(f"{replica}:{'?' if lag is None else lag}" for replica, lag in one.lag.items()) or "-",
                )
                for one in partitions
            ],
        )
    return 0 if is_healthy else 1


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "none"


def _brokers(described: Any, partitions: list[ReplicaSet]) -> list[BrokerState]:
    leaders = Counter(one.leader for one in partitions)
    replicas = Counter(replica for one in partitions for replica in one.replicas)
    behind = Counter(replica for one in partitions for replica in one.replicas if replica not in one.isr)
    return [
        BrokerState(
            id=broker.broker_id,
            address=f"{broker.host}:{broker.port}",
            rack=broker.rack,
            is_fenced=broker.is_fenced,
            leaders=leaders[broker.broker_id],
            replicas=replicas[broker.broker_id],
            out_of_sync=behind[broker.broker_id],
        )
        for broker in sorted(described.brokers, key=lambda broker: broker.broker_id)
    ]


def _partitions(client: Cluster, metadata: Any) -> list[ReplicaSet]:
    found = sorted(
        ((str(topic.name), part) for topic in metadata.topics for part in topic.partitions),
        key=lambda each: (each[0], each[1].partition_index),
    )
    ends = _log_ends(client, found)
    return [
        ReplicaSet(
            topic=topic,
            partition=part.partition_index,
            leader=part.leader_id,
            leader_epoch=part.leader_epoch,
            replicas=list(part.replica_nodes),
            isr=list(part.isr_nodes),
            lag={
                replica: _lag(ends, (topic, part.partition_index), part.leader_id, replica)
                for replica in part.replica_nodes
                if replica != part.leader_id
            },
        )
        for topic, part in found
    ]


def _lag(ends: Mapping[int, Mapping[Partition, int]], partition: Partition, leader: int, follower: int) -> int | None:
    end, own = ends.get(leader, {}).get(partition), ends.get(follower, {}).get(partition)
    return None if end is None or own is None else max(0, end - own)


def _log_ends(client: Cluster, found: Iterable[tuple[str, Any]]) -> dict[int, dict[Partition, int]]:
    """The log end offset of each replica, by broker; brokers that do not answer are missing."""
    wanted: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
    for topic, part in found:
        if len(part.replica_nodes) > 1:
            for replica in part.replica_nodes:
                asked = ListOffsetsPartition(partition_index=part.partition_index, timestamp=LATEST)
                wanted.setdefault(replica, {}).setdefault(topic, []).append(asked)
    ends: dict[int, dict[Partition, int]] = {}
    for broker, topics in wanted.items():
        request = ListOffsetsRequest(
            replica_id=DEBUGGING,
            topics=[ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()],
        )
        try:
            answer = client.ask(request, broker)
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise
            continue
        ends[broker] = {
            (topic.name, part.partition_index): part.offset
            for topic in answer.topics
            for part in topic.partitions
            if part.error_code == 0
        }
    return ends
