"""What is done for shards beside requests: reading them from the log, and keeping the log short.

Bounding the log. Nothing compacts `__consumer_offsets`: its shard does. When a restart would read several times the
state that it ends up with (see led.py), the state is written anew at the end of the log, between other appends, and
synced; then log_start_offset is raised to where that begins, and retention takes the segments before it. A crash at any
point leaves a log that yields the same state: before the start is raised the whole history is there, of which the new
part only repeats what is true; afterwards the new part alone, which was durable before; and if the checkpoint of the
start is lost, any of the old segments may be there, from the first that is left.

Records of other kinds of groups, which a log of Apache Kafka may hold, are not carried over. A log with offsets of an
open transaction is left as it is.

Source: CoordinatorLoaderImpl of Apache Kafka 4.3.1, for the loading.
"""

from __future__ import annotations

import trio

from kbroker.coordinator.deciding import Logs
from kbroker.coordinator.led import LedPartition, State
from kbroker.coordinator.loading import Loading
from kbroker.coordinator.rewriting import live_pieces, size_of
from kbroker.runtime.log import logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError

log = logger(__name__)


async def load(env: Env, logs: Logs, led: LedPartition, *, slice_bytes: int) -> bool:
    """Read a partition into its shard; False if that failed, or the partition is led no more."""
    began_ms = env.now_ms()
    loading = Loading(led, slice_bytes=slice_bytes)
    try:
        while not loading.is_complete:
            # Nobody may remove the files meanwhile, and give their name to those of another topic.
            async with logs.kept(led.partition.log):
                if led.state is not State.LOADING:
                    return False
                await env.run_blocking(loading.step)
    except KafkaError as error:
        if led.state is State.LOADING:
            led.state = State.FAILED
            log.error("cannot load groups", partition=led.partition.name, offset=loading.next_offset, why=str(error))
        return False
    led.must_keep_history = bool(loading.open_transactions)
    if led.unreadable_records:
        log.warning(
            "records of groups cannot be read and were skipped",
            partition=led.partition.name,
            count=led.unreadable_records,
            first=led.first_unreadable,
        )
    log.info(
        "groups are loaded",
        partition=led.partition.name,
        groups=len(led.shard.group_ids()),
        offsets=led.shard.offset_count,
        records=loading.record_count,
        took_ms=env.now_ms() - began_ms,
    )
    return led.state is State.LOADING


async def shorten(env: Env, logs: Logs, purgatory: Purgatory, led: LedPartition, *, codec: Codec) -> None:
    """Rewrite the log of a shard if that is worth it; see the module's text.

    The live state begins a segment, so that all of the history can go. On a disk that is nearly full it goes at once.
    Errors  those of LedPartition.require_active and LedPartition.plan, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS
    """
    live_bytes = 0
    for piece in live_pieces(led):
        live_bytes += size_of(piece)
        await trio.lowlevel.checkpoint()
    if not led.is_worth_rewriting(live_bytes):
        return
    held = led.partition.log
    start_offset, bytes_before = await _write_anew(env, logs, purgatory, led, codec=codec)
    await _sync(env, logs, held)
    async with logs.locked(held):
        led.require_active()
        if led.outcome(held.recovery_point) is not ErrorCode.NONE:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "the in-sync replicas lack what was written anew")
        held.raise_log_start_offset(start_offset)
        led.bytes_behind -= bytes_before
    await logs.write_log_starts()
    if held.state.is_short_of_space:
        await _remove_history(env, logs, held)
    log.info(
        "the log of groups was rewritten",
        partition=led.partition.name,
        log_start_offset=start_offset,
        bytes_before=bytes_before,
        bytes=led.bytes_behind,
    )


async def _write_anew(
    env: Env, logs: Logs, purgatory: Purgatory, led: LedPartition, *, codec: Codec
) -> tuple[int, int]:
    """Append the live state; the offset where it begins, and the bytes that lie before."""
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
            # From here to the commit nobody else decides: a piece is true when it is written.
            piece = next(pieces, None)
            if piece is None:
                return begun
            plan = led.plan(piece, codec=codec, timestamp_ms=env.timestamp_ms())
            with trio.CancelScope(shield=True):
                await env.run_blocking(held.write, plan)
            led.commit(plan, ())
            purgatory.wake(led.partition.key)


async def _sync(env: Env, logs: Logs, held: Log) -> None:
    async with logs.kept(held):
        flush = None if held.is_closed else held.plan_flush()
        if flush is not None:
            await env.run_blocking(held.write_flush, flush)
            held.commit_flush(flush)


async def _remove_history(env: Env, logs: Logs, held: Log) -> None:
    """Delete the segments below log_start_offset, and their files without a delay: nobody reads them any more."""
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
