"""What the answers of a leader mean for the logs of a follower: append, truncate, start elsewhere, wait.

Theory of operation: a step changes one partition, under its lock: small appends inline, large ones and truncations in a
thread. A failure concerns only its partition. Records are written as they came, with one write for each partition and
answer.

A follower may learn of a new leader epoch before the leader does. Therefore the pause after an error begins at
FIRST_DELAY_MS and doubles up to `replica.fetch.backoff.ms` (`delay_ms`).

If the leader has deleted the next record because the tier has it, the log continues at the leader's local log start, or
with `follower.fetch.last.tiered.offset.enable` at the first offset that is not in the tier; `tier_followers.py` builds
the state before it. If that offset is the leader's log start offset, no such state is needed: the log starts empty
there. The log start offset comes from the leader's answer to Fetch. Apache Kafka 4.3.1 asks for it again; if it has
risen, the next Fetch says so.

Source: AbstractFetcherThread and ReplicaFetcherThread of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from kbroker.broker.tier_followers import TierBuilds
from kbroker.client.streaming import Connection
from kbroker.replication.follower import (
    OFFSET_FOR_LEADER_EPOCH_VERSION,
    Followed,
    LocalStart,
    ReplicaFetcher,
    Step,
    delay_ms,
    epoch_before,
    list_offsets_version,
    step_for,
    step_for_code,
    truncation_offset,
)
from kbroker.replication.offset_lookup import EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, FIRST_VERSION, LATEST
from kbroker.replication.throttle import UNLIMITED, is_throttled
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log import Log
from wire.errors import ErrorCode, KafkaError, code_of
from wire.messages.fetch import PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

_LOG_INTERVAL_MS: Final = 60_000
REFUSED: Final = "the leader refuses to serve a partition"
UNUSABLE: Final = "the leader's records of a partition cannot be used"
BASE_OFFSET: Final = struct.Struct(">q")

A = TypeVar("A", ListOffsetsPartitionResponse, EpochEndOffset)

logger = get_logger(__name__)


class SourceFailed(Exception):
    """A source broker cannot be reached or answers nonsense; the task connects again later."""


def _is_empty(log: Log) -> bool:
    return log.log_start_offset == log.log_end_offset


class FollowerLogs:
    """The logs that follow one source broker; `fetcher` decides what is fetched from it, `builds` start logs after
    records that only the tier has.
    """

    def __init__(self, broker: Broker, fetcher: ReplicaFetcher, builds: TierBuilds, *, source_id: int) -> None:
        self._broker = broker
        self._fetcher = fetcher
        self._builds = builds
        self._source_id = source_id
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)

    async def take(self, answers: list[tuple[Followed, PartitionData]], connection: Connection) -> None:
        """Do what each answer means; `connection` is free for further requests."""
        out_of_range: list[Followed] = []
        in_tier: dict[Followed, PartitionData] = {}
        started: list[Followed] = []
        for followed, data in answers:
            if not followed.is_current:
                self._fetcher.stop(followed)  # newer metadata replace it
                continue
            step = step_for(data)
            log_start_offset = followed.partition.log.log_start_offset
            try:
                if step is Step.APPEND:
                    await self._append(followed, data)
                elif step is Step.TRUNCATE:
                    await self._truncate(followed, data)
                elif step is Step.LOOK_UP:
                    out_of_range.append(followed)
                elif step is Step.BUILD_FROM_TIER:
                    in_tier[followed] = data
                else:
                    self._wait_with(followed, step, data.error_code)
            except KafkaError as error:
                self._fail(followed, error)
            if followed.partition.log.log_start_offset > log_start_offset:
                started.append(followed)
            if self._broker.turns.due():
                await self._broker.turns.next()
        if started:
            await self._keep_starts(started)
        if out_of_range:
            await self._return_into_range(out_of_range, connection)
        if in_tier:
            await self._build_from_tier(in_tier, connection)

    async def _keep_starts(self, started: list[Followed]) -> None:
        """Make new log start offsets durable. The next Fetch names them, and the leader confirms DeleteRecords then."""
        try:
            await self._broker.write_log_starts()
        except KafkaError as error:
            for followed in started:
                self._fail(followed, error)

    async def _append(self, followed: Followed, data: PartitionData) -> None:
        """Append the records of an answer and take the leader's offsets.

        Errors  CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
        """
        partition, records, size = followed.partition, data.records, 0
        if records:
            assert isinstance(records, memoryview), "decoded records are a view"
            size = len(records)
            await self._start_inside_batch(followed, records)
            await self._broker.appender.append_as_follower(followed, records)
            self._broker.fetchers.bytes_in += size
            if not followed.is_current:
                return
            if partition.log.log_end_offset == followed.fetch_offset:
                self._delay(followed, UNUSABLE, "not one whole batch, or one of an unknown leader epoch")
                return
        followed.failures = 0
        if partition.on_leaders_offsets(data.high_watermark, data.log_start_offset):
            self._broker.wake(partition.key)
        followed.lag = max(0, data.high_watermark - partition.log.log_end_offset)
        self._fetcher.note_position(followed)
        self._hold_back(followed, size)

    def _hold_back(self, followed: Followed, size: int) -> None:
        """Count throttled traffic; if there is too much, a partition that lags waits."""
        broker, partition = self._broker, followed.partition
        throttle = broker.followers_throttle
        replicas = partition.log.config.follower_replication_throttled_replicas
        if throttle.rate == UNLIMITED or not is_throttled(replicas, partition.index, broker.node_id):
            return
        now_ms = broker.env.now_ms()
        if size:
            throttle.record(size, now_ms)
        if followed.lag and (wait_ms := throttle.wait_ms(now_ms)):
            self._fetcher.delay(followed, now_ms + wait_ms)

    async def _start_inside_batch(self, followed: Followed, records: memoryview) -> None:
        """If the leader's log starts inside a batch, and this one is still empty, start it at the batch's offset."""
        log = followed.partition.log
        if len(records) < BASE_OFFSET.size or not _is_empty(log):
            return
        base_offset = BASE_OFFSET.unpack_from(records)[0]
        if 0 <= base_offset < followed.fetch_offset == log.log_end_offset:
            await self._start_at(followed, base_offset, "the leader's log starts inside a batch")

    async def _truncate(self, followed: Followed, data: PartitionData) -> None:
        """Truncate to where the history agrees with the leader's. Errors: KAFKA_STORAGE_ERROR."""
        diverging, log = data.diverging_epoch, followed.partition.log
        assert diverging is not None
        offset = truncation_offset(
            diverging.epoch, diverging.end_offset, log.leader_epochs, log_end_offset=log.log_end_offset
        )
        await self._truncate_to(followed, offset, f"the leader ended epoch {diverging.epoch} at {diverging.end_offset}")

    async def _truncate_to(self, followed: Followed, offset: int, why: str) -> None:
        broker, partition = self._broker, followed.partition
        log = partition.log
        async with broker.locked(log), broker.kept(log):
            if not followed.is_current:
                return
            if offset < log.log_end_offset:  # otherwise only the leader epochs of the log change
                below = " below the high watermark" if offset < partition.known_high_watermark else ""
                # A start may have emptied a log that ended before its start; such a log has no records to truncate.
                what = "moving an empty partition" if _is_empty(log) else "truncating a partition"
                logger.info(
                    f"{what}{below}",
                    partition=partition.name,
                    from_offset=log.log_end_offset,
                    to_offset=offset,
                    high_watermark=partition.known_high_watermark,
                    why=why,
                )
            await broker.env.run_blocking(log.truncate_to, offset)
            partition.on_truncated()
        self._fetcher.note_position(followed)

    def _wait_with(self, followed: Followed, step: Step, code: int) -> None:
        if step is not Step.AWAIT_METADATA:
            self._delay(followed, REFUSED, code_of(code).name)
            return
        logger.info(
            "the leader has a newer leader epoch; waiting for the metadata",
            partition=followed.partition.name,
            leader_epoch=followed.leader_epoch,
        )
        self._fetcher.stop(followed)

    def _delay(self, followed: Followed, event: str, why: str) -> None:
        """Ask again later. The event is logged if the delay is long, once a minute for each partition and reason."""
        followed.failures += 1
        pause_ms, now_ms = self._pause_ms(followed), self._broker.env.now_ms()
        if pause_ms >= self._broker.settings.replication.replica_fetch_backoff_ms:
            # Shorter delays are normal: the leader does not know the newest metadata yet.
            name = followed.partition.name
            left_out = self._log_limit.admit((name, event, why), now_ms=now_ms)
            if left_out is not None:
                logger.warning(event, partition=name, source=self._source_id, why=why, left_out=left_out)
        self._fetcher.delay(followed, now_ms + pause_ms)

    def _pause_ms(self, followed: Followed) -> int:
        return delay_ms(followed.failures, self._broker.settings.replication.replica_fetch_backoff_ms)

    def _fail(self, followed: Followed, error: KafkaError) -> None:
        """A record is damaged: try again later. The log cannot be written: stop."""
        logger.error("cannot copy a partition", partition=followed.partition.name, why=error.message)
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and self._broker.replicas.directory.state.failure is not None:
            self._fetcher.stop(followed)
        else:
            followed.failures = 20
            self._fetcher.delay(followed, self._broker.env.now_ms() + self._pause_ms(followed))

    # Offsets out of range

    async def _return_into_range(self, out_of_range: list[Followed], connection: Connection) -> None:
        """Continue at offsets that the leader has.

        If the leader's log ends earlier, an unclean election has lost records: truncate to its end. If it starts later,
        retention has deleted what is missing here: start again at its start.
        """
        after = []
        for followed, found in await self._look_up(out_of_range, LATEST, connection):
            end = followed.partition.log.log_end_offset
            if found.offset < end:
                await self._move(followed, found.offset, f"the leader's log ends at {found.offset}")
            else:
                after.append(followed)
        if not after:
            return
        in_tier: dict[Followed, PartitionData] = {}
        for followed, found in await self._look_up(after, EARLIEST, connection):
            if self._starts_after_the_tier(followed):
                in_tier[followed] = PartitionData(
                    partition_index=followed.partition.index, high_watermark=-1, log_start_offset=found.offset,
                    aborted_transactions=None, records=None,
                )  # fmt: skip
            elif found.offset > followed.partition.log.log_end_offset:
                why = "retention has deleted the leader's records"
                await self._move(followed, found.offset, why, truncates_fully=True)
            else:
                self._delay(followed, REFUSED, ErrorCode.OFFSET_OUT_OF_RANGE.name)
        if in_tier:
            await self._build_from_tier(in_tier, connection)

    async def _move(self, followed: Followed, offset: int, why: str, *, truncates_fully: bool = False) -> None:
        """Continue at another offset."""
        try:
            if truncates_fully:
                await self._start_at(followed, offset, why)
            else:
                await self._truncate_to(followed, offset, why)
        except KafkaError as error:
            self._fail(followed, error)

    async def _start_at(self, followed: Followed, offset: int, why: str) -> None:
        """Delete all records and start at an offset, if the log is empty or ends before it."""
        broker, partition, log = self._broker, followed.partition, followed.partition.log
        async with broker.locked(log), broker.kept(log):
            # An append of this broker as the leader may have held the lock.
            if not followed.is_current or not (offset > log.log_end_offset or _is_empty(log)):
                return
            logger.warning(
                "starting a partition again at the leader's log start offset",
                partition=partition.name,
                log_end_offset=log.log_end_offset,
                log_start_offset=offset,
                why=why,
            )
            await broker.env.run_blocking(log.truncate_fully_and_start_at, offset)
            partition.on_truncated()
        self._fetcher.note_position(followed)

    async def _look_up(
        self, asked: list[Followed], name: int, connection: Connection
    ) -> list[tuple[Followed, ListOffsetsPartitionResponse]]:
        """The leader's offsets for partitions; those that it refuses to look up are delayed."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for followed in asked:
            partition, epoch = followed.partition, followed.leader_epoch
            topics.setdefault(partition.topic, []).append(
                ListOffsetsPartition(partition_index=partition.index, current_leader_epoch=epoch, timestamp=name)
            )
        request = ListOffsetsRequest(
            replica_id=self._broker.node_id,
            topics=[ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()],
        )
        version = list_offsets_version(self._broker.image.metadata_version)
        response: ListOffsetsResponse = await self._ask(connection, request, version)
        found = {(topic.name, one.partition_index): one for topic in response.topics for one in topic.partitions}
        return self._usable(asked, found)

    async def _look_up_ends(
        self, asked: dict[Followed, int], connection: Connection
    ) -> list[tuple[Followed, EpochEndOffset]]:
        """The ends of leader epochs on the leader, in the same way."""
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for followed, earlier in asked.items():
            partition, epoch = followed.partition, followed.leader_epoch
            topics.setdefault(partition.topic, []).append(
                OffsetForLeaderPartition(partition=partition.index, current_leader_epoch=epoch, leader_epoch=earlier)
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=self._broker.node_id,
            topics=[OffsetForLeaderTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
        )
        response: OffsetForLeaderEpochResponse = await self._ask(connection, request, OFFSET_FOR_LEADER_EPOCH_VERSION)
        found = {(topic.topic, one.partition): one for topic in response.topics for one in topic.partitions}
        return self._usable(asked, found)

    async def _ask(self, connection: Connection, request: object, version: int) -> Any:
        timeout_ms = self._broker.settings.replication.replica_socket_timeout_ms
        with trio.move_on_after(timeout_ms / 1000):
            return await connection.ask(request, version=version)
        raise SourceFailed(f"no answer to {type(request).__name__} in {timeout_ms} ms")

    def _usable(self, asked: Iterable[Followed], found: Mapping[TopicPartition, A]) -> list[tuple[Followed, A]]:
        """The answers without errors; partitions with errors or without answers are delayed."""
        usable = []
        for followed in asked:
            answer = found.get(followed.partition.key)
            if answer is None or answer.error_code != ErrorCode.NONE:
                code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
                self._wait_with(followed, step_for_code(code), code)
            elif followed.is_current:
                usable.append((followed, answer))
        return usable

    # Records that only the tier has

    def _starts_after_the_tier(self, followed: Followed) -> bool:
        """Whether a follower without records takes over only records that are not in the tier (KIP-1023)."""
        broker, log = self._broker, followed.partition.log
        return (
            broker.settings.tier.follower_fetch_last_tiered_offset_enable
            and log.log_end_offset == 0
            and log.config.remote_storage_enable
            and not log.config.is_compacting
            and list_offsets_version(broker.image.metadata_version) >= FIRST_VERSION[EARLIEST_PENDING_UPLOAD]
        )

    async def _build_from_tier(self, in_tier: dict[Followed, PartitionData], connection: Connection) -> None:
        """Begin to build partitions up to where the leader's local log starts, or where the tier ends."""
        starts: dict[Followed, ListOffsetsPartitionResponse] = {}
        after_tier = [one for one in in_tier if self._starts_after_the_tier(one)]
        at_local_start = [one for one in in_tier if one not in after_tier]
        if after_tier:
            for followed, found in await self._look_up(after_tier, EARLIEST_PENDING_UPLOAD, connection):
                if found.offset > 0:
                    starts[followed] = found
                else:  # nothing waits for its copy; Kafka waits for new records
                    at_local_start.append(followed)
        if at_local_start:
            starts |= await self._look_up(at_local_start, EARLIEST_LOCAL, connection)
        for followed in [one for one, start in starts.items() if start.offset <= in_tier[one].log_start_offset]:
            del starts[followed]
            why = "the tier has no records after the leader's log start"
            await self._move(followed, in_tier[followed].log_start_offset, why, truncates_fully=True)
        # No epoch is below 0, and without an epoch at the start there is none before it.
        earlier = {followed: start.leader_epoch - 1 for followed, start in starts.items() if start.leader_epoch > 0}
        ends = dict(await self._look_up_ends(earlier, connection)) if earlier else {}
        for followed, start in starts.items():
            if followed in earlier and followed not in ends:
                continue
            end = ends.get(followed) or EpochEndOffset(partition=followed.partition.index)
            epoch = epoch_before(start.offset, start.leader_epoch, end.leader_epoch, end.end_offset)
            log_start_offset = max(0, in_tier[followed].log_start_offset)
            high_watermark = in_tier[followed].high_watermark
            self._builds.begin(followed, LocalStart(start.offset, epoch, log_start_offset, high_watermark))
