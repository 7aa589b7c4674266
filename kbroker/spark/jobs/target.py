"""The client for the cluster that a replay writes to.

Batches are built here and sent unchanged, one at a time for each partition, with a producer id and sequence numbers. So
a batch that is sent again because its answer was lost is not written twice. Each answer contains the offset of the
batch, so a record of another producer in between is detected at once.

Source  KIP-98; Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbroker.client.operations import (
    ALL_REPLICAS,
    PRODUCE_BY_NAME,
    Committed,
    commit_offsets,
    committed_offsets,
    describe_configs,
    new_producer_id,
    produce_request,
)
from kbroker.client.producing import most_bytes
from kbroker.metadata.parts import TOPIC_RESOURCE
from kbroker.spark.client import BrokerClient, explain
from kbroker.spark.errors import BrokerUnavailable, ReplayConflict
from kbroker.spark.positions import Partition
from wire.batch_header import MAX_SEQUENCE
from wire.compression import Codec
from wire.errors import check, code_of
from wire.record_batch import Record, batches, build_batch

WAIT_MS: Final = 60_000
PRODUCE_TIMEOUT_MS: Final = 30_000

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

    def committed(self, group: str, topic: str) -> dict[int, Committed]:
        """The offsets that a group committed for a topic, by partition."""
        with self._errors(f"the offsets of {group!r}"):
            found = committed_offsets(self.cluster, group)
        return {index: each for (name, index), each in found.items() if name == topic}

    def commit(self, group: str, topic: str, offsets: Mapping[int, Committed]) -> None:
        """Commit all offsets in one request."""
        with self._errors(f"the commit for {group!r}"):
            codes = commit_offsets(self.cluster, group, {(topic, at): each for at, each in offsets.items()})
        for (_, partition), code in codes.items():
            if code:
                raise BrokerUnavailable(
                    f"the broker does not store an offset of the group {group!r}: {explain(code)}",
                    remedy="check that the group has no members, or choose another --job-id",
                    at=(topic, partition),
                )

    def topic_settings(self, topic: str) -> dict[str, str]:
        """The effective settings of a topic."""
        with self._errors("the topic's settings"):
            (found,) = describe_configs(self.cluster, TOPIC_RESOURCE, [topic])
            check(found.error_code, found.error_message)
        return {each.name: str(each.value) for each in found.configs}

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
        with self._errors("a producer id"):
            return new_producer_id(self.cluster)

    def produce(self, partition: Partition, batch: bytes, *, offset: int) -> int:
        """Write one batch. Returns the offset of its first record. `offset` is the source's, for messages."""

        def look() -> int:
            request = produce_request({partition: batch}, acks=ALL_REPLICAS, timeout_ms=PRODUCE_TIMEOUT_MS)
            answer = self.cluster.ask(request, self.cluster.leader(partition), at_most=PRODUCE_BY_NAME)
            (each,) = answer.responses[0].partition_responses
            if each.error_code and not code_of(each.error_code).retriable:
                raise ReplayConflict(
                    f"the target refuses the records from the source's offset {offset} on: "
                    f"{each.error_message or explain(each.error_code)}",
                    remedy=REMEDIES.get(each.error_code, "check the broker's log, and start the job again"),
                    at=partition,
                )
            check(each.error_code)
            return int(each.base_offset)

        return self._until(look, f"the write to {partition[0]}-{partition[1]}", partition)


@dataclass
class PartitionWriter:
    """Writes records to one partition in order, in batches, and checks their offsets.

    Errors  ReplayConflict if another producer writes to the partition
    """

    client: TargetClient
    partition: Partition
    next_offset: int
    codec: Codec
    batch_bytes: int
    written: int = 0

    def __post_init__(self) -> None:
        self._producer_id, self._epoch = self.client.producer_id()
        self._sequence = self._size = 0
        self._held: list[Record] = []
        self._first = -1

    def write(self, record: Record, *, source_offset: int) -> None:
        """Add a record. It is written together with others, or alone if it is too large."""
        size = most_bytes(record)
        if self._size + size > self.batch_bytes:
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
            self._held, codec=self.codec, producer_id=self._producer_id, producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )  # fmt: skip
        found = self.client.produce(self.partition, batch, offset=self._first)
        if found != self.next_offset:
            raise foreign_writer(self.partition, self.next_offset, f"the batch was written at offset {found}")
        self._sequence = (self._sequence + len(self._held)) & MAX_SEQUENCE
        self.next_offset += len(self._held)
        self.written += len(self._held)
        self._held, self._size = [], 0


def foreign_writer(partition: Partition, offset: int, what: str) -> ReplayConflict:
    """The error for records that this replay did not write."""
    return ReplayConflict(
        f"something else wrote to the target during the replay: {what}",
        remedy="stop the other writer, and replay into an empty topic with another --job-id",
        at=partition,
        offset=offset,
    )
