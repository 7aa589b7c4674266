"""Access of the tier's metadata manager to `__remote_log_metadata`, in this process, without Kafka clients.

The topic is created on first use, as by Kafka's manager. An appended record is synced before the append returns,
because the tier may delete a local segment on the strength of it.

Source: `TopicBasedRemoteLogMetadataManager`, `ProducerManager` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.broker.auto_creation import auto_creation_request
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.runtime.event_log import get_logger
from kbroker.storage.housekeeping import flush_log
from kbroker.storage.log import Log
from kbroker.storage.plans import UNKNOWN_SPACE
from wire.errors import ErrorCode, KafkaError
from wire.messages.create_topics import CreateTopicsResponse
from wire.record_batch import Record, build_batch

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

PRODUCE_VERSION: Final = 11
COMMIT_TIMEOUT_MS: Final = 30_000
"""Kafka's request.timeout.ms, after which its producer would retry."""
FOR_EVER_MS: Final = 1 << 40

logger = get_logger(__name__)


class OwnMetadataTopic:
    """The topic on this broker; satisfies `kbroker.tiered.ports.MetadataTopic`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def ensure(self) -> int:
        """Create the topic if needed, and return its number of partitions. Errors: KafkaError; the caller retries."""
        broker = self._broker
        if REMOTE_LOG_METADATA_TOPIC not in broker.image.topics_by_name:
            request = auto_creation_request([REMOTE_LOG_METADATA_TOPIC], broker.settings)
            answer = (await broker.controller.ask(request, CreateTopicsResponse, is_needed=True)).topics[0]
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
            logger.info("the metadata topic of the tier was created", topic=REMOTE_LOG_METADATA_TOPIC)
        return len(broker.image.topics_by_name[REMOTE_LOG_METADATA_TOPIC].partitions)

    async def append(self, partition: int, values: list[bytes]) -> int:
        """Append records with null keys as one batch, wait until they are committed and synced, and return the first
        offset.

        Errors  KafkaError
        """
        broker = self._broker
        timestamp_ms = broker.env.timestamp_ms()
        batch = build_batch([Record(timestamp=timestamp_ms, key=None, value=value) for value in values])
        # Allow this append on a nearly full disk: copying to the tier frees space, and starts with a record here.
        broker.find(REMOTE_LOG_METADATA_TOPIC, partition).log.lowest_free_bytes = -UNKNOWN_SPACE
        appended = await broker.append(
            REMOTE_LOG_METADATA_TOPIC, partition, batch, version=PRODUCE_VERSION, all_in_sync=True
        )
        await broker.purgatory.wait(
            appended.partition.key, until=lambda: appended.outcome() is not None, max_wait_ms=COMMIT_TIMEOUT_MS
        )
        if (code := appended.outcome()) is not ErrorCode.NONE:
            raise KafkaError(code or ErrorCode.REQUEST_TIMED_OUT, f"{appended.partition.name}: not committed")
        held = appended.partition.log
        if (plan := held.plan_flush()) is not None:
            await flush_log(broker.env, broker, held, plan)
        return appended.base_offset

    def log(self, partition: int) -> Log | None:
        """The local log of one of its partitions, for reading; None if there is none."""
        held = self._broker.replicas.partitions.get((REMOTE_LOG_METADATA_TOPIC, partition))
        return None if held is None else held.log

    def high_watermark(self, partition: int) -> int:
        """The high watermark of one of its partitions, 0 without a local log."""
        held = self._broker.replicas.partitions.get((REMOTE_LOG_METADATA_TOPIC, partition))
        return 0 if held is None else held.known_high_watermark

    async def wait_beyond(self, partition: int, offset: int) -> None:
        """Return once the high watermark is greater than `offset`, or the partition is no longer on this broker."""
        key = (REMOTE_LOG_METADATA_TOPIC, partition)
        await self._broker.purgatory.wait(
            key,
            until=lambda: self.log(partition) is None or self.high_watermark(partition) > offset,
            max_wait_ms=FOR_EVER_MS,
        )
