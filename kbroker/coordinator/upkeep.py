"""Keeps the logs of groups short.

`__consumer_offsets` is not compacted by the log cleaner; its coordinator rewrites it. When a restart would read several
times the size of the live state (see common/led.py), the live state is appended again at the end of the log,
interleaved with other appends, and synced. Then log_start_offset is raised to the start of the rewritten state, and
retention deletes the older segments. A crash at any point leaves a log with the same state. Before log_start_offset is
raised, the log has the whole history, and the rewritten part only repeats it. After that, the rewritten part is
complete and durable. If the checkpoint of log_start_offset is lost, some old segments may still be in front of the
rewritten part, which is harmless.

Records of other group types, which a log of Apache Kafka may contain, are not copied. A log with offsets of an open
transaction is not rewritten.
"""

from __future__ import annotations

import trio

from kbroker.coordinator.common.led import LedPartition
from kbroker.coordinator.common.ports import Logs
from kbroker.coordinator.rewriting import live_pieces, size_of
from kbroker.coordinator.shard import GroupShard
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError

logger = get_logger(__name__)


async def shorten(env: Env, logs: Logs, purgatory: Purgatory, led: LedPartition[GroupShard], *, codec: Codec) -> None:
    """Rewrite the log of a shard if it is long enough; see the module docstring.

    The live state starts in a new segment, so that retention can delete the whole history. On a nearly full disk the
    history is deleted immediately.
    Errors  those of LedPartition.require_active and LedPartition.plan, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS
    """
    live_bytes = 0
    for piece in live_pieces(led):
        live_bytes += size_of(piece)
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
