"""The clients of a scenario: a producer, a consumer, and a question about a leader epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kbroker.client.streaming import ConnectionClosed
from kbroker.testing.memory_node import Client
from kbroker.testing.scenarios._looks import values_of
from wire.batch_header import NO_PRODUCER_ID, NO_SEQUENCE
from wire.errors import ErrorCode, check
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch

ALL: Final = -1
_PRODUCE_VERSION: Final = 9
_FETCH_VERSION: Final = 13
_EPOCH_VERSION: Final = 4
_READ_BYTES: Final = 1 << 20


@dataclass(eq=False)
class Write:
    """A Produce that was sent.

    Shape  code is None until the answer arrives; offset is -1 without one; is_lost: the connection ended first
    """

    values: Sequence[str]
    acks: int
    producer_id: int = NO_PRODUCER_ID
    sequence: int = 0
    code: ErrorCode | None = None
    offset: int = -1
    is_lost: bool = False

    @property
    def is_acknowledged(self) -> bool:
        return self.code is ErrorCode.NONE

    @property
    def code_text(self) -> str:
        """The error as its name and number."""
        return "none" if self.code is None else f"{self.code.name} ({int(self.code)})"

    @property
    def is_over(self) -> bool:
        return self.code is not None or self.is_lost


async def produce_to(
    client: Client, topic: str, write: Write, *, timestamp_ms: int, timeout_ms: int, size: int
) -> None:
    """Produce the values of a write, one batch for each and padded to `size` bytes, until one fails."""
    is_idempotent = write.producer_id != NO_PRODUCER_ID
    try:
        for number, value in enumerate(write.values):
            batch = build_batch(
                [Record(timestamp=timestamp_ms, value=value.encode().ljust(size))],
                producer_id=write.producer_id,
                producer_epoch=0 if is_idempotent else -1,
                base_sequence=write.sequence + number if is_idempotent else NO_SEQUENCE,
            )
            data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
            request = ProduceRequest(acks=write.acks, timeout_ms=timeout_ms, topic_data=[data])
            answer = (await client.ask(request, version=_PRODUCE_VERSION)).responses[0].partition_responses[0]
            if answer.error_code:
                break
        write.code, write.offset = ErrorCode(answer.error_code), answer.base_offset
    except ConnectionClosed:
        write.is_lost = True
    finally:
        client.close()


async def read_from(client: Client, topic_id: UUID, offset: int) -> list[dict[str, Any]]:
    """The records from an offset to the high watermark. Errors: KafkaError."""
    found: list[dict[str, Any]] = []
    while True:
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=_READ_BYTES)
        request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[asked])])
        data = (await client.ask(request, version=_FETCH_VERSION)).responses[0].partitions[0]
        check(data.error_code)
        records = [one for one in values_of(bytes(data.records or b"")) if one["offset"] >= offset]
        if not records:
            client.close()
            return found
        found += records
        offset = records[-1]["offset"] + 1


async def ask_end_of_epoch(client: Client, topic: str, epoch: int) -> int:
    """Where a leader epoch ended. Errors: KafkaError."""
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])])
    answer = (await client.ask(request, version=_EPOCH_VERSION)).topics[0].partitions[0]
    client.close()
    check(answer.error_code)
    end: int = answer.end_offset
    return end
