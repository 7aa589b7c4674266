"""Keeps the logs of groups short.

`__consumer_offsets` is not compacted by the log cleaner; its coordinator rewrites it. When a restart would read several
times the size of the live state (see common/led.py), the live state is appended again at the end of the log,
interleaved with other appends, and synced. Then log_start_offset is raised to the start of the rewritten state, and
retention deletes the older segments. A crash at any point leaves a log with the same state. Before log_start_offset is
raised, the log has the whole history, and the rewritten part only repeats it. After that, the rewritten part is
complete and durable. If the checkpoint of log_start_offset is lost, some old segments may still be in front of the
rewritten part, which is harmless.

The live state is appended in pieces. Each piece is current when it is taken, and is appended before the next decision.
Changes between two pieces are appended as usual. So a reader that starts at the first piece finds, for each key, its
newest value last: a key that is deleted after its piece has its tombstone behind the piece, and a key that is deleted
before has no piece.

Records of other group types, which a log of Apache Kafka may contain, are not copied. A log with offsets of an open
transaction is not rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import trio

from kbroker.coordinator.common.led import LedPartition
from kbroker.coordinator.common.ports import BATCH_OVERHEAD_BYTES, Logs
from kbroker.coordinator.records import OffsetRecord
from kbroker.coordinator.shard import GroupShard
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.stored.groups import OffsetCommitKey, OffsetCommitValue

RECORDS_IN_PIECE: Final = 250
PIECE_BYTES: Final = 128 * 1024
RECORD_OVERHEAD_BYTES: Final = 12
MOST_OVERHEAD_BYTES: Final = 128

logger = get_logger(__name__)


class StoredBytes(NamedTuple):
    """A stored record, as key and value bytes."""

    key: bytes
    value: bytes | None


Piece = list[StoredBytes | OffsetRecord]


async def shorten(env: Env, logs: Logs, purgatory: Purgatory, led: LedPartition[GroupShard], *, codec: Codec) -> None:
    """Rewrite the log of a shard if it is long enough; see the module docstring.

    The live state starts in a new segment, so that retention can delete the whole history. On a nearly full disk the
    history is deleted immediately.
    Errors  those of LedPartition.require_active and LedPartition.plan, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS
    """
    live_bytes = 0
    for piece in live_pieces(led):
        live_bytes += sum(len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES for record in piece)
        await trio.lowlevel.checkpoint()
    if not led.is_worth_rewriting(live_bytes):
        return
    held = led.partition.log
    start_offset, bytes_before = await _append_live_state(env, logs, purgatory, led, codec=codec)
    await _sync(env, logs, held)
    async with logs.locked(held):
        led.require_active()
        if led.outcome(held.recovery_point) is not ErrorCode.NONE:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the in-sync replicas lack the rewritten records")
        held.raise_log_start_offset(start_offset)
        led.bytes_behind -= bytes_before
    await logs.write_log_starts()
    if held.state.is_short_of_space:
        await _remove_history(env, logs, held)
    logger.info(
        "rewrote the log of groups",
        partition=led.partition.name,
        log_start_offset=start_offset,
        bytes_before=bytes_before,
        bytes=led.bytes_behind,
    )


async def _append_live_state(
    env: Env, logs: Logs, purgatory: Purgatory, led: LedPartition[GroupShard], *, codec: Codec
) -> tuple[int, int]:
    """Append the live state. Returns the offset where it starts, and the bytes before it."""
    held = led.partition.log
    begun: tuple[int, int] | None = None
    pieces = live_pieces(led)
    while True:
        async with logs.locked(held):
            led.require_active()
            if begun is None:
                with trio.CancelScope(shield=True):
                    await env.run_blocking(lambda: held.roll(timestamp_ms=env.timestamp_ms()))
            begun = begun or (held.log_end_offset, led.bytes_behind)
            # No other decision is made between here and the commit, so the piece is current when it is written.
            piece = next(pieces, None)
            if piece is None:
                return begun
            plan = led.plan(piece, codec=codec, timestamp_ms=env.timestamp_ms())
            with trio.CancelScope(shield=True):
                await env.run_blocking(held.write, plan)
            led.commit(plan)
            purgatory.wake(led.partition.key)


async def _sync(env: Env, logs: Logs, held: Log) -> None:
    async with logs.kept(held):
        flush = None if held.is_closed else held.plan_flush()
        if flush is not None:
            await env.run_blocking(held.write_flush, flush)
            held.commit_flush(flush)


async def _remove_history(env: Env, logs: Logs, held: Log) -> None:
    """Delete the segments below log_start_offset. Nothing reads their files, so they are deleted without the usual
    delay.
    """
    async with logs.locked(held):
        if held.is_closed:
            return
        now_ms, timestamp_ms = env.now_ms(), env.timestamp_ms()

        def remove() -> None:
            plan = held.plan_retention(high_watermark=held.log_start_offset, timestamp_ms=timestamp_ms)
            held.apply_retention(plan, now_ms=now_ms, timestamp_ms=timestamp_ms)
            held.unlink_doomed(now_ms + held.config.file_delete_delay_ms)

        with trio.CancelScope(shield=True):
            await env.run_blocking(remove)


def live_pieces(led: LedPartition[GroupShard]) -> Iterator[Piece]:
    """The stored record of each group, then the offsets of all groups. Each piece fits into one batch."""
    most_bytes = min(PIECE_BYTES, led.partition.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES)
    piece: Piece = []
    piece_bytes = 0
    for read in _readers(led.shard):
        record = read()
        is_too_large = record is not None and piece_bytes + _most_bytes(record) > most_bytes
        if piece and (is_too_large or len(piece) >= RECORDS_IN_PIECE):
            yield piece
            piece, piece_bytes = [], 0
            record = read()  # may have changed during the yield
        if record is not None:
            piece.append(record)
            piece_bytes += _most_bytes(record)
    if piece:
        yield piece


def _readers(shard: GroupShard) -> Iterator[Callable[[], StoredBytes | OffsetRecord | None]]:
    """A function for each record of the live state, which returns its current value; None if it was deleted.

    Offsets that are committed after their group is listed are already in the log.
    """
    for key in list(shard.group_records):
        yield partial(_stored_group, shard, key)
    for group_id in shard.group_ids():
        of_group = shard.offsets_of(group_id)
        for topic, partition in [(topic, partition) for topic, found in of_group.items() for partition in found]:
            yield partial(_committed_offset, shard, group_id, topic, partition)


def _stored_group(shard: GroupShard, key: bytes) -> StoredBytes | None:
    value = shard.group_records.get(key)
    return None if value is None else StoredBytes(key, value)


def _committed_offset(shard: GroupShard, group_id: str, topic: str, partition: int) -> OffsetRecord | None:
    found = shard.offsets_of(group_id).get(topic, {}).get(partition)
    if found is None:
        return None
    return OffsetRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition),
        OffsetCommitValue(
            offset=found.offset,
            leader_epoch=found.leader_epoch,
            metadata=found.metadata,
            commit_timestamp=found.commit_timestamp_ms,
            expire_timestamp=found.expire_timestamp_ms,
            topic_id=found.topic_id,
        ),
    )


def _most_bytes(record: StoredBytes | OffsetRecord) -> int:
    """An upper bound of the record's size, without encoding an offset: a character has at most four bytes."""
    if isinstance(record, StoredBytes):
        return len(record.key) + len(record.value or b"") + MOST_OVERHEAD_BYTES
    key, value = record.key_message, record.value_message
    assert value is not None
    return 4 * (len(key.group) + len(key.topic) + len(value.metadata)) + MOST_OVERHEAD_BYTES
