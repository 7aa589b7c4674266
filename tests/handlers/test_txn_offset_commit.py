"""TxnOffsetCommit on a running node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbroker.testing.broker import Client
from tests.handlers.asking import create_topic
from tests.handlers.groups import find
from wire.errors import ErrorCode
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def commit_in_transaction(
    client: Client,
    offsets: Mapping[tuple[str, int], int],
    *,
    version: int = 4,
    group_id: str = "g",
    producer: tuple[int, int] = (1000, 0),
) -> dict[tuple[str, int], int]:
    """Send a TxnOffsetCommit without a member; return the error code of each partition."""
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        one = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        topics.setdefault(topic, []).append(one)
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=found) for topic, found in topics.items()],
    )
    answer = await client.ask(request, version=version)
    return {(topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions}


@pytest.mark.parametrize("version", range(6))
async def test_every_version_needs_the_coordinator_of_the_transaction(client: Client, version: int) -> None:
    await find(client)
    await create_topic(client, "t")
    answer = await commit_in_transaction(client, {("t", 0): 5, ("t", 7): 5, ("other", 0): 5}, version=version)
    assert answer == {
        ("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ("t", 7): UNKNOWN,
        ("other", 0): UNKNOWN,
    }


@pytest.mark.parametrize("group_id", ["", "g"])
async def test_a_broker_refuses_groups_that_it_does_not_coordinate(client: Client, group_id: str) -> None:
    await create_topic(client, "t")
    code = ErrorCode.NOT_COORDINATOR if group_id else ErrorCode.INVALID_GROUP_ID
    assert await commit_in_transaction(client, {("t", 0): 5}, group_id=group_id) == {("t", 0): code}
