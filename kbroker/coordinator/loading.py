"""Reading a partition of `__consumer_offsets` from its start to its end, into the shard that it makes.

The whole log is replayed, a slice at a time, in a thread: nobody else sees the shard until it is loaded. What the
log's start lies behind was written anew further on (see upkeep.py), so that it need not be read.

Most of a log are offsets that later ones replace. Of the values that one key has in a slice only the last is decoded
and replayed, unless a removal or a transaction comes between.

A record that does not decode, or a batch with a wrong checksum, ends the loading: a shard that lacks a part of its
state would hand out offsets that are wrong without a word.

Source: CoordinatorLoaderImpl of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.led import LedPartition
from wire.errors import Malformed
from wire.record_batch import RecordBatch, batches

_COMMIT_MARKER: Final = 1
_GROUP_METADATA: Final = b"\x00\x02"


class Loading:
    """One partition while it is read; see the module's text.

    Shape  next_offset is where the next slice begins; open_transactions are the producers that have committed offsets
           in a transaction of which no end was found
    """

    __slots__ = ("_latest", "led", "next_offset", "open_transactions", "record_count", "slice_bytes")

    def __init__(self, led: LedPartition, *, slice_bytes: int) -> None:
        self.led = led
        self.slice_bytes = slice_bytes
        self.next_offset = led.partition.log.log_start_offset
        self.record_count = 0
        self.open_transactions: set[int] = set()
        self._latest: dict[bytes, tuple[bytes, int]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether everything that is in the log is in the shard."""
        return self.next_offset >= self.led.partition.log.log_end_offset

    def step(self) -> None:
        """Read one slice. Blocking.

        Errors  Malformed for what no broker wrote; KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE from the log
        """
        log = self.led.partition.log
        end_offset, start_offset = log.log_end_offset, self.next_offset
        with log.disk_errors():
            data = log.read(start_offset, max_bytes=self.slice_bytes, end_offset=end_offset).read()
        if not data:
            self.next_offset = end_offset
            return
        for batch in batches(data):
            if not batch.crc_is_valid():
                raise Malformed(f"the batch at offset {batch.base_offset} has a wrong checksum")
            self._replay(batch, start_offset)
            self.next_offset = batch.next_offset
        self._replay_latest()
        self.led.bytes_behind += len(data)

    def _replay(self, batch: RecordBatch, start_offset: int) -> None:
        latest = self._latest
        producer_id = batch.producer_id if batch.is_transactional else -1
        for offset, _, key, value, _ in batch.records():
            if offset < start_offset:
                continue
            self.record_count += 1
            if key is not None and value is not None and producer_id < 0:
                # Behind those of other keys: what is replayed comes in the order of the log.
                latest.pop(key, None)
                latest[key] = value, offset
                continue
            self._replay_latest()
            if batch.is_control:
                self.led.shard.replay_marker(producer_id, committed=_is_commit(key))
                self.open_transactions.discard(producer_id)
                continue
            if producer_id >= 0:
                self.open_transactions.add(producer_id)
            elif key is not None:
                self.led.group_records.pop(key, None)
            self.led.shard.replay(key, value, offset=offset, producer_id=producer_id)

    def _replay_latest(self) -> None:
        shard, group_records = self.led.shard, self.led.group_records
        for key, (value, offset) in self._latest.items():
            if key.startswith(_GROUP_METADATA):
                group_records[key] = value
            shard.replay(key, value, offset=offset)
        self._latest.clear()


def _is_commit(key: bytes | None) -> bool:
    """Whether a control record commits its transaction; its key is a version and a type."""
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == _COMMIT_MARKER
