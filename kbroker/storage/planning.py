"""Plan less common appends: several batches from a client, and batches from the leader.

Source  UnifiedLog.append, analyzeAndValidateRecords of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.runtime.ports import Buffer
from kbroker.storage.batches import BatchHeader, headers_in, stamp
from kbroker.storage.plans import AppendPlan
from kbroker.storage.producer_state import ProducerEntry
from wire.batch_header import HEADER
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.storage.log import Log

_MAKE_HEADER: Final = BatchHeader._make


def plan_several(log: Log, batches: bytearray | memoryview, *, leader_epoch: int, timestamp_ms: int) -> AppendPlan:
    """Assign consecutive offsets to several batches; one duplicate makes the whole append a duplicate, as in Kafka."""
    headers = []
    offset, position = log.log_end_offset, 0
    pending: dict[int, ProducerEntry] = {}
    while position < len(batches):
        stamp(batches, position, offset, leader_epoch)
        header = _MAKE_HEADER(HEADER.unpack_from(batches, position))
        original = log.producers.check(header, pending)
        if original is not None:
            return AppendPlan.of_duplicate(header, original, log.tail.segment)
        headers.append(header)
        offset = header.next_offset
        position += header.size
    assert position == len(batches), "only whole batches are appended"
    latest = max(header.max_timestamp for header in headers)
    return log.plan_batches(batches, len(batches), tuple(headers), latest, timestamp_ms)


def plan_as_follower(log: Log, batches: Buffer, *, timestamp_ms: int) -> AppendPlan:
    """See `Log.plan_append_as_follower`."""
    if log.state.failure is not None:
        raise log.offline_error()
    log.state.spare_bytes -= len(batches)
    headers = tuple(headers_in(batches))
    expected = log.log_end_offset
    for header in headers:
        if header.base_offset < expected:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{log!r}: a batch at offset {header.base_offset} cannot follow {expected}",
            )
        expected = header.next_offset
    return log.plan_batches(
        batches, len(batches), headers, max(header.max_timestamp for header in headers), timestamp_ms
    )
