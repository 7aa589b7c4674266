"""A client that may not describe a topic learns its name from no API: not by ids, groups, transactions or lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.security.authorizing import Operation, ResourceType
from kbroker.testing.memory_node import Client, MemoryBroker
from tests.coordinator.world import subscription
from tests.handlers.asking import create_topic
from tests.handlers.authorizations import BROKER, GROUP, ORDERS, TXN, OrdersId, Right, Row
from tests.handlers.groups import commit, find, joining, syncing
from tests.handlers.test_authorization import Rights
from tests.handlers.transactions import add_partitions, init
from wire.codec import encode
from wire.errors import ErrorCode
from wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from wire.messages.join_group import JoinGroupRequestProtocol
from wire.stored.consumer_protocol import ConsumerProtocolAssignment, TopicPartition

HIDDEN = "hidden-topic"
ID = {"topic_id": OrdersId}
"""The id of HIDDEN: the requests of the table are built with it."""

_FETCHED = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
BROAD = (
    Row("Metadata", {"topics": []}, (), None, version=0),
    *(Row("Metadata", {"topics": None, "allow_auto_topic_creation": False}, (), None, version=at) for at in (4, 13)),
    Row("DescribeTopicPartitions", {"topics": []}, (), None),
    Row("DescribeTopicPartitions", {"topics": [], "response_partition_limit": 1,
                                    "cursor": {"topic_name": "a", "partition_index": 0}}, (), None),
    *(Row("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": None}]}, (), None, version=at) for at in (8, 9, 10)),
    Row("OffsetFetch", {"group_id": GROUP, "topics": None}, (), None, version=2),
    Row("OffsetFetch", {"groups": [{"group_id": GROUP, "topics": [{**ID, "partition_indexes": [0, 9]}]}]}, (), None),
    Row("OffsetCommit", {"group_id": GROUP, "topics": [{**ID, "partitions": [{
        "partition_index": 9, "committed_offset": 1, "committed_metadata": ""}]}]}, (), None),
    Row("DescribeTransactions", {"transactional_ids": [TXN]}, (), None),
    Row("ListTransactions", {"transactional_id_pattern": ".*"}, (), None),
    Row("ConsumerGroupDescribe", {"group_ids": [GROUP]}, (), None),
    Row("DescribeGroups", {"groups": [GROUP]}, (), None),
    Row("DeleteTopics", {"topics": [{"name": None, **ID}], "timeout_ms": 1_000}, (), None),
    *(Row("Fetch", {"replica_id": replica, "min_bytes": 0, "max_bytes": 1 << 20, "topics": [
        {**ID, "partitions": _FETCHED}]}, (), None, version=13) for replica in (-3, -2, -1, 1)),
    Row("Fetch", {"replica_state": {"replica_id": 1, "replica_epoch": -1}, "min_bytes": 0, "max_bytes": 1 << 20,
                  "topics": [{**ID, "partitions": _FETCHED}]}, (), None),
)  # fmt: skip
"""Requests that name nothing, or only ids."""


def every_right_but_those_on_hidden() -> Iterator[Right]:
    """All rights on the resources of the table, except those on the cluster that show all topics by their nature."""
    yield Operation.ALL, ResourceType.TOPIC, ORDERS
    yield Operation.ALL, ResourceType.TOPIC, "fresh"
    yield Operation.ALL, ResourceType.GROUP, "*"
    yield Operation.ALL, ResourceType.TRANSACTIONAL_ID, "*"
    for operation in (Operation.CREATE, Operation.IDEMPOTENT_WRITE):
        yield operation, ResourceType.CLUSTER, "kafka-cluster"


@pytest.fixture
def rights(broker: MemoryBroker) -> Rights:
    """An authorizer that allows everything at first."""
    made = broker.node.broker.authorizer = Rights()
    return made


async def heartbeat(client: Client, group: str, member: str, **fields: object) -> ConsumerGroupHeartbeatResponse:
    """Join a consumer group."""
    values = {"rebalance_timeout_ms": 30_000, "topic_partitions": [], **fields}
    request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=0, **values)  # type: ignore[arg-type]
    answer: ConsumerGroupHeartbeatResponse = await client.ask(request)
    return answer


async def make_state(client: Client) -> UUID:
    """A topic that everything of the cluster refers to: a group, its offsets, and an open transaction."""
    for name in (ORDERS, HIDDEN):
        topic_id = await create_topic(client, name)
    await find(client, GROUP)
    assert await commit(client, {(HIDDEN, 0): 1}, group_id=GROUP) == {(HIDDEN, 0): 0}
    joined = await heartbeat(client, GROUP, "member", subscribed_topic_names=[HIDDEN])
    assert joined.error_code == 0
    assert joined.assignment.topic_partitions[0].topic_id == topic_id
    producer_id, epoch = await init(client, TXN)
    assert await add_partitions(client, TXN, producer_id, epoch, (HIDDEN, 0)) == {(HIDDEN, 0): 0}
    return topic_id


@pytest.mark.parametrize("given", [[], list(every_right_but_those_on_hidden())], ids=["nothing", "the rest"])
async def test_x7_no_api_names_a_topic_that_the_client_may_not_describe(
    broker: MemoryBroker, rights: Rights, given: list[Right]
) -> None:
    user = await broker.connect()
    topic_id = await make_state(user)
    for row in (*BROAD, *BROKER):
        rights.grant(*given)
        answer = await user.ask(row.request(topic_id, topic_id), version=row.version)
        assert HIDDEN not in repr(answer), f"{row}: {answer}"
    rights.grant_all()
    told = {row.api for row in BROAD if HIDDEN in repr(await user.ask(row.request(topic_id), version=row.version))}
    assert told >= {"Metadata", "OffsetFetch", "ConsumerGroupDescribe", "DeleteTopics"}  # the requests can tell it


async def learned(client: Client, topic: str, *, is_upgraded: bool) -> list[object]:
    """The answers to a client that subscribes to a topic as a classic member of a consumer group. With is_upgraded the
    group starts as a classic group, whose leader assigns a partition of the topic to itself.
    """
    group = f"{topic}-{is_upgraded}"
    await find(client, group)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription(topic))]
    member, told = "", []

    async def join() -> Any:
        joined = await client.ask(joining(group, member, protocols=protocols), version=3)
        told.append(joined.error_code)
        return joined

    async def describe() -> None:
        asked = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
        (described,) = (await client.ask(asked)).groups
        told.append(described.error_code)
        for one in described.members:
            given = (one.assignment, one.target_assignment)
            told.append([len(part.topic_partitions) for part in given])

    if is_upgraded:
        joined = await join()
        member = joined.member_id
        own = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic=topic, partitions=[0])])
        await client.ask(syncing(joined, {member: b"\0\0" + encode(own, 0)}, group_id=group))
    beaten = await heartbeat(client, group, "member", subscribed_topic_names=[ORDERS])
    if beaten.error_code:
        assert is_upgraded
        return [*told, ErrorCode(beaten.error_code)]
    await describe()
    await trio.sleep(2)  # group.consumer.assignment.interval.ms
    joined = await join()
    synced = await client.ask(syncing(joined, group_id=group))
    told += [synced.error_code, len(synced.assignment)]
    await describe()
    return told


@pytest.mark.parametrize("is_upgraded", [False, True])
async def test_x7_a_classic_member_of_a_consumer_group_does_not_learn_whether_a_topic_exists(
    broker: MemoryBroker, rights: Rights, is_upgraded: bool
) -> None:
    user = await broker.connect()
    for name in (ORDERS, HIDDEN):
        await create_topic(user, name)
    absent = "n" * len(HIDDEN)
    rights.grant((Operation.ALL, ResourceType.GROUP, "*"), (Operation.DESCRIBE, ResourceType.TOPIC, ORDERS))
    told = await learned(user, absent, is_upgraded=is_upgraded)
    assert (told[-1] == ErrorCode.TOPIC_AUTHORIZATION_FAILED) == is_upgraded
    assert await learned(user, HIDDEN, is_upgraded=is_upgraded) == told
    rights.grant_all()
    assert await learned(user, HIDDEN, is_upgraded=is_upgraded) != told
