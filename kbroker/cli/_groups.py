"""The operations of `kbroker group` on a connected client: groups, their members and their progress.

The client does not support groups of the new protocol (KIP-848). Their members are read over a separate `Connection`.

Source: ConsumerGroupCommand of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from kbroker.cli import CommandFailed
from kbroker.cli._admin import coordinator_of
from kbroker.cli._positions import TopicPartitions

LATEST: Final = -1
EARLIEST: Final = -2
DEAD: Final = "Dead"
EMPTY: Final = "Empty"
UNKNOWN: Final = "Unknown"

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Listing:
    """A group in a list; `state` and `type` are "Unknown" if the broker does not report them."""

    group: str
    protocol_type: str
    state: str
    type: str

    @property
    def is_consumers(self) -> bool:
        """Whether it is a group of consumers, or of clients that only commit offsets (not of Kafka Connect)."""
        return self.protocol_type in {"consumer", ""}


@dataclass(frozen=True, slots=True)
class Member:
    """One member; `assignment` maps topics to partitions, None if it cannot be read.

    Only the new protocol has the last two: the member's epoch and its target assignment.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: dict[str, list[int]] | None
    epoch: int | None = None
    target: dict[str, list[int]] | None = None

    @property
    def partitions(self) -> list[Partition]:
        return sorted((topic, index) for topic, indexes in (self.assignment or {}).items() for index in indexes)


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator (node id, host, port) describes it; only the new protocol has epochs."""

    group: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: tuple[int, str, int] | None
    members: list[Member] = field(default_factory=list)
    epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def exists(self) -> bool:
        return self.state != DEAD


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a group in a partition; unknown values, and a missing member, are None."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    leader_epoch: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        if self.current_offset is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.current_offset


def list_groups(client: KafkaAdminClient, *, states: Sequence[str], types: Sequence[str]) -> list[Listing]:
    """The consumer groups in any of these states and types, by name; empty sequences mean all."""
    found = [
        Listing(
            each["group_id"],
            each.get("protocol_type") or "",
            each.get("group_state") or UNKNOWN,
            (each.get("group_type") or UNKNOWN).capitalize(),
        )
        for each in client.list_groups()
    ]
    # Filter here, because old brokers cannot.
    chosen = [
        each
        for each in found
        if each.is_consumers and (not states or each.state in states) and (not types or each.type in types)
    ]
    return sorted(chosen, key=lambda each: each.group)


def describe(
    client: KafkaAdminClient, groups: Sequence[str], settings: Mapping[str, Any], *, timeout_ms: int
) -> list[GroupState]:
    """The states of groups, in the order given. A group that does not exist is Dead."""
    if not groups:
        return []
    coordinators = {group: coordinator_of(client, group, timeout_ms=timeout_ms) for group in groups}
    described = client.describe_groups(list(groups))
    brokers = {broker["broker_id"]: broker for broker in client.describe_cluster()["brokers"]}
    types: dict[str, str] | None = None
    found = []
    for group in groups:
        node_id = coordinators[group]
        node = brokers.get(node_id)
        coordinator = None if node is None else (node_id, node["host"], node["port"])
        answer = described[group]
        if answer["error"] is not None and "GroupIdNotFound" not in answer["error"]:
            raise CommandFailed(f"group {group!r}: {answer['error']}")
        if answer["group_state"] == DEAD and coordinator is not None:
            if types is None:
                types = {each.group: each.type for each in list_groups(client, states=(), types=())}
            if types.get(group) == "Consumer":
                found.append(_describe_new_protocol(group, coordinator, settings))
                continue
        members = [_member(each) for each in answer["members"]]
        found.append(
            GroupState(
                group, answer["group_state"], answer["protocol_type"], answer["protocol_data"], coordinator, members
            )
        )
    return found


def _member(answer: Mapping[str, Any]) -> Member:
    assignment = answer["member_assignment"]
    topics = None
    if isinstance(assignment, Mapping):
        topics = {each["topic"]: sorted(each["partitions"]) for each in assignment["assigned_partitions"]}
    return Member(
        member_id=answer["member_id"],
        instance_id=answer.get("group_instance_id"),
        client_id=answer["client_id"],
        host=answer["client_host"],
        # A member without an assignment has empty bytes.
        assignment={} if not assignment else topics,
    )


def _describe_new_protocol(group: str, coordinator: tuple[int, str, int], settings: Mapping[str, Any]) -> GroupState:
    from kbroker.cli._connection import connect  # noqa: PLC0415  (few groups need it)
    from wire.client import UnsupportedApi  # noqa: PLC0415
    from wire.errors import Malformed  # noqa: PLC0415
    from wire.messages import consumer_group_describe as api  # noqa: PLC0415

    if str(settings.get("security_protocol", "PLAINTEXT")).startswith("SASL_"):
        raise CommandFailed(f"group {group!r} uses the new protocol; its members can be described only without SASL")
    _, host, port = coordinator
    try:
        with connect(f"[{host}]:{port}", dict(settings)) as connection:
            request = api.ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
            (answer,) = connection.ask(request).groups
    except UnsupportedApi as error:
        raise CommandFailed(f"group {group!r} is of the new protocol, and its broker cannot describe it") from error
    except (OSError, Malformed) as error:
        raise CommandFailed(f"group {group!r} cannot be described: {error}") from error
    if answer.error_code:
        raise CommandFailed(f"group {group!r} cannot be described: {answer.error_message or answer.error_code}")
    members = [
        Member(
            member_id=each.member_id,
            instance_id=each.instance_id,
            client_id=each.client_id,
            host=each.client_host,
            assignment={topic.topic_name: sorted(topic.partitions) for topic in each.assignment.topic_partitions},
            epoch=each.member_epoch,
            target={topic.topic_name: sorted(topic.partitions) for topic in each.target_assignment.topic_partitions},
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


def progress(client: KafkaAdminClient, state: GroupState) -> list[Progress]:
    """The progress in each partition that the group has committed or is assigned, by topic and partition."""
    committed = committed_offsets(client, state.group)
    owners = {partition: member for member in state.members for partition in member.partitions}
    partitions = sorted({*committed, *owners})
    ends = log_offsets(client, partitions, LATEST)
    return [
        Progress(
            topic=partition[0],
            partition=partition[1],
            current_offset=None if partition not in committed else committed[partition][0],
            log_end_offset=ends.get(partition),
            leader_epoch=None if partition not in committed else committed[partition][1],
            member=owners.get(partition),
        )
        for partition in partitions
    ]


def committed_offsets(client: KafkaAdminClient, group: str) -> dict[Partition, tuple[int, int | None]]:
    """The committed offsets of a group, each with its leader epoch if known."""
    return {
        (partition.topic, partition.partition): (
            found.offset,
            found.leader_epoch if found.leader_epoch is not None and found.leader_epoch >= 0 else None,
        )
        for partition, found in client.list_group_offsets([group])[group].items()
        if found.offset >= 0
    }


def led_partitions(client: KafkaAdminClient, topics: Collection[str]) -> dict[Partition, bool]:
    """The partitions of topics, and whether each has a leader; a topic that does not exist has no partitions."""
    if not topics:
        return {}
    return {
        (topic["name"], each["partition_index"]): each["leader_id"] >= 0
        for topic in client.describe_topics(sorted(topics))
        if topic["error_code"] == 0
        for each in topic["partitions"]
    }


def log_offsets(client: KafkaAdminClient, partitions: Iterable[Partition], spec: int) -> dict[Partition, int]:
    """Offsets by ListOffsets, for partitions that exist and have a leader; -1 if there is no such offset."""
    wanted = list(partitions)
    led = led_partitions(client, {topic for topic, _ in wanted})
    specs = {TopicPartition(*each): spec for each in wanted if led.get(each)}
    if not specs:
        return {}
    return {(each.topic, each.partition): found.offset for each, found in client.list_partition_offsets(specs).items()}


def expand(client: KafkaAdminClient, scope: Sequence[TopicPartitions]) -> list[Partition]:
    """The partitions of words such as `orders` and `orders:0,1`. Raises CommandFailed if one does not exist."""
    led = led_partitions(client, {each.topic for each in scope})
    found: set[Partition] = set()
    for topic, indexes in scope:
        existing = {index for name, index in led if name == topic}
        if not existing:
            raise CommandFailed(f"topic {topic!r} does not exist")
        if missing := sorted(set(indexes or ()) - existing):
            raise CommandFailed(f"topic {topic!r} has no partition {', '.join(map(str, missing))}")
        found |= {(topic, index) for index in (existing if indexes is None else indexes)}
    return sorted(found)
