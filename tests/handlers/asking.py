"""Helpers that send requests to a node and return the interesting part of the reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.testing.env import WALL_START_MS
from kbroker.testing.memory_node import Client, MemoryBroker
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from wire.record_batch import Record, RecordBatch, batches, build_batch
from wire.types import ZERO_UUID

NAMED = 12
"""The last version of Produce with the names of topics."""
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE = 0, 1


async def create_topic(
    client: Client, name: str, *, partitions: int = 1, settings: Mapping[str, object] | None = None
) -> UUID:
    """Create one topic, which must succeed; return its id."""
    configs = [CreatableTopicConfig(name=key, value=str(value)) for key, value in (settings or {}).items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs)
    answer = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert answer.topics[0].error_code == 0, answer
    topic_id = answer.topics[0].topic_id
    assert isinstance(topic_id, UUID)
    return topic_id


async def alter_configs(
    client: Client, kind: int, name: str, changes: Mapping[str, object | None], *, version: int = 1
) -> tuple[int, str | None]:
    """Set keys of a topic or of brokers, or delete those with value None; return (error code, text)."""
    configs = [
        AlterableConfig(
            name=key, config_operation=DELETE if value is None else SET, value=None if value is None else str(value)
        )
        for key, value in changes.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await client.ask(
        IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), version=version
    )
    return answer.responses[0].error_code, answer.responses[0].error_message


async def delete_topic(client: Client, name: str) -> None:
    """Delete one topic, which must succeed."""
    topic = DeleteTopicState(name=name, topic_id=ZERO_UUID)
    answer = await client.ask(DeleteTopicsRequest(topics=[topic], topic_names=[], timeout_ms=1000))
    assert answer.responses[0].error_code == 0, answer


def batch(*values: bytes, timestamp: int = WALL_START_MS, **more: Any) -> bytes:
    """A batch of values with one timestamp."""
    return build_batch([Record(timestamp=timestamp, value=value) for value in values], **more)


def producing(
    *entries: tuple[str, int, bytes | None], acks: int = -1, transactional_id: str | None = None, timeout_ms: int = 1000
) -> ProduceRequest:
    """A Produce of several (topic, partition, records)."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for topic, index, records in entries:
        topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
    )


async def produce(
    client: Client, topic: str, records: bytes | None, *, partition: int = 0, version: int = NAMED, **more: Any
) -> PartitionProduceResponse:
    """Produce one batch; return the response for its partition."""
    answer = await client.ask(producing((topic, partition, records), **more), version=version)
    found = answer.responses[0].partition_responses[0]
    assert isinstance(found, PartitionProduceResponse)
    return found


async def new_producer(client: Client) -> int:
    """A new producer id."""
    answer = await client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
    assert answer.error_code == 0
    return int(answer.producer_id)


def wanted(partition: int = 0, offset: int = 0, *, limit: int = 1 << 20, **more: Any) -> FetchPartition:
    """One partition of a Fetch."""
    return FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=limit, **more)


def fetching(
    topic: str | UUID,
    *partitions: FetchPartition,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 30,
    replica_id: int = -1,
    replica_epoch: int | None = None,
    session: tuple[int, int] = (0, -1),
    forget: Sequence[int] = (),
    read_committed: bool = False,
) -> FetchRequest:
    """A Fetch from one topic, by name (up to version 12) or by id; a replica_epoch is sent from version 15 on."""
    key: dict[str, Any] = {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
    return FetchRequest(
        replica_id=replica_id if replica_epoch is None else -1,
        replica_state=None
        if replica_epoch is None
        else ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch),
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(partitions=list(partitions), **key)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(partitions=list(forget), **key)] if forget else [],
    )


def parts(answer: FetchResponse) -> dict[int, PartitionData]:
    """The partitions of a response with one topic, in order."""
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


def read_batches(part: PartitionData) -> list[RecordBatch]:
    """The batches in a partition of a Fetch response."""
    assert isinstance(part.records, memoryview)
    return list(batches(part.records))


def values(part: PartitionData) -> list[bytes | None]:
    """The values in a partition of a Fetch response, in order."""
    return [record.value for one in read_batches(part) for record in one.records()]


async def read(client: Client, topic: str, *, partition: int = 0, offset: int = 0) -> list[bytes | None]:
    """All values of a partition from an offset on."""
    answer = await client.ask(fetching(topic, wanted(partition, offset, limit=1 << 30)), version=12)
    part = parts(answer)[partition]
    assert part.error_code == 0, part
    return values(part)


async def list_offset(
    client: Client, topic: str, timestamp: int, *, partition: int = 0, version: int | None = None, **more: Any
) -> tuple[int, int, int, int]:
    """The result of ListOffsets for a timestamp: (error code, offset, timestamp, leader epoch)."""
    current = more.pop("current_leader_epoch", -1)
    asked = ListOffsetsPartition(partition_index=partition, current_leader_epoch=current, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=more.pop("replica_id", -1),
        isolation_level=more.pop("isolation_level", 0),
        topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
    )
    answer = await client.ask(request, version=version)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


async def delete_records(
    client: Client, topic: str, offset: int, *, partition: int = 0, version: int | None = None
) -> tuple[int, int]:
    """Delete the records below an offset; return (error code, low watermark)."""
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=1000)
    answer = await client.ask(request, version=version)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.low_watermark


ONE = len(batch(b"x" * 100))
"""The size of the batches that `fill` appends."""


async def fill(client: Client, topic: str, count: int, *, partition: int = 0) -> None:
    """Append `count` batches of ONE bytes with one record each."""
    for _ in range(count):
        assert (await produce(client, topic, batch(b"x" * 100), partition=partition)).error_code == 0


def sizes(answer: FetchResponse) -> dict[int, int]:
    found = {}
    for index, part in parts(answer).items():
        assert isinstance(part.records, memoryview)
        found[index] = len(part.records)
    return found


async def fetch_in_background(
    nursery: trio.Nursery, broker: MemoryBroker, request: FetchRequest, *, version: int = 12
) -> list[tuple[float, FetchResponse]]:
    """Start a Fetch that waits; its (time, response) is added to the list when it arrives."""
    client = await broker.connect()
    answers: list[tuple[float, FetchResponse]] = []

    async def run() -> None:
        answer = await client.ask(request, version=version)
        answers.append((trio.current_time(), answer))

    nursery.start_soon(run)
    await wait_all_tasks_blocked()
    assert not answers, "it was answered at once"
    return answers


async def lose_the_reply(broker: MemoryBroker, request: object, *, version: int | None = None) -> Client:
    """Send a request, disconnect after its execution, and return a new connection."""
    client = await broker.connect()
    await client.send(request, version=version)
    await wait_all_tasks_blocked()
    client.close()
    return await broker.connect()
