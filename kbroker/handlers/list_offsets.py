"""ListOffsets: the offset for a timestamp, or for a special position such as earliest or latest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from functools import partial

from kbroker.broker import Broker
from kbroker.broker.remote_offsets import Question, look_up_in_both
from kbroker.handlers import Context, handles
from kbroker.replication.offset_lookup import DEBUGGING, OffsetAsked, OffsetFound, look_up, refuse_unknown_name
from kbroker.runtime.frames import without_frames
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

READ_COMMITTED = 1
FIRST_VERSION_WITH_LEADER_EPOCH = 4


@handles(ListOffsetsRequest, versions="1-11")
async def list_offsets(request: ListOffsetsRequest, broker: Broker, context: Context) -> ListOffsetsResponse:
    """Answer each partition independently of the others; a partition that is named twice gets INVALID_REQUEST.

    A follower whose log must begin later asks here. Kafka demands Describe of it; here, the right to fetch is enough.
    A tool with the replica id DEBUGGING, such as `kbroker health`, does not wait for the tier's metadata.
    """
    named = Counter(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    denied: Set[str] = frozenset()
    if request.replica_id < 0 or not context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, is_logged=False):
        names = [topic.name for topic in request.topics]
        denied = await context.denied(Operation.DESCRIBE, ResourceType.TOPIC, names, broker.turns)
    asks_both: list[tuple[str, int, Question]] = []

    async def look_up_one(name: str, asked: ListOffsetsPartition) -> OffsetFound | None:
        if name in denied:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if named[name, asked.partition_index] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}-{asked.partition_index} is named twice")
        question = OffsetAsked(
            timestamp=asked.timestamp,
            version=context.api_version,
            replica_id=request.replica_id,
            read_committed=request.isolation_level == READ_COMMITTED,
            current_leader_epoch=asked.current_leader_epoch,
        )
        refuse_unknown_name(question)
        partition = broker.find(name, asked.partition_index)
        must_wait = question.names_the_tier and not broker.tier.knows(partition)
        if must_wait and question.replica_id == DEBUGGING:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the tier's metadata of {partition.name} are not read yet")
        if not question.reads_the_log and not must_wait:
            return look_up(partition, question)
        partition.leading(question.current_leader_epoch)
        if must_wait or partition.is_remote(partition.log.log_start_offset):
            asks_both.append((name, asked.partition_index, Question(partition, question)))
            return None
        # A search by timestamp reads the disk, perhaps outside the page cache.
        found = await broker.env.run_blocking(look_up, partition, question)
        partition.leading()  # a recreated topic may have taken over the file names during the await
        return found

    answers: dict[tuple[str, int], OffsetFound | KafkaError] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            if broker.turns.due():
                await broker.turns.next()
            try:
                found = await look_up_one(topic.name, partition)
            except KafkaError as error:
                answers[topic.name, partition.partition_index] = without_frames(error)
            else:
                if found is not None:
                    answers[topic.name, partition.partition_index] = found
    if asks_both:
        default_ms = broker.settings.tier.remote_list_offsets_request_timeout_ms
        both = await look_up_in_both(
            [question for _, _, question in asks_both],
            broker,
            context,
            timeout_ms=request.timeout_ms if request.timeout_ms > 0 else default_ms,
        )
        answers.update(((name, index), one) for (name, index, _), one in zip(asks_both, both, strict=True))
    assemble = partial(_assemble, request, answers, context.api_version)
    return await broker.env.run_blocking(assemble) if context.is_large else assemble()


def _assemble(
    request: ListOffsetsRequest, answers: Mapping[tuple[str, int], OffsetFound | KafkaError], version: int
) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(index, answers[topic.name, index], version)
                    for index in dict.fromkeys(partition.partition_index for partition in topic.partitions)
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(index: int, found: OffsetFound | KafkaError, version: int) -> ListOffsetsPartitionResponse:
    if isinstance(found, KafkaError):
        return ListOffsetsPartitionResponse(partition_index=index, error_code=found.code)
    return ListOffsetsPartitionResponse(
        partition_index=index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if version >= FIRST_VERSION_WITH_LEADER_EPOCH else -1,
    )
