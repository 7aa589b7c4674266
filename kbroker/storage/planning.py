"""Plan less common appends: several batches from a client, and batches from the leader.

Source  UnifiedLog.append, analyzeAndValidateRecords of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import Final

from kbroker.runtime.ports import Buffer
from kbroker.storage.batches import BatchHeader, headers_in
from kbroker.storage.plans import AppendPlan, duplicate_plan
from kbroker.storage.producer_state import ProducerEntry, ProducerState
from wire.batch_header import HEADER
from wire.errors import ErrorCode, KafkaError

_MAKE_HEADER: Final = BatchHeader._make


def writable(batches: Buffer) -> bytearray | memoryview:
    """The batches, copied if they are read-only."""
    if isinstance(batches, bytes) or (isinstance(batches, memoryview) and batches.readonly):
        return bytearray(batches)
    return batches


def assigned_header(batches: Buffer, position: int, offset: int, leader_epoch: int) -> BatchHeader:
    """The header of the batch at `position`, with the offset and epoch that the leader assigns."""
    fields = HEADER.unpack_from(batches, position)
    return _MAKE_HEADER((offset, fields[1], leader_epoch, *fields[3:]))


def assign_several(
    batches: Buffer, *, offset: int, leader_epoch: int, producers: ProducerState
) -> list[BatchHeader] | AppendPlan:
    """Assign consecutive offsets to several batches; one duplicate makes the whole append a duplicate, as in Kafka."""
    headers: list[BatchHeader] = []
    position = 0
    pending: dict[int, ProducerEntry] = {}
    while position < len(batches):
        header = assigned_header(batches, position, offset, leader_epoch)
        original = producers.check(header, pending)
        if original is not None:
            return duplicate_plan(header, original)
        headers.append(header)
        offset = header.next_offset
        position += header.size
    assert position == len(batches), "only whole batches are appended"
    return headers


def followers_headers(batches: Buffer, log_end_offset: int) -> list[BatchHeader]:
    """The headers of batches from the leader. Errors: CORRUPT_MESSAGE if they do not ascend from log_end_offset."""
    headers: list[BatchHeader] = []
    for header in headers_in(batches):
        if header.base_offset < log_end_offset:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch at offset {header.base_offset} cannot follow {log_end_offset}",
            )
        log_end_offset = header.next_offset
        headers.append(header)
    return headers
