"""Helpers that send group requests and return the interesting part of the reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import trio

from kbroker.testing.memory_node import Client
from wire.errors import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from wire.types import ZERO_UUID

SESSION_MS = 10_000
REBALANCE_MS = 60_000


async def find(client: Client, group_id: str = "g") -> int:
    """The node that coordinates a group. Creates `__consumer_offsets`."""
    answer = await client.ask(FindCoordinatorRequest(coordinator_keys=[group_id]))
    assert answer.coordinators[0].error_code == 0, answer
    return int(answer.coordinators[0].node_id)


def joining(group_id: str = "g", member_id: str = "", *, instance: str | None = None, **more: Any) -> JoinGroupRequest:
    """A JoinGroup of a consumer with one assignor."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"subscription")]
    return JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        group_instance_id=instance,
        **{
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": protocols,
            **more,
        },
    )


def syncing(
    joined: JoinGroupResponse, assignments: Mapping[str, bytes] | None = None, *, group_id: str = "g", **more: Any
) -> SyncGroupRequest:
    """The SyncGroup request after a JoinGroup."""
    given = [SyncGroupRequestAssignment(member_id=one, assignment=part) for one, part in (assignments or {}).items()]
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=given,
        **more,
    )


async def join(client: Client, group_id: str = "g", member_id: str = "", *, version: int = 3) -> JoinGroupResponse:
    """Join a group; return the response."""
    answer = await client.ask(joining(group_id, member_id), version=version)
    assert isinstance(answer, JoinGroupResponse)
    return answer


async def form(client: Client, group_id: str = "g", *, assignment: bytes = b"all") -> JoinGroupResponse:
    """Form a stable group with this client as its only member."""
    joined = await join(client, group_id)
    assert joined.error_code == 0, joined
    answer = await client.ask(syncing(joined, {joined.member_id: assignment}, group_id=group_id))
    assert isinstance(answer, SyncGroupResponse)
    assert (answer.error_code, bytes(answer.assignment)) == (0, assignment)
    return joined


async def beat(client: Client, joined: JoinGroupResponse, *, group_id: str = "g") -> int:
    """The error code of a heartbeat."""
    answer = await client.ask(
        HeartbeatRequest(group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id)
    )
    return int(answer.error_code)


def committing(
    offsets: Mapping[tuple[str | UUID, int], int],
    *,
    group_id: str = "g",
    joined: JoinGroupResponse | None = None,
    metadata: str | None = None,
) -> OffsetCommitRequest:
    """An OffsetCommit of offsets by topic (name or id) and partition; from a simple consumer unless it has joined."""
    topics: dict[str | UUID, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=metadata)
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
        member_id="" if joined is None else joined.member_id,
        topics=[
            OffsetCommitRequestTopic(topic_id=topic, partitions=found)
            if isinstance(topic, UUID)
            else OffsetCommitRequestTopic(name=topic, partitions=found)
            for topic, found in topics.items()
        ],
    )


async def commit(
    client: Client, offsets: Mapping[tuple[str | UUID, int], int], *, version: int = 9, **more: Any
) -> dict[tuple[str | UUID, int], int]:
    """Send an OffsetCommit; return the error code of each partition."""
    answer = await client.ask(committing(offsets, **more), version=version)
    return {
        (topic.topic_id if version >= 10 else topic.name, one.partition_index): one.error_code
        for topic in answer.topics
        for one in topic.partitions
    }


async def fetch_group(
    client: Client,
    group_id: str = "g",
    places: Iterable[tuple[str | UUID, int]] | None = None,
    *,
    version: int = 9,
    require_stable: bool = False,
) -> OffsetFetchResponseGroup:
    """One group's OffsetFetch response (v8+), for all partitions unless some are given."""
    topics: dict[str | UUID, list[int]] = {}
    for topic, index in places or ():
        topics.setdefault(topic, []).append(index)
    asked = OffsetFetchRequestGroup(
        group_id=group_id,
        topics=None
        if places is None
        else [
            OffsetFetchRequestTopic(topic_id=topic, partition_indexes=indexes)
            if isinstance(topic, UUID)
            else OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in topics.items()
        ],
    )
    answer = await client.ask(OffsetFetchRequest(groups=[asked], require_stable=require_stable), version=version)
    found = answer.groups[0]
    assert isinstance(found, OffsetFetchResponseGroup)
    return found


async def offsets_of(client: Client, group_id: str = "g", *, version: int = 9) -> dict[tuple[str | UUID, int], int]:
    """All offsets of a group, after it is loaded."""
    while True:
        found = await fetch_group(client, group_id, version=version)
        if found.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
        await trio.lowlevel.checkpoint()
    assert found.error_code == 0, found
    return {
        (topic.topic_id if topic.topic_id != ZERO_UUID else topic.name, one.partition_index): one.committed_offset
        for topic in found.topics
        for one in topic.partitions
    }
