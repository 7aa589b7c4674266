"""Load a partition of an internal topic into its shard, from log_start_offset to the log end offset.

A thread replays the log in slices; no other task uses the shard until it is loaded. The log cleaner bounds what has to
be read (see kbroker.storage.cleaning).

Most records are replaced by later ones of the same key. Within a slice, only the last value of a key is decoded and
replayed, unless a tombstone or a transaction comes between.

Records that do not decode and damaged batches are skipped and counted. They are reported in the log, in a metric and in
a warning on the health page. The previous value of the key remains valid. In Apache Kafka one such record makes the
whole partition unavailable until the log is repaired.

Source: CoordinatorLoaderImpl of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic

from kbroker.coordinator.common.led import LedPartition
from kbroker.coordinator.common.ports import S
from kbroker.storage.valid_batches import read_behind_damage, read_undamaged
from wire.errors import Malformed
from wire.record_batch import RecordBatch, batches

_COMMIT_MARKER: Final = 1

Values = tuple[bytes, int, "Values | None"]
"""The value of a key, its offset, and the earlier values of the key. The last readable value is used."""


@dataclass(eq=False, slots=True)
class Loading(Generic[S]):
    """The state of loading one partition; see the module docstring.

    Shape  next_offset is where the next slice starts
    """

    led: LedPartition[S]
    slice_bytes: int
    record_count: int = 0
    next_offset: int = field(init=False)
    _first_unreadable: int = field(init=False)
    _latest: dict[bytes, Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.next_offset = self.led.partition.log.log_start_offset
        self._first_unreadable = self.led.partition.log.log_end_offset

    @property
    def is_complete(self) -> bool:
        """Whether the whole log is replayed."""
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
        # If a batch header is damaged, the log's own reader continues at the next segment.
        if data is not None and first is not None and first.base_offset <= start_offset:
            self._replay_batches(data)
        if self.next_offset == start_offset:
            found = read_behind_damage(log, start_offset, **limits)
            if not found.is_gap:
                self._skip(start_offset, found.base_offset - start_offset, "damaged")
            data, self.next_offset = found.data, found.base_offset
            self._replay_batches(data)
        self._replay_latest()

    def _replay_batches(self, data: bytes) -> None:
        """Replay batches up to the first one that is damaged or out of order."""
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
        if offset < self._first_unreadable:  # the values of a key are decoded newest first
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
                    # Move the key to the end, so that keys are replayed in log order.
                    latest[key] = value, offset, latest.pop(key, None)
                    continue
                self._replay_latest()
                if batch.is_control:
                    self.led.shard.replay_marker(producer_id, committed=_is_commit(key))
                    continue
                self._apply(key, value, offset, producer_id)
        except Malformed as error:
            self._skip(following, batch.next_offset - following, f"a batch that cannot be read: {error}")

    def _replay_latest(self) -> None:
        for key, newest in self._latest.items():
            values: Values | None = newest
            while values is not None:
                value, offset, values = values
                if self._apply(key, value, offset):
                    break
        self._latest.clear()

    def _apply(self, key: bytes | None, value: bytes | None, offset: int, producer_id: int = -1) -> bool:
        """Replay one record. False if it cannot be decoded; it is then counted as skipped."""
        try:
            self.led.shard.replay(key, value, offset=offset, producer_id=producer_id)
        except Malformed as error:
            self._skip(offset, 1, str(error))
            return False
        return True


def _is_commit(key: bytes | None) -> bool:
    """Whether a control record commits its transaction. Its key is a version and a type, both int16."""
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == _COMMIT_MARKER
