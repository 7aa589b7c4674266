"""The operations of `kbroker topic` on a connected client: create, delete, alter, list and describe topics.

`describe` sends the requests of Kafka's tool: DescribeTopicPartitions (Metadata if the broker does not support it),
DescribeConfigs, DescribeCluster and ListPartitionReassignments. It also shows the controller epoch, which in KRaft is
the epoch of the quorum's leader, from DescribeQuorum. If the broker does not support DescribeQuorum, the epoch is null.

Source: TopicCommand of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

from kbroker.cli import CommandFailed
from kbroker.cli._admin import explain_code
from kbroker.cli._say import say
from kbroker.cli._table import is_terminal, print_table
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import describe_configs
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

T = TypeVar("T")

DELETE_BY_NAME: Final = 5
"""The last version of DeleteTopics with a list of names."""
DEFAULT_CONFIG: Final = 5
"""Kafka's number for the source of a value that is the default."""
ZOOKEEPER_STATE_VERSION: Final = 1
"""The only version of ZooKeeper's format of the partition state."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as a broker describes it; `leader` is -1 if there is none, `eligible` None if it is unknown."""

    index: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    eligible: list[int] | None
    last_known_eligible: list[int] | None
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)

    @property
    def is_reassigned(self) -> bool:
        return bool({*self.adding, *self.removing} & {*self.replicas})

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that a reassignment is adding."""
        return len(self.replicas) - (len(self.adding) if self.is_reassigned else 0)


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic: its partitions in order, all of its settings, and those that are not Kafka's defaults."""

    name: str
    topic_id: str | None
    is_internal: bool
    partitions: list[PartitionState]
    settings: dict[str, str]
    changed_settings: dict[str, str]

    @property
    def replication_factor(self) -> int:
        return self.partitions[0].replication_factor if self.partitions else 0

    @property
    def min_insync_replicas(self) -> int:
        return int(self.settings.get("min.insync.replicas", "1"))


@dataclass(frozen=True, slots=True)
class Filters:
    """Which partitions `describe` shows; all of them if none is set."""

    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False
    topics_with_overrides: bool = False

    @property
    def chooses_partitions(self) -> bool:
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr

    def shows(self, topic: TopicState, partition: PartitionState, live: set[int]) -> bool:
        """Whether a partition passes the filters."""
        has_leader = partition.leader >= 0
        in_sync, wanted = len(partition.isr), topic.min_insync_replicas
        return (
            not self.chooses_partitions
            or (self.under_replicated and partition.replication_factor > in_sync)
            or (self.unavailable and not (has_leader and partition.leader in live))
            or (self.under_min_isr and (not has_leader or in_sync < wanted))
            or (self.at_min_isr and in_sync == wanted)
        )


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
    _raise_for([answer])
    return True


def delete_topics(client: Cluster, names: Sequence[str]) -> None:
    """Delete topics. Raises CommandFailed with the first error, after deleting all others."""
    if names:
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=client.timeout_ms)
        _raise_for(client.ask_controller(request, at_most=DELETE_BY_NAME).responses)


def add_partitions(client: Cluster, names: Sequence[str], count: int, assignment: Sequence[Sequence[int]]) -> None:
    """Increase the number of partitions to `count`; `assignment` includes the existing partitions."""
    if not names:
        return
    existing = {topic.name: len(topic.partitions) for topic in client.metadata(names).topics} if assignment else {}
    topics = []
    for name in names:
        new = assignment[existing.get(name, 0) :]
        assigned = [create_partitions.CreatePartitionsAssignment(broker_ids=list(replicas)) for replicas in new]
        topics.append(
            create_partitions.CreatePartitionsTopic(
                name=name, count=count, assignments=assigned if assignment else None
            )
        )
    request = create_partitions.CreatePartitionsRequest(
        topics=topics, timeout_ms=client.timeout_ms, validate_only=False
    )
    _raise_for(client.ask_controller(request).results)


def _raise_for(answers: Iterable[Any]) -> None:
    for answer in answers:
        if answer.error_code:
            raise CommandFailed(explain_code(answer.error_code, answer.error_message))


def matching_topics(client: Cluster, pattern: str | None, *, exclude_internal: bool) -> list[str]:
    """The sorted names that match Kafka's include list, a comma-separated list of regular expressions."""
    allowed = None if pattern is None else include_list(pattern)
    return sorted(
        str(topic.name)
        for topic in client.metadata(None).topics
        if not (exclude_internal and topic.is_internal)
        and (allowed is None or allowed.fullmatch(str(topic.name)) is not None)
    )


def internal_topics(client: Cluster, names: Collection[str]) -> set[str]:
    """The internal topics among these names. Brokers do not mark `__remote_log_metadata` as internal; this does."""
    return {
        str(topic.name)
        for topic in client.metadata(names).topics
        if topic.is_internal or topic.name == REMOTE_LOG_METADATA_TOPIC
    }


def names_of_id(client: Cluster, topic_id: str) -> list[str]:
    """A list with the name of the topic with this id; empty if there is none."""
    return [str(topic.name) for topic in client.metadata(None).topics if _id_text(topic.topic_id) == topic_id]


def _id_text(topic_id: UUID) -> str | None:
    """Kafka's text of an id; None if the broker sent none."""
    return None if topic_id == ZERO_UUID else uuid_to_text(topic_id)


def include_list(pattern: str) -> re.Pattern[str]:
    """The regular expression for an include list of topics. Raises CommandFailed for an invalid one."""
    text = re.sub(r"^[\"']+|[\"']+$", "", pattern.strip().replace(",", "|").replace(" ", ""))
    try:
        return re.compile(text)
    except re.error as error:
        raise CommandFailed(f"{pattern} is an invalid regex: {error}") from error


def describe(client: Cluster, names: Sequence[str]) -> list[TopicState]:
    """The state of topics, sorted by name, without topics that no longer exist."""
    if not names:
        return []
    described = _describe_partitions(client, sorted(names))
    moves: dict[Partition, Any] = _unless_unknown(lambda: _reassignments(client, described), {})
    configs = {
        each.resource_name: each.configs
        for each in describe_configs(client, TOPIC_RESOURCE, [topic.name for topic in described])
    }
    found = []
    for topic in described:
        name = topic.name
        entries = configs[name]
        partitions = [_partition_state(name, each, moves) for each in topic.partitions]
        found.append(
            TopicState(
                name=name,
                topic_id=_id_text(topic.topic_id),
                is_internal=topic.is_internal,
                partitions=sorted(partitions, key=lambda each: each.index),
                settings={entry.name: entry.value or "" for entry in entries},
                changed_settings={
                    entry.name: entry.value or "" for entry in entries if entry.config_source != DEFAULT_CONFIG
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
    is_last = False
    while not is_last:
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
        is_last = cursor is None
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
        index=partition.partition_index,
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replica_nodes,
        isr=partition.isr_nodes,
        offline=partition.offline_replicas,
        eligible=_eligible(partition, "eligible_leader_replicas"),
        last_known_eligible=_eligible(partition, "last_known_elr"),
        adding=move.adding_replicas if move else [],
        removing=move.removing_replicas if move else [],
    )


def _eligible(partition: Any, name: str) -> list[int] | None:
    """A list that only DescribeTopicPartitions has, and which is null if it is empty; None after Metadata."""
    return (getattr(partition, name) or []) if hasattr(partition, name) else None


def _unless_unknown(ask: Callable[[], T], otherwise: T) -> T:
    """The result of `ask`, or `otherwise` if the broker does not support the request or does not authorize it."""
    try:
        return ask()
    except KafkaError as error:
        if error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            return otherwise
        raise


def live_brokers(client: Cluster) -> set[int]:
    """The ids of the live brokers."""
    return {broker.node_id for broker in client.metadata([]).brokers}


def controller_epoch(client: Cluster) -> int | None:
    """The epoch of the active controller; None if the broker does not report it."""
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])

    def ask() -> Any:
        answer = client.ask(DescribeQuorumRequest(topics=[topic]))
        check(answer.error_code, answer.error_message)
        return answer

    quorum = _unless_unknown(ask, None)
    if quorum is None:
        return None
    epochs = [each.leader_epoch for topic in quorum.topics for each in topic.partitions]
    return next((epoch for epoch in epochs if epoch >= 0), None)


def print_described(topics: Sequence[TopicState], filters: Filters, live: set[int]) -> None:
    """Print topics: tables on a terminal, Kafka's lines elsewhere."""
    draws = is_terminal()
    for topic in topics:
        if filters.topics_with_overrides and not topic.changed_settings:
            continue
        if draws:
            _draw(topic, filters, live)
            continue
        if not filters.chooses_partitions:
            say(_topic_line(topic))
        if not filters.topics_with_overrides:
            for partition in topic.partitions:
                if filters.shows(topic, partition, live):
                    say(_partition_line(topic.name, partition))


def _topic_line(topic: TopicState) -> str:
    parts = [f"Topic: {topic.name}"]
    if topic.topic_id is not None:
        parts.append(f"TopicId: {topic.topic_id}")
    configs = ",".join(f"{name}={value}" for name, value in topic.changed_settings.items())
    parts += [f"PartitionCount: {len(topic.partitions)}", f"ReplicationFactor: {topic.replication_factor}"]
    return "\t".join([*parts, f"Configs: {configs}"])


def _partition_line(topic: str, partition: PartitionState) -> str:
    leader = "none" if partition.leader < 0 else str(partition.leader)
    parts = [f"Topic: {topic}", f"Partition: {partition.index}", f"Leader: {leader}"]
    parts += [f"Replicas: {_ids(partition.replicas)}", f"Isr: {_ids(partition.isr)}"]
    if partition.adding or partition.removing:
        parts += [f"Adding Replicas: {_ids(partition.adding)}", f"Removing Replicas: {_ids(partition.removing)}"]
    parts += [f"Elr: {_ids(partition.eligible)}", f"LastKnownElr: {_ids(partition.last_known_eligible)}"]
    return "\t" + "\t".join(parts)


def _ids(ids: Sequence[int] | None) -> str:
    return "N/A" if ids is None else ",".join(map(str, ids))


def _draw(topic: TopicState, filters: Filters, live: set[int]) -> None:
    title = f"{topic.name}  {topic.topic_id or ''}  replication factor {topic.replication_factor}"
    changed = "".join(f"\n{name}={value}" for name, value in topic.changed_settings.items())
    rows = [
        (
            each.index,
            "none" if each.leader < 0 else each.leader,
            each.leader_epoch,
            _ids(each.replicas),
            _ids(each.isr),
            _ids(each.eligible),
        )
        for each in topic.partitions
        if not filters.topics_with_overrides and filters.shows(topic, each, live)
    ]
    if rows or not filters.chooses_partitions:
        print_table(title + changed, ("partition", "leader", "leader epoch", "replicas", "in sync", "eligible"), rows)


def describe_as_json(topics: Sequence[TopicState], filters: Filters, live: set[int], epoch: int | None) -> str:
    """The topics as JSON. Each partition begins with the five fields of ZooKeeper's partition state."""
    return json.dumps(
        [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partition_count": len(topic.partitions),
                "replication_factor": topic.replication_factor,
                "configs": topic.changed_settings,
                "partitions": [
                    _partition_fields(partition, epoch)
                    for partition in topic.partitions
                    if filters.shows(topic, partition, live)
                ],
            }
            for topic in topics
            if not filters.topics_with_overrides or topic.changed_settings
        ],
        indent=2 if is_terminal() else None,
    )


def _partition_fields(partition: PartitionState, epoch: int | None) -> dict[str, Any]:
    return {
        "partition": partition.index,
        "controller_epoch": epoch,
        "leader": partition.leader,
        "version": ZOOKEEPER_STATE_VERSION,
        "leader_epoch": partition.leader_epoch,
        "isr": partition.isr,
        "replicas": partition.replicas,
        "offline_replicas": partition.offline,
        "adding_replicas": partition.adding,
        "removing_replicas": partition.removing,
        "eligible_leader_replicas": partition.eligible,
        "last_known_elr": partition.last_known_eligible,
    }
