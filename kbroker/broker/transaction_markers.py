"""WriteTxnMarkers: append the markers that end transactions.

The transaction coordinator sends markers to the leaders of the partitions of a transaction until each of them has been
appended. Every partition has its own result. A marker counts as written when all in-sync replicas have it; the
coordinator repeats markers whose result it does not know, and a marker that is repeated before the next
transaction begins does no harm.

A marker in `__consumer_offsets` also ends the pending offsets of its transaction: the group coordinator learns of it in
the order of the log.

Source  KIP-98, KIP-890, KIP-1228; KafkaApis.handleWriteTxnMarkersRequest of Apache Kafka 4.3.1
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from kbroker.broker.appending import Appended
from kbroker.metadata.names import GROUP_METADATA_TOPIC
from kbroker.runtime.frames import without_frames
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.control_records import marker_batch
from wire.errors import ErrorCode, KafkaError
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

STEPS_OF_AN_APPEND: Final = 3

_Results = dict[int, dict[TopicPartition, int]]


class MarkersAppended:
    """The markers of one request, appended as far as possible; `answer` waits until they are committed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._results: _Results = {}  # error codes by producer and partition, as Kafka answers
        self._waiting: list[tuple[int, Appended]] = []

    async def append(self, request: WriteTxnMarkersRequest) -> None:
        """Append every marker to every partition that it names; an error is the result of its partition."""
        turns = self._broker.turns
        for marker in request.markers:
            results = self._results.setdefault(marker.producer_id, {})
            named: set[TopicPartition] = set()
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    if turns.due(STEPS_OF_AN_APPEND):
                        await turns.next()
                    if (topic.name, index) in named:
                        continue
                    named.add((topic.name, index))
                    try:
                        appended = await self._append(marker, topic.name, index)
                    except KafkaError as error:
                        results[topic.name, index] = without_frames(error).code
                    else:
                        results[topic.name, index] = ErrorCode.NONE
                        if not appended.is_committed:
                            self._waiting.append((marker.producer_id, appended))

    async def _append(self, marker: WritableTxnMarker, topic: str, index: int) -> Appended:
        broker = self._broker
        partition = broker.find_partition((topic, index))
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} is not on this broker")
        if not partition.leading().has_enough_replicas:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{partition.name} has too few in-sync replicas")
        producer_id, epoch, is_commit = marker.producer_id, marker.producer_epoch, marker.transaction_result
        on_commit = None
        if topic == GROUP_METADATA_TOPIC:
            on_commit = partial(broker.groups.on_marker, index, producer_id, epoch, committed=is_commit)
        batch = marker_batch(
            producer_id,
            epoch,
            is_commit=is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=broker.env.timestamp_ms(),
            is_log_append_time=partition.log.config.is_log_append_time,
        )
        return await broker.appender.append_marker(
            partition, batch, transaction_version=marker.transaction_version, on_commit=on_commit
        )

    async def answer(self) -> WriteTxnMarkersResponse:
        """Wait for the in-sync replicas, for request.timeout.ms at most, and return the results."""
        broker, waiting = self._broker, self._waiting
        if waiting:
            await broker.purgatory.wait(
                *(appended.partition.key for _, appended in waiting),
                until=lambda: all(appended.outcome() is not None for _, appended in waiting),
                max_wait_ms=broker.settings.server.request_timeout_ms,
            )
        for producer_id, appended in waiting:
            code = appended.outcome()
            key = appended.partition.key
            self._results[producer_id][key] = ErrorCode.REQUEST_TIMED_OUT if code is None else code
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(producer_id=producer_id, topics=_by_topic(results))
                for producer_id, results in self._results.items()
            ]
        )


def _by_topic(results: dict[TopicPartition, int]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for (name, index), code in results.items():
        result = WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        topics.setdefault(name, []).append(result)
    return [WritableTxnMarkerTopicResult(name=name, partitions=partitions) for name, partitions in topics.items()]


async def write_markers(broker: Broker, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Append markers, and answer when all in-sync replicas have them."""
    markers = MarkersAppended(broker)
    await markers.append(request)
    return await markers.answer()
