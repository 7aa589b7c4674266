"""Tells the controller in which log directory this broker's replicas are, where the metadata says otherwise.

A controller knows the only directory of a broker, and assigns new replicas to it. A broker that comes back with an
empty data directory has another directory id, and the controller elects none of its replicas until it has learned
where they are now.

If such a broker is still in the ISR, it was the last in-sync replica, and its records are lost. A report would make the
controller elect it with an empty log. So the broker reports an empty replica in the ISR only if the topic allows
unclean elections. Apache Kafka reports it, and elects it at the next start.

Source: KIP-858; AssignmentsManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final
from uuid import UUID

import trio

from kbroker.broker.broker import Broker
from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.config.values import as_boolean
from kbroker.controller.port import ControllerPort
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.parts import RESERVED_DIRECTORIES
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.storage.checkpoint import TopicPartition
from wire.errors import KafkaError
from wire.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)

MAX_PARTITIONS: Final = 2_250
"""The most partitions in one request, as in Kafka."""

UNCLEAN_ELECTION_KEY: Final = "unclean.leader.election.enable"

DIRECTORIES_LEVEL: Final = 17
"""metadata.version 3.7-IV2, the first with directories."""

_RETRY_MS: Final = 1_000

logger = get_logger(__name__)


def report_directories(nursery: trio.Nursery, broker: Broker) -> None:
    """Keep the controller informed about a broker's replicas; call it after the broker listens to images."""
    assignments = DirectoryAssignments(
        broker.env,
        broker.controller,
        broker.lifecycle,
        directory_id=broker.replicas.directory.identity.directory_id,
        end_offset=lambda key: None if (found := broker.find_partition(key)) is None else found.log.log_end_offset,
        image=broker.image,
    )
    broker.metadata.add_listener(assignments.on_image)
    nursery.start_soon(assignments.run)


class DirectoryAssignments:
    """Add `on_image` to the publisher after the broker's own listener, and `run` it.

    end_offset gives the end of a partition's log, None if this broker does not have it
    """

    def __init__(
        self,
        env: Env,
        controller: ControllerPort,
        lifecycle: BrokerLifecycle,
        *,
        directory_id: UUID,
        end_offset: Callable[[TopicPartition], int | None],
        image: Image,
    ) -> None:
        self._env = env
        self._controller = controller
        self._lifecycle = lifecycle
        self._directory_id = directory_id
        self._end_offset = end_offset
        self._image = image
        self._wrong: dict[tuple[UUID, int], None] = {}
        self._lost: set[TopicPartition] = set()
        self._arrived = trio.Event()
        for topic_id, topic in image.topics_by_id.items():
            for index in topic.partitions:
                self._judge(topic_id, index)

    def on_image(self, image: Image, delta: Delta) -> None:
        """Note which partitions have another directory in the metadata."""
        self._image = image
        for change in delta.changed_partitions:
            self._judge(change.topic.id, change.index)

    def _judge(self, topic_id: UUID, index: int) -> None:
        if self._is_wrong(topic_id, index):
            self._wrong[topic_id, index] = None
            self._arrived.set()
        else:
            self._wrong.pop((topic_id, index), None)

    def _is_wrong(self, topic_id: UUID, index: int) -> bool:
        topic = self._image.topics_by_id.get(topic_id)
        partition = None if topic is None else topic.partitions.get(index)
        if partition is None or self._image.metadata_version < DIRECTORIES_LEVEL:
            return False
        return partition.directory(self._lifecycle.broker_id) not in (None, self._directory_id)

    def _may_be_reported(self, topic_id: UUID, index: int) -> bool:
        topic = self._image.topics_by_id[topic_id]
        key, partition = (topic.name, index), topic.partitions[index]
        end_offset = self._end_offset(key)
        if end_offset is None:
            return False
        broker_id = self._lifecycle.broker_id
        directory = partition.directory(broker_id)
        was_elsewhere = directory is not None and directory.int >= RESERVED_DIRECTORIES
        if not was_elsewhere or end_offset > 0 or broker_id not in partition.isr:
            return True
        if as_boolean(self._image.topic_configs(topic.name).get(UNCLEAN_ELECTION_KEY, "false")):
            return True
        if key not in self._lost:
            self._lost.add(key)
            logger.error(
                "the last in-sync replica was in another data directory; the partition stays without a leader until "
                f"that directory is back, or until {UNCLEAN_ELECTION_KEY}=true for the topic accepts the loss",
                partition=f"{topic.name}-{index}",
                directory=directory,
            )
        return False

    async def run(self) -> None:
        """Report wrong directories, forever. What the controller does not accept is reported again later."""
        while True:
            if not self._wrong:
                self._arrived = trio.Event()
                await self._arrived.wait()
            topics: dict[UUID, list[AssignedPartition]] = {}
            reported = (wrong for wrong in self._wrong if self._may_be_reported(*wrong))
            for topic_id, index in islice(reported, MAX_PARTITIONS):
                topics.setdefault(topic_id, []).append(AssignedPartition(partition_index=index))
            if topics:
                found = [AssignedTopic(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()]
                request = AssignReplicasToDirsRequest(
                    broker_id=self._lifecycle.broker_id,
                    broker_epoch=self._lifecycle.epoch,
                    directories=[AssignedDirectory(id=self._directory_id, topics=found)],
                )
                try:
                    await self._controller.ask(request, AssignReplicasToDirsResponse)
                    count = sum(len(topic.partitions) for topic in found)
                    logger.info("told the controller where replicas are", directory=self._directory_id, replicas=count)
                except KafkaError as error:
                    logger.warning("cannot tell the controller where replicas are; will retry", why=error)
            await self._env.sleep_ms(_RETRY_MS)
