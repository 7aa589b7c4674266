"""Access of the tier's metadata manager to `__remote_log_metadata`, without Kafka clients.

The topic is created on first use, as by Kafka's manager. Records go to the leader of the partition, with acks=all,
because the tier may delete a local segment on the strength of them. If this broker leads the partition, it also syncs
the record before the append returns. `kbroker.broker.tier_metadata_reader` reads, also from the leader.

Source: `TopicBasedRemoteLogMetadataManager`, `ProducerManager` of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from kbroker.broker.auto_creation import auto_creation_request
from kbroker.broker.peers import connect_to_peer
from kbroker.broker.tier_metadata_reader import LeaderReader, refused
from kbroker.client.streaming import ConnectionClosed
from kbroker.metadata.image import TopicImage
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.runtime.event_log import get_logger
from kbroker.storage.housekeeping import flush_log
from kbroker.storage.plans import UNKNOWN_SPACE
from wire.errors import ErrorCode, KafkaError, Malformed, code_of
from wire.messages.create_topics import CreateTopicsResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.record_batch import Record, build_batch

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

PRODUCE_VERSION: Final = 11
PEER_PRODUCE_VERSION: Final = 9
"""The newest version that all releases of 3.x and 4.x know; kbroker asks other brokers for no versions."""
NO_LEADER: Final = -1
COMMIT_TIMEOUT_MS: Final = 30_000
"""Kafka's request.timeout.ms, after which its producer would retry."""
IMAGE_TIMEOUT_MS: Final = 5_000
IMAGE_INTERVAL_MS: Final = 20

logger = get_logger(__name__)


class OwnMetadataTopic:
    """The topic on this broker; satisfies `kbroker.tiered.ports.MetadataTopic`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._readers: list[LeaderReader] = []

    async def ensure(self) -> int:
        """Create the topic if needed, and return its number of partitions. Errors: KafkaError; the caller retries."""
        broker = self._broker
        if REMOTE_LOG_METADATA_TOPIC not in broker.image.topics_by_name:
            request = auto_creation_request([REMOTE_LOG_METADATA_TOPIC], broker.settings)
            answer = (await broker.controller.ask(request, CreateTopicsResponse, is_needed=True)).topics[0]
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
            if answer.error_code == ErrorCode.NONE:
                logger.info("the metadata topic of the tier was created", topic=REMOTE_LOG_METADATA_TOPIC)
        topic = await self._topic()
        return len(topic.partitions)

    async def _topic(self) -> TopicImage:
        """The topic in the image; the answer of a controller in another process comes before the image."""
        broker = self._broker
        deadline_ms = broker.env.now_ms() + IMAGE_TIMEOUT_MS
        while (topic := broker.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC)) is None:
            if broker.env.now_ms() >= deadline_ms:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "this broker has no metadata of it yet")
            await broker.env.sleep_ms(IMAGE_INTERVAL_MS)
        return topic

    async def append(self, partition: int, values: list[bytes]) -> int:
        """Append records with null keys as one batch, wait until they are committed, and return the first offset.

        Errors  KafkaError
        """
        broker = self._broker
        timestamp_ms = broker.env.timestamp_ms()
        batch = build_batch([Record(timestamp=timestamp_ms, key=None, value=value) for value in values])
        leader, _ = broker.current_leader(REMOTE_LOG_METADATA_TOPIC, partition)
        if leader not in (broker.node_id, NO_LEADER):
            return await self._produce(leader, partition, batch)
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

    async def _produce(self, leader: int, partition: int, batch: bytes) -> int:
        """Send a batch to the leader of a partition. The records are rare: each has a connection of its own."""
        broker = self._broker
        data = PartitionProduceData(index=partition, records=batch)
        topic = TopicProduceData(name=REMOTE_LOG_METADATA_TOPIC, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=COMMIT_TIMEOUT_MS, topic_data=[topic])
        timeout_ms = broker.settings.replication.replica_socket_timeout_ms
        answer: ProduceResponse | None = None
        try:
            connection = await connect_to_peer(
                broker, leader, client_id=f"broker-{broker.node_id}-tier", timeout_ms=timeout_ms
            )
            try:
                with trio.move_on_after((COMMIT_TIMEOUT_MS + timeout_ms) / 1000):
                    answer = await connection.ask(request, version=PEER_PRODUCE_VERSION)
            finally:
                connection.close()
        except (OSError, ConnectionClosed, Malformed) as error:
            why = str(error) or "the connection was closed"
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {leader}: {why}") from error
        if answer is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no answer to Produce from broker {leader}")
        produced = [one for each in answer.responses for one in each.partition_responses]
        code = code_of(produced[0].error_code) if produced else ErrorCode.UNKNOWN_SERVER_ERROR
        if code is not ErrorCode.NONE:
            raise refused(leader, code)
        return produced[0].base_offset

    def reader(self, partition: int) -> LeaderReader:
        """A reader of one partition."""
        reader = LeaderReader(self._broker, partition, on_close=self._readers.remove)
        self._readers.append(reader)
        return reader

    def on_image(self) -> None:
        """Have the readers go to the new leaders."""
        for reader in self._readers:
            reader.check_leader()

    @property
    def topic_id(self) -> UUID | None:
        """None while this broker knows no such topic."""
        topic = self._broker.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC)
        return None if topic is None else topic.id
