"""Reading a partition of `__consumer_offsets` from its start to its end, into the shard that it makes.

The whole log is replayed, a slice at a time, in a thread: nobody else sees the shard until it is loaded. What the
log's start lies behind was written anew further on (see upkeep.py), so that it need not be read.

Most of a log are offsets that later ones replace. Of the values that one key has in a slice only the last is decoded
and replayed, unless a removal or a transaction comes between.

A record that does not decode, and whatever is damaged, is skipped, counted and reported: by a line in the log, a metric
and a warning of the health page. What its key had before stays. In Apache Kafka one such record makes all groups of the
partition unavailable until somebody repairs the log.

Source: CoordinatorLoaderImpl of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.led import LedPartition
from kbroker.storage.valid_batches import read_behind_damage, read_undamaged
from wire.errors import Malformed
from wire.record_batch import RecordBatch, batches

_COMMIT_MARKER: Final = 1
_GROUP_METADATA: Final = b"\x00\x02"

Values = tuple[bytes, int, "Values | None"]
"""The value of a key, its offset, and the values before it: of these the last that can be read counts."""


class Loading:
    """One partition while it is read; see the module's text.

    Shape  next_offset is where the next slice begins; open_transactions are the producers that have committed offsets
           in a transaction of which no end was found
    """

    __slots__ = (
        "_first_unreadable",
        "_latest",
        "led",
        "next_offset",
        "open_transactions",
        "record_count",
        "slice_bytes",
    )

    def __init__(self, led: LedPartition, *, slice_bytes: int) -> None:
        self.led = led
        self.slice_bytes = slice_bytes
        self.next_offset = led.partition.log.log_start_offset
        self.record_count = 0
        self.open_transactions: set[int] = set()
        self._first_unreadable = led.partition.log.log_end_offset
        self._latest: dict[bytes, Values] = {}

    @property
    def is_complete(self) -> bool:
        """Whether everything that is in the log is in the shard."""
        return self.next_offset >= self.led.partition.log.log_end_offset

    def step(self) -> None:
        """Read one slice. Blocking.

        Errors  KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE from the log
        """
        log, start_offset = self.led.partition.log, self.next_offset
        limits = {"max_bytes": self.slice_bytes, "end_offset": log.log_end_offset}
        data = read_undamaged(log, start_offset, **limits)
        if data is not None and not data:
            self.next_offset = limits["end_offset"]
            return
        first = None if data is None else next(batches(data), None)
        # Where a header is damaged, the log itself goes on with the next segment.
        if data is not None and first is not None and first.base_offset <= start_offset:
            self._replay_batches(data)
        if self.next_offset == start_offset:
            found = read_behind_damage(log, start_offset, **limits)
            if not found.is_gap:
                self._skip(start_offset, found.base_offset - start_offset, "damaged")
            data, self.next_offset = found.data, found.base_offset
            self._replay_batches(data)
        self._replay_latest()
        self.led.bytes_behind += len(data or b"")

    def _replay_batches(self, data: bytes) -> None:
        """Replay batches up to the first that is damaged, or does not belong behind the one before."""
        log_end_offset = self.led.partition.log.log_end_offset
        for batch in batches(data):
            # The checksum does not cover the base offset.
            if not self.next_offset < batch.next_offset <= log_end_offset or not batch.crc_is_valid():
                break
            self._replay(batch)
            self.next_offset = batch.next_offset

    def _skip(self, offset: int, count: int, why: str) -> None:
        led = self.led
        led.unreadable_records += count
        if offset < self._first_unreadable:  # values of one key are read from the last on
            self._first_unreadable = offset
            led.first_unreadable = f"offset {offset}: {why}"

    def _replay(self, batch: RecordBatch) -> None:
        latest, start_offset = self._latest, self.next_offset
        producer_id = batch.producer_id if batch.is_transactional else -1
        following = max(batch.base_offset, start_offset)
        try:
            for offset, _, key, value, _ in batch.records():
                if offset < start_offset:
                    continue
                following = offset + 1
                self.record_count += 1
                if key is not None and value is not None and producer_id < 0:
                    # Behind those of other keys: what is replayed comes in the order of the log.
                    latest[key] = value, offset, latest.pop(key, None)
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
                self._apply(key, value, offset, producer_id)
        except Malformed as error:
            self._skip(following, batch.next_offset - following, f"a batch that cannot be read: {error}")

    def _replay_latest(self) -> None:
        group_records = self.led.group_records
        for key, newest in self._latest.items():
            values: Values | None = newest
            while values is not None:
                value, offset, values = values
                if self._apply(key, value, offset):
                    if key.startswith(_GROUP_METADATA):
                        group_records[key] = value
                    break
        self._latest.clear()

    def _apply(self, key: bytes | None, value: bytes | None, offset: int, producer_id: int = -1) -> bool:
        """Replay one record; False, with a note, if it cannot be read."""
        try:
            self.led.shard.replay(key, value, offset=offset, producer_id=producer_id)
        except Malformed as error:
            self._skip(offset, 1, str(error))
            return False
        return True


def _is_commit(key: bytes | None) -> bool:
    """Whether a control record commits its transaction; its key is a version and a type."""
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == _COMMIT_MARKER
