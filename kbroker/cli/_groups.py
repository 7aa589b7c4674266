"""The operations of `kbroker group` on a connected client: groups, their members and their progress.

Source: ConsumerGroupCommand of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from kbroker.cli import CommandFailed, nearest
from kbroker.cli._admin import explain
from kbroker.cli._positions import TopicPartitions
from kbroker.client import operations
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import LATEST
from wire.errors import ErrorCode, KafkaError, Malformed, check
from wire.messages.consumer_group_describe import Assignment, ConsumerGroupDescribeRequest
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.describe_groups import DescribedGroupMember, DescribeGroupsRequest
from wire.messages.list_groups import ListedGroup, ListGroupsRequest
from wire.stored.consumer_protocol import ConsumerProtocolAssignment
from wire.stored.frame import decode_value

DEAD: Final = "Dead"
EMPTY: Final = "Empty"
STABLE: Final = "Stable"
UNKNOWN: Final = "Unknown"
NO_ERROR_FOR_MISSING: Final = 5
"""The last version of DescribeGroups that answers Dead, without an error, for a group that does not exist."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A group in a list; `type` and `state` are "Unknown" if the broker does not report them."""

    group: str
    type: str
    state: str


@dataclass(frozen=True, slots=True)
class Member:
    """One member; `assignment` maps topics to partitions, None if it cannot be read.

    Only the new protocol has the last two: the member's epoch and its target assignment.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: dict[str, list[int]] | None
    epoch: int | None = None
    target_assignment: dict[str, list[int]] | None = None

    @property
    def partitions(self) -> list[Partition]:
        return sorted((topic, index) for topic, indexes in (self.assignment or {}).items() for index in indexes)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The broker that coordinates a group."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator describes it; only the new protocol has epochs."""

    group: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Coordinator
    members: list[Member]
    epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def exists(self) -> bool:
        return self.state != DEAD


class Progress(NamedTuple):
    """The progress of a group in a partition; unknown values, and a missing member, are None."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    leader_epoch: int | None
    member: Member | None


def list_groups(client: Cluster, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[Listing]:
    """The groups in any of these states and types, by name; empty sequences mean all.

    They are groups of consumers, or of clients that only commit offsets (not of Kafka Connect).
    """
    found = [
        Listing(each.group_id, (each.group_type or UNKNOWN).capitalize(), each.group_state or UNKNOWN)
        for each in listed_groups(client)
        if each.protocol_type in {"consumer", ""}
    ]
    # Filter here, because old brokers cannot.
    chosen = [each for each in found if (not states or each.state in states) and (not types or each.type in types)]
    return sorted(chosen, key=lambda each: each.group)


def listed_groups(client: Cluster) -> list[ListedGroup]:
    """The groups of every broker, of all types and protocols."""
    client.metadata([])
    return [each for node_id in list(client.nodes) for each in client.retry(partial(_listed_by, client, node_id))]


def _listed_by(client: Cluster, node_id: int) -> list[ListedGroup]:
    answer = client.ask(ListGroupsRequest(), node_id)
    check(answer.error_code)
    groups: list[ListedGroup] = answer.groups
    return groups


def describe(client: Cluster, groups: Sequence[str], *, timeout_ms: int) -> list[GroupState]:
    """The states of groups, in the order given. A group that does not exist is Dead."""
    types: dict[str, str] | None = None
    found = []
    for group in groups:
        try:
            node_id, answer = client.retry(partial(_described, client, group), timeout_ms=timeout_ms)
        except KafkaError as error:
            raise CommandFailed(f"group {group!r}: {explain(error)}") from error
        coordinator = Coordinator(node_id, *client.nodes[node_id])
        if answer.group_state == DEAD:
            if types is None:
                types = {each.group: each.type for each in list_groups(client)}
            if types.get(group) == "Consumer":
                found.append(_describe_new_protocol(client, group, coordinator))
                continue
        members = [_member(each) for each in answer.members]
        found.append(
            GroupState(group, answer.group_state, answer.protocol_type, answer.protocol_data, coordinator, members)
        )
    return found


def _described(client: Cluster, group: str) -> tuple[int, Any]:
    """The group's coordinator and its answer."""
    node_id = client.coordinator(group)
    (answer,) = client.ask(DescribeGroupsRequest(groups=[group]), node_id, at_most=NO_ERROR_FOR_MISSING).groups
    check(answer.error_code)
    return node_id, answer


def delete(client: Cluster, group: str, *, timeout_ms: int) -> None:
    """Delete a group. Errors: KafkaError."""
    request = DeleteGroupsRequest(groups_names=[group])
    client.ask_coordinator(group, request, lambda answer: check(answer.results[0].error_code), timeout_ms=timeout_ms)


def _member(answer: DescribedGroupMember) -> Member:
    assignment: dict[str, list[int]] | None = {}  # A member without an assignment has empty bytes.
    if answer.member_assignment:
        try:
            read: Any = decode_value(ConsumerProtocolAssignment, answer.member_assignment)
            assignment = {each.topic: sorted(each.partitions) for each in read.assigned_partitions}
        except Malformed:
            assignment = None
    return Member(
        member_id=answer.member_id,
        group_instance_id=answer.group_instance_id,
        client_id=answer.client_id,
        host=answer.client_host,
        assignment=assignment,
    )


def _describe_new_protocol(client: Cluster, group: str, coordinator: Coordinator) -> GroupState:
    request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    try:
        (answer,) = client.ask(request, coordinator.id).groups
        check(answer.error_code, answer.error_message)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            raise CommandFailed(f"group {group!r} is of the new protocol, and its broker cannot describe it") from error
        raise CommandFailed(f"group {group!r} cannot be described: {error.message or int(error.code)}") from error
    members = [
        Member(
            member_id=each.member_id,
            group_instance_id=each.instance_id,
            client_id=each.client_id,
            host=each.client_host,
            assignment=_by_name(each.assignment),
            epoch=each.member_epoch,
            target_assignment=_by_name(each.target_assignment),
        )
        for each in answer.members
    ]
    return GroupState(
        group=group,
        state=answer.group_state,
        protocol_type="consumer",
        assignor=answer.assignor_name,
        coordinator=coordinator,
        members=members,
        epoch=answer.group_epoch,
        assignment_epoch=answer.assignment_epoch,
    )


def _by_name(assignment: Assignment) -> dict[str, list[int]]:
    return {topic.topic_name: sorted(topic.partitions) for topic in assignment.topic_partitions}


def progress(client: Cluster, state: GroupState) -> list[Progress]:
    """The progress in each partition that the group has committed or is assigned, by topic and partition."""
    committed = operations.committed_offsets(client, state.group)
    owners = {partition: member for member in state.members for partition in member.partitions}
    partitions = sorted({*committed, *owners})
    ends = log_offsets(client, partitions, LATEST)
    found = []
    for partition in partitions:
        at, end = committed.get(partition), ends.get(partition)
        lag = None if at is None or end is None else end - at.offset
        epoch = None if at is None or at.leader_epoch < 0 else at.leader_epoch
        found.append(Progress(*partition, at.offset if at else None, end, lag, epoch, owners.get(partition)))
    return found


def led_partitions(client: Cluster, topics: Collection[str]) -> dict[Partition, bool]:
    """The partitions of topics, and whether each has a leader; a topic that does not exist has no partitions."""
    return {
        (str(topic.name), each.partition_index): each.leader_id >= 0
        for topic in client.metadata(sorted(topics)).topics
        if topic.error_code == 0
        for each in topic.partitions
    }


def log_offsets(client: Cluster, partitions: Iterable[Partition], spec: int) -> dict[Partition, int]:
    """Offsets by ListOffsets, for partitions that exist and have a leader; -1 if there is no such offset."""
    wanted = list(partitions)
    led = led_partitions(client, {topic for topic, _ in wanted})
    specs = {each: spec for each in wanted if led.get(each)}
    return {partition: found.offset for partition, found in operations.list_offsets(client, specs).items()}


def nearest_topic(client: Cluster, topic: str) -> str:
    """A question about the topic that may have been meant, or nothing."""
    return nearest(topic, [str(each.name) for each in client.metadata(None).topics])


def expand(client: Cluster, scope: Sequence[TopicPartitions]) -> list[Partition]:
    """The partitions of words such as `orders` and `orders:0,1`. Raises CommandFailed if one does not exist."""
    led = led_partitions(client, {each.topic for each in scope})
    found: set[Partition] = set()
    for topic, indexes in scope:
        existing = {index for name, index in led if name == topic}
        if not existing:
            raise CommandFailed(f"topic {topic!r} does not exist{nearest_topic(client, topic)}")
        if missing := sorted(set(indexes or ()) - existing):
            raise CommandFailed(f"topic {topic!r} has no partition {', '.join(map(str, missing))}")
        found |= {(topic, index) for index in (existing if indexes is None else indexes)}
    return sorted(found)
