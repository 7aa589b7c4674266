"""Offsets of logs and of groups, and settings, by the requests of Kafka's tools. Errors: KafkaError."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from kbroker.client.cluster import Cluster, Partition
from wire.errors import ErrorCode, KafkaError, check
from wire.messages import describe_configs as describe_configs_api
from wire.messages import init_producer_id, offset_commit, offset_delete, offset_fetch, produce
from wire.messages import list_offsets as list_offsets_api

T = TypeVar("T")

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_SPEC_VERSIONS: Final = {-3: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The first versions of ListOffsets that know a special timestamp."""
_ONE_GROUP: Final = 7
"""The last version of OffsetFetch for a single group."""
_TOPIC_NAMES: Final = 9
"""The last version of OffsetCommit with the names of topics."""
PRODUCE_BY_NAME: Final = 12
"""The last version of Produce with the names of topics."""
ALL_REPLICAS: Final = -1
_STABLE_INIT_PRODUCER_ID: Final = 5
_ELSEWHERE: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
"""Errors after which a group's coordinator is looked up again."""


class OffsetAt(NamedTuple):
    """An answer of ListOffsets; offset is -1 if there is none."""

    offset: int
    timestamp_ms: int


class Committed(NamedTuple):
    """A committed offset; the leader epoch is -1 if it is unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def by_topic(partitions: Iterable[Partition], of_partition: Callable[[str, int], T]) -> list[tuple[str, list[T]]]:
    """The partitions of a request, grouped by topic."""
    found: dict[str, list[T]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(of_partition(topic, index))
    return list(found.items())


def _each_partition(answer: Any) -> Iterator[tuple[Partition, Any]]:
    for topic in answer.topics:
        for each in topic.partitions:
            yield (topic.name, each.partition_index), each


def _error_codes(answer: Any) -> dict[Partition, int]:
    return {partition: int(each.error_code) for partition, each in _each_partition(answer)}


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[Partition, int],
    *,
    isolation_level: int = 0,
    timeout_ms: int | None = None,
    also: Collection[ErrorCode] = (),
) -> dict[Partition, OffsetAt]:
    """For each partition the offset of a timestamp, or of a special one such as EARLIEST; leaders are asked.

    Errors  UnknownPartition; UNSUPPORTED_VERSION for a special timestamp that the broker does not know
    """
    first = max((_SPEC_VERSIONS.get(each, 0) for each in timestamps.values()), default=0)
    if first and not cluster.serves(list_offsets_api.ListOffsetsRequest, version=first):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"the broker does not serve version {first} of ListOffsets")

    def request(wanted: Sequence[Partition]) -> object:
        def of_partition(topic: str, index: int) -> list_offsets_api.ListOffsetsPartition:
            return list_offsets_api.ListOffsetsPartition(partition_index=index, timestamp=timestamps[topic, index])

        topics = [
            list_offsets_api.ListOffsetsTopic(name=topic, partitions=parts)
            for topic, parts in by_topic(wanted, of_partition)
        ]
        waits_ms = cluster.timeout_ms if timeout_ms is None else timeout_ms
        return list_offsets_api.ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation_level, topics=topics, timeout_ms=waits_ms
        )

    def read(answer: Any) -> Iterator[tuple[Partition, int, OffsetAt]]:
        for partition, each in _each_partition(answer):
            yield partition, each.error_code, OffsetAt(each.offset, each.timestamp)

    return cluster.ask_leaders(timestamps, request, read, timeout_ms=timeout_ms, also=also)


def committed_offsets(cluster: Cluster, group: str) -> dict[Partition, Committed]:
    """The offsets that a group has committed."""

    def read(answer: Any) -> dict[Partition, Committed]:
        check(answer.error_code)
        found = {}
        for partition, each in _each_partition(answer):
            check(each.error_code)
            if each.committed_offset >= 0:
                found[partition] = Committed(each.committed_offset, each.metadata or "", each.committed_leader_epoch)
        return found

    request = offset_fetch.OffsetFetchRequest(group_id=group, topics=None)
    return cluster.ask_coordinator(group, request, read, at_most=_ONE_GROUP)


def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[Partition, Committed],
    *,
    generation_id: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
) -> dict[Partition, int]:
    """Commit offsets in one request; returns error codes. Without a generation, the group must have no members."""

    def of_partition(topic: str, index: int) -> offset_commit.OffsetCommitRequestPartition:
        offset, metadata, leader_epoch = offsets[topic, index]
        return offset_commit.OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=leader_epoch,
            committed_metadata=metadata,
        )

    def read(answer: Any) -> dict[Partition, int]:
        found = _error_codes(answer)
        for code in _ELSEWHERE.intersection(found.values()):
            check(code)
        return found

    if not offsets:
        return {}
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            offset_commit.OffsetCommitRequestTopic(name=topic, partitions=parts)
            for topic, parts in by_topic(offsets, of_partition)
        ],
    )
    return cluster.ask_coordinator(group, request, read, at_most=_TOPIC_NAMES)


def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[Partition], *, timeout_ms: int
) -> dict[Partition, int]:
    """Delete committed offsets of a group; returns error codes."""

    def of_partition(_topic: str, index: int) -> offset_delete.OffsetDeleteRequestPartition:
        return offset_delete.OffsetDeleteRequestPartition(partition_index=index)

    def read(answer: Any) -> dict[Partition, int]:
        check(answer.error_code)
        return _error_codes(answer)

    topics = [
        offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=parts)
        for topic, parts in by_topic(partitions, of_partition)
    ]
    request = offset_delete.OffsetDeleteRequest(group_id=group, topics=topics)
    return cluster.ask_coordinator(group, request, read, timeout_ms=timeout_ms)


def describe_configs(
    cluster: Cluster, resource_type: int, names: Iterable[str], *, node_id: int | None = None
) -> list[describe_configs_api.DescribeConfigsResult]:
    """The settings of resources, with their synonyms. Some resources are known only to one broker."""
    resources = [
        describe_configs_api.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=None
        )
        for name in names
    ]
    request = describe_configs_api.DescribeConfigsRequest(resources=resources, include_synonyms=True)
    found: list[describe_configs_api.DescribeConfigsResult] = cluster.ask(request, node_id).results
    return found


def new_producer_id(cluster: Cluster) -> tuple[int, int]:
    """A producer id and epoch for an idempotent producer."""
    request = init_producer_id.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=cluster.timeout_ms)

    def attempt() -> tuple[int, int]:
        answer = cluster.ask(request, at_most=_STABLE_INIT_PRODUCER_ID)
        check(answer.error_code)
        return answer.producer_id, answer.producer_epoch

    return cluster.retry(attempt)


def produce_request(batches: Mapping[Partition, bytes], *, acks: int, timeout_ms: int) -> produce.ProduceRequest:
    """A request with one batch for each partition."""

    def of_partition(topic: str, index: int) -> produce.PartitionProduceData:
        return produce.PartitionProduceData(index=index, records=batches[topic, index])

    topics = [
        produce.TopicProduceData(name=topic, partition_data=parts) for topic, parts in by_topic(batches, of_partition)
    ]
    return produce.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)
