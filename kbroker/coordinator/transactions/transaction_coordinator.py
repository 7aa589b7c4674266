"""The transactional ids that this broker coordinates: their shards, and the way from a prepared transaction to its
markers.

Markers may be written only when PrepareCommit or PrepareAbort is committed: before that another coordinator could
decide otherwise. So an Ending is given to the marker sender when the high watermark has reached its record. That is at
once on a single broker.

Source: TransactionCoordinator and TransactionStateManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Final

import trio

from kbroker.config.transactions import TransactionSettings
from kbroker.coordinator.common.led import LedPartition, State
from kbroker.coordinator.common.ports import Logs
from kbroker.coordinator.common.runtime import FOR_EVER_MS, CoordinatorRuntime, Kind
from kbroker.coordinator.transactions.markers import Ending
from kbroker.coordinator.transactions.shard import TransactionShard
from kbroker.coordinator.transactions.state import EPOCH_BUMP_VERSION, NO_PRODUCER_ID, PREPARED, TopicPartition
from kbroker.coordinator.transactions.transitions import NEEDS_PRODUCER_ID, Add, End, Init, Step, Verify
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.names import TRANSACTION_STATE_TOPIC
from kbroker.metadata.parts import TRANSACTION_VERSION_FEATURE
from kbroker.replication.replicas import Replicas
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.runtime.turns import Turns
from kbroker.storage.plans import UNKNOWN_SPACE
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FIRST_VERSION_OF_BROKERS: Final = 4  # of AddPartitionsToTxn; it has several transactions
FIRST_VERSION_WITH_EPOCH_BUMP: Final = 5  # of AddPartitionsToTxn and of EndTxn
FIRST_VERSION_WITH_FENCED: Final = 2  # of AddPartitionsToTxn; older clients do not know PRODUCER_FENCED
STEPS_OF_A_TRANSACTION: Final = 10

logger = get_logger(__name__)

Led = LedPartition[TransactionShard]
Codes = Mapping[TopicPartition, ErrorCode]


class TransactionCoordinator:
    """The transactional ids that this broker coordinates.

    Shape   led maps the indexes of the partitions of `__transaction_state` that this broker leads to their state;
            next_producer_id returns a producer id that was never used; send_markers takes prepared transactions
    """

    def __init__(
        self,
        env: Env,
        settings: TransactionSettings,
        *,
        replicas: Replicas,
        purgatory: Purgatory,
        turns: Turns,
        logs: Logs,
        next_producer_id: Callable[[], Awaitable[int]],
        send_markers: Callable[[Sequence[Ending]], None],
        commit_timeout_ms: int,
        lowest_free_bytes: int = UNKNOWN_SPACE,
    ) -> None:
        """`lowest_free_bytes`: the coordinator may not write when the disk has less free space."""
        self.settings = settings
        self.image = Image()
        self._purgatory = purgatory
        self._turns = turns
        self._next_producer_id = next_producer_id
        self._send_markers = send_markers
        self._uncommitted: dict[Led, None] = {}
        self._news = trio.Event()
        kind = Kind(
            name="transactional id",
            topic=TRANSACTION_STATE_TOPIC,
            ages="transactional ids",
            partition_count=settings.transaction_state_log_num_partitions,
            codec=Codec.NONE,
            commit_timeout_ms=commit_timeout_ms,
            load_slice_bytes=settings.transaction_state_log_load_buffer_size,
            lowest_free_bytes=lowest_free_bytes,
        )
        self.runtime = CoordinatorRuntime(
            env,
            kind,
            self._new_shard,
            replicas=replicas,
            purgatory=purgatory,
            logs=logs,
            on_decided=self._on_decided,
        )
        self.led = self.runtime.led

    def _new_shard(self, partition_count: int) -> TransactionShard:
        max_ids = max(1, self.settings.kbroker_max_transactional_ids // partition_count)
        return TransactionShard(self.settings, server_version=lambda: self.version, max_ids=max_ids)

    @property
    def version(self) -> int:
        """The transaction.version in force."""
        return self.image.features.get(TRANSACTION_VERSION_FEATURE, 0)

    def shards(self) -> Iterator[TransactionShard]:
        """The shards of this broker, for operations on all transactional ids. Failed shards are skipped.

        Errors  COORDINATOR_LOAD_IN_PROGRESS
        """
        for led in self.led.values():
            if led.state is not State.FAILED:
                led.require_active()
                yield led.shard

    # Requests

    async def ask(self, request: Init | Add | End) -> Step:
        """The result of a request of one transactional id. Errors are in it.

        A producer that is about to start a transaction waits for a moment if its last one is not complete: Kafka's
        clients would ask again after 20 to 100 ms.
        """
        if not request.transactional_id:
            return Step(ErrorCode.INVALID_REQUEST)
        try:
            step = await self._ask(request)
            if step.code is ErrorCode.CONCURRENT_TRANSACTIONS and await self._is_complete(request):
                step = await self._ask(request)
            return step
        except KafkaError as error:
            return Step(error.code)

    async def _ask(self, request: Init | Add | End) -> Step:
        producer_id = NO_PRODUCER_ID
        while True:
            step: Step = await self.runtime.ask(request.transactional_id, request, producer_id)
            if step is not NEEDS_PRODUCER_ID or producer_id != NO_PRODUCER_ID:
                return step
            producer_id = await self._next_producer_id()

    async def _is_complete(self, request: Init | Add | End) -> bool:
        """Wait until the transaction is complete, but not for long."""
        led, key = self.runtime.find(request.transactional_id), request.transactional_id

        def is_complete() -> bool:
            known = led.shard.transactions.get(key)
            return led.state is not State.ACTIVE or known is None or known.state not in PREPARED

        return await self._purgatory.wait(
            (led.partition.key, key),
            until=is_complete,
            max_wait_ms=self.settings.add_partitions_to_txn_retry_backoff_max_ms,
        )

    async def verify(self, request: Verify) -> Codes:
        """Whether each partition is in a producer's transaction."""
        if not request.transactional_id:
            return dict.fromkeys(request.partitions, ErrorCode.INVALID_REQUEST)
        try:
            result = await self.runtime.ask(request.transactional_id, request, NO_PRODUCER_ID)
        except KafkaError as error:
            result = error.code
        return result if isinstance(result, Mapping) else dict.fromkeys(request.partitions, result)

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, *, api_version: int, denied: Set[str] = frozenset()
    ) -> AddPartitionsToTxnResponse:
        """Add partitions to transactions, or verify them. Several transactions (version 4 and later) are independent
        of each other and are decided at the same time. denied are topics to which the client may not write.
        """
        if api_version < FIRST_VERSION_OF_BROKERS:
            one = AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
            codes = await self._add(one, api_version, denied)
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await self._results(one.topics, codes))
        results: list[AddPartitionsToTxnResult] = []
        unsupported = 0

        async def decide(transaction: AddPartitionsToTxnTransaction, result: AddPartitionsToTxnResult) -> None:
            nonlocal unsupported
            codes = await self._add(transaction, api_version, denied)
            unsupported += ErrorCode.UNSUPPORTED_VERSION in codes.values()
            result.topic_results = await self._results(transaction.topics, codes)

        async with trio.open_nursery() as nursery:
            for transaction in request.transactions:
                if self._turns.due(STEPS_OF_A_TRANSACTION):
                    await self._turns.next()
                result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=[])
                results.append(result)
                nursery.start_soon(decide, transaction, result)
        if results and unsupported == len(results):  # as Kafka; but one such transaction must not fail the others
            return AddPartitionsToTxnResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    async def _add(self, asked: AddPartitionsToTxnTransaction, api_version: int, denied: Set[str]) -> Codes:
        partitions: list[TopicPartition] = []
        refused: dict[TopicPartition, ErrorCode] = {}
        for topic in asked.topics:
            for index in topic.partitions:
                if self._turns.due():
                    await self._turns.next()
                partitions.append((topic.name, index))
                if topic.name in denied:
                    refused[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif self.image.partition(topic.name, index) is None:
                    refused[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if refused:
            return {key: refused.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED) for key in partitions}
        who = asked.transactional_id, asked.producer_id, asked.producer_epoch, partitions
        if len(partitions) > self.settings.kbroker_max_partitions_per_transaction:
            code = ErrorCode.POLICY_VIOLATION
        elif asked.verify_only:
            return await self.verify(Verify(*who))
        else:
            client_version = EPOCH_BUMP_VERSION if api_version >= FIRST_VERSION_WITH_EPOCH_BUMP else 0
            code = (await self.ask(Add(*who, client_version))).code
        if code is ErrorCode.PRODUCER_FENCED and api_version < FIRST_VERSION_WITH_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return dict.fromkeys(partitions, code)

    async def _results(
        self, topics: Sequence[AddPartitionsToTxnTopic], codes: Codes
    ) -> list[AddPartitionsToTxnTopicResult]:
        results = []
        for topic in topics:
            result = AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[])
            results.append(result)
            for index in topic.partitions:
                if self._turns.due():
                    await self._turns.next()
                code = codes[topic.name, index]
                result.results_by_partition.append(
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                )
        return results

    # From a prepared transaction to its markers

    def _on_decided(self, led: Led) -> None:
        if timed_out := led.shard.take_timed_out():
            logger.info(
                "transactions timed out", partition=led.partition.name, count=len(timed_out), first=timed_out[0]
            )
        if not led.shard.has_endings:
            return
        if led.outcome(led.partition.log.log_end_offset) is ErrorCode.NONE:
            self._send(led, led.shard.take_endings())
        else:
            self._uncommitted[led] = None
            self._news.set()

    def _send(self, led: Led, endings: Sequence[Ending]) -> None:
        for ending in endings:
            ending.owner, ending.coordinator_epoch = led, led.leader_epoch
        self._send_markers(endings)

    async def _send_when_committed(self, led: Led) -> None:
        """Wait until what is prepared now is committed, or cannot be any more, and send its markers."""
        endings, end_offset = led.shard.take_endings(), led.partition.log.log_end_offset

        def is_settled() -> bool:
            return led.state is not State.ACTIVE or led.outcome(end_offset) is not None

        await self._purgatory.wait(led.partition.key, until=is_settled, max_wait_ms=FOR_EVER_MS)
        if led.state is State.ACTIVE and led.outcome(end_offset) is ErrorCode.NONE:
            self._send(led, endings)

    async def complete(self, endings: Sequence[Ending]) -> list[Ending]:
        """Store that all markers of these transactions are written. Returns those for which that failed, to be tried
        again.
        """
        by_led: dict[Led, list[Ending]] = {}
        for ending in endings:
            if not ending.is_cancelled:
                by_led.setdefault(ending.owner, []).append(ending)
        for led, found in by_led.items():
            try:
                await self.runtime.decide(led, partial(led.shard.complete, found))
            except KafkaError:
                continue  # the leadership was lost while waiting for the lock
            for ending in found:
                self._purgatory.wake((led.partition.key, ending.transaction.transactional_id))
        return [one for one in endings if not one.is_cancelled and one.owner.shard.is_prepared(one)]

    # Metadata and tasks

    async def on_image(self, image: Image, delta: Delta) -> None:
        """Load new partitions, and unload lost ones."""
        self.image = image
        await self.runtime.on_image(image, delta)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the shards, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.runtime.run)
            task_status.started()
            while True:
                waiting, self._uncommitted = self._uncommitted, {}
                for led in waiting:
                    nursery.start_soon(self._send_when_committed, led)
                self._news = trio.Event()
                await self._news.wait()
