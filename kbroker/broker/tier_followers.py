"""Builds followers from the tier, if the leader has deleted the records that they need next.

Theory of operation: a follower gets OFFSET_MOVED_TO_TIERED_STORAGE for an offset that only the tier has. It asks the
leader where the local log starts, reads the state before that offset from the tier (`kbroker.tiered.auxiliary_state`),
and starts its log there. Then it fetches as usual.

Each build has a task, because a slow store must not delay the other partitions of the source. The partition is not
fetched until its build ends. If anything is missing, the partition is fetched again after a pause; the leader then
answers the same error, and the next build begins with the newest offsets of the leader. Attempts and failures are
counted as in Kafka.

Everything is read from the tier before the old log is deleted. If the broker crashes, the next start finds a part of
the old log, or the whole new state; see `LogFiles.start_again_at`.

Source  KIP-405; TierStateMachine of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from kbroker.replication.follower import Followed, LocalStart, ReplicaFetcher, delay_ms
from kbroker.runtime.event_log import get_logger
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.tiered.auxiliary_state import AuxiliaryState

UNTIL_BUILT_MS: Final = 1 << 50

logger = get_logger(__name__)


class TierBuilds:
    """The builds of the partitions that follow one source broker. `nursery` runs them; `on_end` follows each one."""

    def __init__(self, broker: Broker, fetcher: ReplicaFetcher, *, on_end: Callable[[], None]) -> None:
        self.nursery: trio.Nursery | None = None
        self._broker = broker
        self._fetcher = fetcher
        self._on_end = on_end

    def begin(self, followed: Followed, start: LocalStart) -> None:
        """Build a partition up to the leader's local log start, and fetch it after that."""
        assert self.nursery is not None, "the source runs"
        self._fetcher.delay(followed, UNTIL_BUILT_MS)
        self.nursery.start_soon(self._build, followed, start)

    async def _build(self, followed: Followed, start: LocalStart) -> None:
        pause_ms = 0
        remote = followed.partition.remote
        if remote is not None:
            remote.counters.build_requests += 1
        try:
            await self._install(followed, start, await self._read(followed, start))
        except KafkaError as error:
            if remote is not None:
                remote.counters.build_errors += 1
            pause_ms = self._note_failure(followed, error.message)
        if self._broker.replicas.directory.state.failure is None:
            self._fetcher.delay(followed, self._broker.env.now_ms() + pause_ms)
        else:
            self._fetcher.stop(followed)
        self._on_end()

    def _note_failure(self, followed: Followed, why: str) -> int:
        """The pause before the next attempt in ms. The failure is logged if the pause is long: metadata may be late."""
        broker, name = self._broker, followed.partition.name
        followed.failures += 1
        longest_ms, now_ms = broker.settings.replication.replica_fetch_backoff_ms, broker.env.now_ms()
        pause_ms = delay_ms(followed.failures, longest_ms)
        if pause_ms == longest_ms:
            left_out = broker.log_limit.admit((TierBuilds, name), now_ms=now_ms)
            if left_out is not None:
                event = "a follower cannot be built from the tier yet; will retry"
                logger.warning(event, partition=name, why=why, left_out=left_out)
        return pause_ms

    async def _read(self, followed: Followed, start: LocalStart) -> AuxiliaryState:
        """Errors: KAFKA_STORAGE_ERROR."""
        broker, partition = self._broker, followed.partition
        manager = broker.tier.manager
        if not broker.settings.tier.remote_log_storage_system_enable:
            raise _cannot("this broker has no tier (remote.log.storage.system.enable=false), but the leader has")
        if not partition.log.config.remote_storage_enable:
            raise _cannot("the topic is not tiered on this broker (remote.storage.enable), but on the leader")
        if manager is None:
            raise _cannot(broker.tier.failure or "the tier is not started yet")
        # Imported only by brokers with tiered topics.
        from kbroker.tiered.api import RemoteStorageError  # noqa: PLC0415
        from kbroker.tiered.auxiliary_state import auxiliary_state  # noqa: PLC0415

        try:
            return await auxiliary_state(manager.tools, partition, start.epoch_before, start.offset - 1)
        except RemoteStorageError as error:
            raise _cannot(str(error)) from error

    async def _install(self, followed: Followed, start: LocalStart, state: AuxiliaryState) -> None:
        """Replace the log, unless the partition has another leader by now. Errors: KAFKA_STORAGE_ERROR."""
        broker, partition, log = self._broker, followed.partition, followed.partition.log
        async with broker.locked(log), broker.kept(log):
            if not followed.is_current:
                return
            if log.log_end_offset >= state.next_offset:
                raise _cannot(f"the remote segment ends at {state.next_offset}, before {log.log_end_offset=}")
            logger.info(
                "starting a partition where the leader's local log starts; the tier has the records before",
                partition=partition.name,
                log_end_offset=log.log_end_offset,
                local_log_start_offset=state.next_offset,
                log_start_offset=start.log_start_offset,
                leader_epochs=len(state.leader_epochs),
                producers=len(state.producers),
            )
            replace = partial(
                log.truncate_fully_and_start_at,
                log_start_offset=start.log_start_offset,
                epochs=state.leader_epochs,
                producers=state.producers,
            )
            await broker.env.run_blocking(replace, state.next_offset)
            log.is_log_start_known = True
            partition.on_truncated()
            partition.on_leaders_offsets(start.high_watermark, start.log_start_offset)
        broker.wake(partition.key)


def _cannot(why: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why)
