"""All partitions of this broker: opened at the start, made and removed as the metadata says, closed at the end.

Theory of operation: an image comes with what changed. New partitions get a directory and a log, leaders their epoch,
changed settings reach the logs, deleted partitions stop serving at once while their files go later. What touches the
disk is done by the methods that say "Blocking", in a thread; what handlers see is switched by `apply`, in the loop.

Source  LogManager and ReplicaManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from uuid import UUID

from kbroker.config import Settings
from kbroker.metadata.delta import Delta, PartitionChange
from kbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.replication.partition import Partition, Traffic
from kbroker.runtime.log import logger
from kbroker.runtime.net_ports import Env
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from wire.errors import KafkaError

log = logger(__name__)


class Replicas:
    """The partitions that this broker holds.

    Shape   partitions maps (topic, index) to the partition; only the event loop changes it. failed maps those whose log
            could not be made or opened to the topic's id: they answer KAFKA_STORAGE_ERROR until a restart.
            traffic_of_retired is that of the partitions that were here
    """

    def __init__(self, *, env: Env, directory: LogDirectory, broker_id: int, settings: Settings, image: Image) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.failed: dict[TopicPartition, UUID] = {}
        self.traffic_of_retired = Traffic()
        self.directory = directory
        self.broker_id = broker_id
        self.settings = settings
        self._env = env
        self._static_settings = settings
        self._image = image
        self._default_config: LogConfig | None = None
        self._take_dynamic_settings(image)

    # Start and end

    def load(self) -> None:
        """Open every partition that the metadata places here, and take away the files of those it does not. Blocking.

        Errors  OSError, KAFKA_STORAGE_ERROR
        """
        expected = {
            (topic.name, index): topic
            for topic in self._image.topics_by_id.values()
            for index, partition in topic.partitions.items()
            if self.broker_id in partition.replicas
        }
        for topic, index in self.directory.stored_partitions():
            wanted = expected.get((topic, index))
            if topic == CLUSTER_METADATA_TOPIC:
                continue
            if wanted is None or self.directory.stored_topic_id(topic, index) not in (None, wanted.id):
                # A deletion that a crash interrupted: the metadata, which is synced first, knows no such topic.
                log.warning("removing the files of a topic that was deleted", topic=topic, partition=index)
                self.directory.delete_log(
                    topic, index, unique_id=self._env.new_uuid(), now_ms=self._env.now_ms(), delay_ms=0
                )
        stored = set(self.directory.stored_partitions())
        self.directory.forget_earlier([key for key in expected if key not in stored])
        for (name, index), topic_image in expected.items():
            partition = self._open(name, index, topic_image.id, self._log_config(name, self._image))
            if partition is not None:
                self.partitions[partition.key] = partition
                partition.apply(topic_image.partitions[index])

    def close(self, *, broker_epoch: int) -> None:
        """Flush and close every log, write the checkpoints and the clean-shutdown marker. Blocking.

        Errors  KAFKA_STORAGE_ERROR
        """
        self.directory.close(broker_epoch=broker_epoch, high_watermarks=self.high_watermarks())

    # Following the metadata: retire, remove_files, prepare, apply

    def retire(self, delta: Delta) -> list[TopicPartition]:
        """Stop serving what is no longer placed here, in the event loop; the partitions whose files have to go."""
        gone = []
        for change in delta.changed_partitions:
            if change.after is not None and self.broker_id in change.after.replicas:
                continue
            key = (change.topic.name, change.index)
            held = self.partitions.get(key)
            if held is not None and held.topic_id == change.topic.id:
                del self.partitions[key]
                held.resign()
                self.traffic_of_retired.add(held.traffic)
                gone.append(key)
            elif self.failed.get(key) == change.topic.id:
                del self.failed[key]
                gone.append(key)
        return gone

    def remove_files(self, key: TopicPartition) -> None:
        """Give up the files of a retired partition; they go after file.delete.delay.ms. Blocking.

        Nobody may append meanwhile. If the disk fails it is offline and what is left is removed by the next start.
        """
        topic, index = key
        held = self.directory.logs.get(key)
        delay_ms = held.config.file_delete_delay_ms if held is not None else 0
        try:
            self.directory.delete_log(
                topic, index, unique_id=self._env.new_uuid(), now_ms=self._env.now_ms(), delay_ms=delay_ms
            )
        except KafkaError as error:
            log.error("cannot remove a partition", topic=topic, partition=index, error=error.message)

    def adds_any(self, delta: Delta) -> bool:
        """Whether `prepare` has anything to make for these changes."""
        return any(self._is_new(change) for change in delta.changed_partitions)

    def prepare(self, image: Image, delta: Delta) -> list[Partition]:
        """Make the logs of new partitions. Blocking; nothing is served yet, and nobody else may write checkpoints."""
        new = [change for change in delta.changed_partitions if self._is_new(change)]
        try:
            self.directory.forget_earlier([(change.topic.name, change.index) for change in new])
        except KafkaError as error:
            log.error("cannot make partitions", partitions=len(new), error=error.message)
            self.failed.update({(change.topic.name, change.index): change.topic.id for change in new})
            return []
        made = []
        for change in new:
            name = change.topic.name
            partition = self._open(name, change.index, change.topic.id, self._log_config(name, image))
            if partition is not None:
                made.append(partition)
        return made

    def apply(self, image: Image, delta: Delta, made: list[Partition]) -> list[TopicPartition]:
        """Serve what the image says, in the event loop; the partitions whose waiters should look again."""
        self._image = image
        for partition in made:
            self.partitions[partition.key] = partition
        changed = []
        for change in delta.changed_partitions:
            held = self.partitions.get((change.topic.name, change.index))
            if change.after is None or held is None or held.topic_id != change.topic.id:
                continue
            if held.apply(change.after):
                changed.append(held.key)
        if delta.changed_configs:
            changed += self._reconfigure(image, delta)
        return changed

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """How far each partition that this broker leads is committed."""
        return {
            key: partition.progress.high_watermark
            for key, partition in tuple(self.partitions.items())
            if partition.progress is not None
        }

    def write_high_watermarks(self) -> None:
        """Write them down. Blocking."""
        self.directory.write_high_watermarks(self.high_watermarks())

    # Pieces

    def _is_new(self, change: PartitionChange) -> bool:
        if change.after is None or self.broker_id not in change.after.replicas:
            return False
        key = (change.topic.name, change.index)
        return key not in self.partitions and key not in self.failed

    def _open(self, topic: str, index: int, topic_id: UUID, config: LogConfig) -> Partition | None:
        try:
            opened = self.directory.open_log(
                topic, index, topic_id=topic_id, config=config, timestamp_ms=self._env.timestamp_ms()
            )
        except KafkaError as error:
            # The topic exists all the same; only this partition of it cannot be served.
            log.error("cannot open a partition", topic=topic, partition=index, error=error.message)
            self.failed[topic, index] = topic_id
            return None
        return Partition(
            broker_id=self.broker_id,
            topic=topic,
            topic_id=topic_id,
            index=index,
            log=opened,
            checkpointed_high_watermark=self.directory.high_watermarks.get((topic, index), 0),
        )

    def _reconfigure(self, image: Image, delta: Delta) -> list[TopicPartition]:
        """Give the logs their changed settings; the partitions whose high watermark rose by it."""
        names = {name for kind, name in delta.changed_configs if kind == TOPIC_RESOURCE}
        every = any(kind == BROKER_RESOURCE for kind, _ in delta.changed_configs)
        if every:
            self._take_dynamic_settings(image)
        rose = []
        for key, partition in self.partitions.items():
            if (every or key[0] in names) and partition.reconfigure(self._log_config(key[0], image)):
                rose.append(key)
        return rose

    def _take_dynamic_settings(self, image: Image) -> None:
        cluster, own = image.broker_configs(None), image.broker_configs(self.broker_id)
        self.settings = self._static_settings
        if cluster or own:
            self.settings = self._static_settings.with_dynamic(cluster, own)
            for warning in self.settings.warnings:
                log.warning(warning)
        self._default_config = None

    def _log_config(self, topic: str, image: Image) -> LogConfig:
        overrides = image.topic_configs(topic)
        if overrides:
            return self.settings.log_config(overrides, LogConfig)
        # Most topics have no settings of their own: they share one object.
        if self._default_config is None:
            self._default_config = self.settings.log_config({}, LogConfig)
        return self._default_config
