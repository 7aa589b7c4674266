"""The operations of `kbroker topic` on a connected client: create, delete, alter, list and describe topics.

`describe_topics` sends the requests of Kafka's tool: DescribeTopicPartitions (Metadata if the broker does not support
it), DescribeConfigs and ListPartitionReassignments. In KRaft, the controller epoch is the epoch of the quorum's leader,
from DescribeQuorum; it is null if the broker does not support DescribeQuorum.

Source: TopicCommand of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kbroker.cli import CommandFailed
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import describe_configs
from kbroker.config.describe import ConfigSource
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC
from kbroker.metadata.parts import TOPIC_RESOURCE
from wire.errors import ErrorCode, KafkaError, check
from wire.messages import create_partitions, create_topics, describe_topic_partitions, list_partition_reassignments
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from wire.types import ZERO_UUID, uuid_to_text

DELETE_BY_NAME: Final = 5
"""The last version of DeleteTopics with a list of names."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as a broker describes it; `leader` is -1 if there is none.

    The last two are None if they are unknown.
    """

    partition: int
    leader: int
    leader_epoch: int
    isr: list[int]
    replicas: list[int]
    offline_replicas: list[int]
    adding_replicas: list[int]
    removing_replicas: list[int]
    eligible_leader_replicas: list[int] | None
    last_known_elr: list[int] | None

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that a reassignment is adding."""
        is_reassigned = not {*self.adding_replicas, *self.removing_replicas}.isdisjoint(self.replicas)
        return len(self.replicas) - (len(self.adding_replicas) if is_reassigned else 0)


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic: its partitions in order, and its settings that are not Kafka's defaults."""

    name: str
    topic_id: str | None
    is_internal: bool
    partitions: list[PartitionState]
    min_insync_replicas: int
    changed_settings: dict[str, str]

    @property
    def replication_factor(self) -> int:
        return self.partitions[0].replication_factor if self.partitions else 0


Shows = Callable[[TopicState, PartitionState, Container[int]], bool]
# The flags of `--describe` that choose partitions; the last argument has the ids of the live brokers.
FILTERS: Final[Mapping[str, Shows]] = {
    "under_replicated_partitions": lambda _, partition, _live: partition.replication_factor > len(partition.isr),
    "unavailable_partitions": lambda _, partition, live: partition.leader not in live,
    "under_min_isr_partitions": lambda topic, partition, _live: (
        partition.leader < 0 or len(partition.isr) < topic.min_insync_replicas
    ),
    "at_min_isr_partitions": lambda topic, partition, _live: len(partition.isr) == topic.min_insync_replicas,
}


def create_topic(
    client: Cluster,
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    assignment: Sequence[Sequence[int]],
    configs: Mapping[str, str],
    if_not_exists: bool,
) -> bool:
    """Create a topic; return False if the topic exists and `if_not_exists` is set."""
    asked = create_topics.CreatableTopic(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(assignment)
        ],
        configs=[create_topics.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = create_topics.CreateTopicsRequest(topics=[asked], timeout_ms=client.timeout_ms)
    (answer,) = client.ask_controller(request).topics
    if answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
        return False
    check(answer.error_code, answer.error_message)
    return True


def delete_topics(client: Cluster, names: Sequence[str]) -> None:
    """Delete topics. Errors: KafkaError of the first refused one, after deleting all others."""
    if names:
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=client.timeout_ms)
        for answer in client.ask_controller(request, at_most=DELETE_BY_NAME).responses:
            check(answer.error_code, answer.error_message)


def add_partitions(client: Cluster, topics: Iterable[Any], count: int, assignment: Sequence[Sequence[int]]) -> None:
    """Increase the number of partitions to `count`; `assignment` includes the existing partitions."""
    api = create_partitions
    asked = []
    for topic in topics:
        new = assignment[len(topic.partitions) :]
        assigned = [api.CreatePartitionsAssignment(broker_ids=list(replicas)) for replicas in new]
        asked.append(
            api.CreatePartitionsTopic(name=topic.name, count=count, assignments=assigned if assignment else None)
        )
    request = api.CreatePartitionsRequest(topics=asked, timeout_ms=client.timeout_ms, validate_only=False)
    for answer in client.ask_controller(request).results:
        check(answer.error_code, answer.error_message)


def matching_topics(client: Cluster, pattern: str | None, *, exclude_internal: bool) -> list[Any]:
    """The topics, sorted by name, that match Kafka's include list, a comma-separated list of regular expressions."""
    allowed = None if pattern is None else include_list(pattern)
    topics = [
        topic
        for topic in client.metadata(None).topics
        if not (exclude_internal and topic.is_internal) and (allowed is None or allowed.fullmatch(str(topic.name)))
    ]
    return sorted(topics, key=lambda topic: str(topic.name))


def is_internal(topic: Any) -> bool:
    """Whether a topic is internal. Brokers do not mark `__remote_log_metadata` as internal; this does."""
    return bool(topic.is_internal) or topic.name == REMOTE_LOG_METADATA_TOPIC


def id_text(topic_id: UUID) -> str | None:
    """Kafka's text of an id; None if the broker sent none."""
    return None if topic_id == ZERO_UUID else uuid_to_text(topic_id)


def include_list(pattern: str) -> re.Pattern[str]:
    """The regular expression for an include list of topics. Raises CommandFailed for an invalid one."""
    text = re.sub(r"^[\"']+|[\"']+$", "", pattern.strip().replace(",", "|").replace(" ", ""))
    try:
        return re.compile(text)
    except re.error as error:
        raise CommandFailed(f"{pattern} is an invalid regex: {error}") from error


def describe_topics(client: Cluster, names: Sequence[str]) -> list[TopicState]:
    """The state of topics, sorted by name, without topics that no longer exist."""
    if not names:
        return []
    described = _describe_partitions(client, sorted(names))
    moves: dict[Partition, Any] = {}
    with _if_known():
        moves = _reassignments(client, described)
    configs = {
        each.resource_name: each.configs
        for each in describe_configs(client, TOPIC_RESOURCE, [topic.name for topic in described])
    }
    found = []
    for topic in described:
        entries = configs[topic.name]
        values = {entry.name: entry.value or "" for entry in entries}
        partitions = [_partition_state(topic.name, each, moves) for each in topic.partitions]
        found.append(
            TopicState(
                name=topic.name,
                topic_id=id_text(topic.topic_id),
                is_internal=topic.is_internal,
                partitions=sorted(partitions, key=lambda each: each.partition),
                min_insync_replicas=int(values.get("min.insync.replicas", "1")),
                changed_settings={
                    entry.name: entry.value or ""
                    for entry in entries
                    if entry.config_source != ConfigSource.DEFAULT_CONFIG
                },
            )
        )
    return found


def _describe_partitions(client: Cluster, names: Sequence[str]) -> list[Any]:
    """The topics with all of their partitions, read page by page, without topics that no longer exist."""
    api = describe_topic_partitions
    if not client.serves(api.DescribeTopicPartitionsRequest):
        return [topic for topic in client.metadata(names).topics if topic.error_code == 0]
    found: dict[str, Any] = {}
    cursor: api.Cursor | None = None
    while True:
        request = api.DescribeTopicPartitionsRequest(
            topics=[api.TopicRequest(name=name) for name in names], cursor=cursor
        )
        page = client.ask(request)
        for topic in page.topics:
            if topic.name in found:
                found[topic.name].partitions += topic.partitions
            else:
                found[topic.name] = topic
        cursor = page.next_cursor
        if cursor is None:
            return [topic for topic in found.values() if topic.error_code == 0]


def _reassignments(client: Cluster, topics: Iterable[Any]) -> dict[Partition, Any]:
    """The ongoing reassignments of these topics."""
    api = list_partition_reassignments
    wanted = [
        api.ListPartitionReassignmentsTopics(
            name=topic.name, partition_indexes=[each.partition_index for each in topic.partitions]
        )
        for topic in topics
    ]
    answer = client.ask_controller(api.ListPartitionReassignmentsRequest(timeout_ms=client.timeout_ms, topics=wanted))
    check(answer.error_code, answer.error_message)
    return {(topic.name, each.partition_index): each for topic in answer.topics for each in topic.partitions}


def _partition_state(topic: str, partition: Any, moves: Mapping[Partition, Any]) -> PartitionState:
    move = moves.get((topic, partition.partition_index))
    return PartitionState(
        partition=partition.partition_index,
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr_nodes,
        replicas=partition.replica_nodes,
        offline_replicas=partition.offline_replicas,
        adding_replicas=move.adding_replicas if move else [],
        removing_replicas=move.removing_replicas if move else [],
        eligible_leader_replicas=_eligible(partition, "eligible_leader_replicas"),
        last_known_elr=_eligible(partition, "last_known_elr"),
    )


def _eligible(partition: Any, name: str) -> list[int] | None:
    """A list that only DescribeTopicPartitions has, and which is null if it is empty; None after Metadata."""
    return (getattr(partition, name) or []) if hasattr(partition, name) else None


@contextmanager
def _if_known() -> Iterator[None]:
    """Skip the block at a request that the broker does not support or does not authorize."""
    try:
        yield
    except KafkaError as error:
        if error.code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            raise


def controller_epoch(client: Cluster) -> int | None:
    """The epoch of the active controller; None if the broker does not report it."""
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    epochs: list[int] = []
    with _if_known():
        answer = client.ask(DescribeQuorumRequest(topics=[topic]))
        check(answer.error_code, answer.error_message)
        epochs = [each.leader_epoch for topic in answer.topics for each in topic.partitions]
    return next((epoch for epoch in epochs if epoch >= 0), None)
