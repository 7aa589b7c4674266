"""The client for the cluster that a replay writes to. It sends its own requests through kafka-python's connections.

Batches are built here and sent unchanged, one at a time for each partition, with a producer id and sequence numbers. So
a batch that is sent again because its answer was lost is not written twice. Each answer contains the offset of the
batch, so a record of another producer in between is detected at once.

Source  KIP-98; Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka.errors import for_code
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker.spark.client import BrokerClient, explain
from kbroker.spark.errors import BrokerUnavailable
from kbroker.spark.jobs.errors import ReplayConflict
from kbroker.spark.positions import Partition
from wire.compression import Codec
from wire.record_batch import MAX_SEQUENCE, Record, batches, build_batch

WAIT_MS: Final = 60_000
PRODUCE_TIMEOUT_MS: Final = 30_000
ALL_REPLICAS: Final = -1
LAST_VERSION_BY_NAME: Final = 12  # later versions use topic ids
RECORD_BYTES: Final = 36
"""A record's attributes and its longest varints: its own, key and value lengths, deltas, number of headers."""
HEADER_BYTES: Final = 10

REMEDIES: Final = {
    10: "raise max.message.bytes of the target",  # MESSAGE_TOO_LARGE
    18: "raise segment.bytes of the target",  # RECORD_LIST_TOO_LARGE
    32: "raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the target",  # INVALID_TIMESTAMP
    87: "a compacted target does not accept records without keys: replay into another one",  # INVALID_RECORD
}


class TargetClient(BrokerClient):
    """Errors: KbrokerSourceError; ReplayConflict if the target refuses records."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings, wait_ms=WAIT_MS)

    # --- committed offsets ---

    def committed(self, group: str, topic: str) -> dict[int, tuple[int, str]]:
        """The offsets that a group committed for a topic, with their metadata."""
        found = self._retried(lambda: self._client.list_group_offsets([group])[group], f"the offsets of {group!r}")
        return {
            partition.partition: (each.offset, each.metadata or "")
            for partition, each in found.items()
            if partition.topic == topic and each.offset >= 0
        }

    def commit(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Commit all offsets in one request."""
        wanted = {TopicPartition(topic, at): OffsetAndMetadata(*each, None) for at, each in offsets.items()}
        answers = self._retried(lambda: self._client.alter_group_offsets(group, wanted), f"the commit for {group!r}")
        for partition, error in answers.items():
            if error.errno:
                raise BrokerUnavailable(
                    f"the broker does not store an offset of the group {group!r}: {explain(error.errno)}",
                    remedy="check that the group has no members, or choose another --job-id",
                    at=(topic, partition.partition),
                )

    def topic_settings(self, topic: str) -> dict[str, str]:
        """The effective settings of a topic."""
        from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        found = self._retried(lambda: self._client.describe_configs(asked, config_filter="All"), "the topic's settings")
        (of_topics,) = found.values()
        return {key: str(each["value"]) for key, each in of_topics[topic].items()}

    def _retried(self, ask: Any, what: str) -> Any:
        def look() -> Any:
            return [ask()]

        return self._until(look, what)[0]

    # --- records ---

    def record_at(self, topic_id: Any, partition: Partition, offset: int) -> Record | None:
        """The record at an offset; None if there is none, or a control record."""
        fetched = self.fetch(topic_id, partition, offset)
        for batch in batches(fetched.records):
            if batch.base_offset <= offset <= batch.last_offset and not batch.is_control:
                return next((record for record in batch.records() if record.offset == offset), None)
        return None

    def producer_id(self) -> tuple[int, int]:
        """A new producer id and epoch."""

        def look() -> tuple[int, int] | int:
            answer = self._ask(
                InitProducerIdRequest(
                    transactional_id=None, transaction_timeout_ms=PRODUCE_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
                ),
                None,
            )
            return int(answer.error_code) or (int(answer.producer_id), int(answer.producer_epoch))

        return self._until(look, "a producer id")

    def produce(self, partition: Partition, batch: bytes, *, offset: int) -> int:
        """Write one batch. Returns the offset of its first record. `offset` is the source's, for messages."""
        topic, index = partition
        data = ProduceRequest.TopicProduceData

        def look() -> list[int] | int:
            request = ProduceRequest(
                transactional_id=None,
                acks=ALL_REPLICAS,
                timeout_ms=PRODUCE_TIMEOUT_MS,
                topic_data=[data(name=topic, partition_data=[data.PartitionProduceData(index=index, records=batch)])],
                max_version=LAST_VERSION_BY_NAME,
            )
            answer = self._ask(request, self._leader(partition))
            (each,) = answer.responses[0].partition_responses
            code = int(each.error_code)
            if code and not getattr(for_code(code), "retriable", False):
                said = getattr(each, "error_message", None) or explain(code)
                raise ReplayConflict(
                    f"the target refuses the records from the source's offset {offset} on: {said}",
                    remedy=REMEDIES.get(code, "check the broker's log, and start the job again"),
                    at=(topic, index),
                )
            return code or [int(each.base_offset)]

        return self._until(look, f"the write to {topic}-{index}", partition)[0]


class PartitionWriter:
    """Writes records to one partition in order, in batches, and checks their offsets.

    Errors  ReplayConflict if another producer writes to the partition
    """

    def __init__(
        self, client: TargetClient, partition: Partition, *, next_offset: int, codec: Codec, batch_bytes: int
    ) -> None:
        self._client = client
        self._partition = partition
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._producer_id, self._epoch = client.producer_id()
        self._sequence = 0
        self._held: list[Record] = []
        self._size = 0
        self._first = -1
        self.next_offset = next_offset
        self.written = 0

    def write(self, record: Record, *, source_offset: int) -> None:
        """Add a record. It is written together with others, or alone if it is too large."""
        size = _most_bytes(record)
        if self._size + size > self._batch_bytes:
            self.flush()
        if not self._held:
            self._first = source_offset
        self._held.append(record._replace(offset=-1))
        self._size += size

    def flush(self) -> None:
        """Write the records added so far."""
        if not self._held:
            return
        batch = build_batch(
            self._held, codec=self._codec, producer_id=self._producer_id, producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )  # fmt: skip
        found = self._client.produce(self._partition, batch, offset=self._first)
        if found != self.next_offset:
            raise foreign_writer(self._partition, self.next_offset, f"the batch was written at offset {found}")
        self._sequence = (self._sequence + len(self._held)) & MAX_SEQUENCE
        self.next_offset += len(self._held)
        self.written += len(self._held)
        self._held, self._size = [], 0


def _most_bytes(record: Record) -> int:
    """The maximum size of a record in a batch."""
    headers = sum(len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_BYTES


def foreign_writer(partition: Partition, offset: int, what: str) -> ReplayConflict:
    """The error for records that this replay did not write."""
    return ReplayConflict(
        f"something else wrote to the target during the replay: {what}",
        remedy="stop the other writer, and replay into an empty topic with another --job-id",
        at=partition,
        offset=offset,
    )
