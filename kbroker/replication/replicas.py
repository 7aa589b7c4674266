"""All partitions of this broker: opens them at startup, follows the metadata, closes them at shutdown.

Theory of operation: a new image comes with its changes. New partitions get a directory and a log, leaders get their
epoch, logs get changed settings, and deleted partitions stop serving at once while their files are removed later.
Methods marked "Blocking" use the disk and run in a thread. `apply` changes what handlers see and runs in the event
loop.

Strays. A start may find the directory of a partition that the image does not place here. If the metadata log has a
RemoveTopicRecord for the topic's id, a crash interrupted the deletion, and the start finishes it. Any other directory
may be the only copy of data whose metadata was lost: an older backup was restored, the metadata log was truncated, or
somebody renamed the directory. Such a directory is a stray: it is renamed, kept and never loaded. Apache Kafka also
makes strays of interrupted deletions, and an operator must remove them; the record is sufficient proof to delete them.
For a partition that moved to another broker there is no such record, so leftovers of it are strays, as in Kafka.

Source  LogManager and ReplicaManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

from kbroker.config import Settings
from kbroker.metadata.delta import Delta, PartitionChange
from kbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC, is_tierable
from kbroker.metadata.parts import TopicImage
from kbroker.replication.isr import LiveBrokers
from kbroker.replication.partition import Partition
from kbroker.replication.partition_state import Traffic
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.log_config import LogConfig
from kbroker.storage.log_directory import LogDirectory
from wire.errors import KafkaError

MAX_LOGGED_STRAYS: Final = 20

logger = get_logger(__name__)


class Replicas:
    """The partitions on this broker.

    Shape   partitions maps (topic, index) to the partition; only the event loop changes it. failed maps partitions
            whose log could not be created or opened to the topic's id: they answer KAFKA_STORAGE_ERROR until `reopen`
            succeeds. traffic_of_retired is the sum of the partitions that were removed
    """

    def __init__(self, *, env: Env, directory: LogDirectory, broker_id: int, settings: Settings, image: Image) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.failed: dict[TopicPartition, UUID] = {}
        self.traffic_of_retired = Traffic()
        self.directory = directory
        self.broker_id = broker_id
        self.settings = settings
        self.brokers = LiveBrokers()
        self.brokers.follow(image)
        self._env = env
        self._static_settings = settings
        self._image = image
        self._default_config: LogConfig | None = None
        self._kept_from_compaction: set[str] = set()
        self._take_dynamic_settings(image)

    # Startup and shutdown

    def put_away_unexpected(self, removed_topics: Callable[[], Container[UUID]]) -> dict[TopicPartition, LogConfig]:
        """Delete or set aside the directories of all partitions that the metadata does not place here. Blocking.

        Returns the partitions to open with their settings. The caller may recover their logs before `open_expected`.
        `removed_topics` gives the topics that the metadata log says were removed. It is called only if needed.
        Errors  OSError, KAFKA_STORAGE_ERROR
        """
        expected = self._expected()
        unexpected: list[tuple[TopicPartition, UUID | None]] = []
        for key in self.directory.stored_partitions():
            if key[0] != CLUSTER_METADATA_TOPIC:
                wanted, stored_id = expected.get(key), self.directory.stored_topic_id(*key)
                if wanted is None or stored_id not in (None, wanted.id):
                    unexpected.append((key, stored_id))
        if unexpected:
            self._put_away(unexpected, removed_topics())
        stored = set(self.directory.stored_partitions())
        missing = {key: topic.id for key, topic in expected.items() if key not in stored}
        if not self._forget_earlier(missing):
            expected = {key: topic for key, topic in expected.items() if key not in missing}
        return {key: self._log_config(key[0], self._image) for key in expected}

    def open_expected(self) -> None:
        """Open every partition that the metadata places here, except those that have failed. Blocking."""
        expected = {key: topic for key, topic in self._expected().items() if key not in self.failed}
        opened = self._open_all([(name, index, topic.id) for (name, index), topic in expected.items()], self._image)
        for partition in opened:
            self.partitions[partition.key] = partition
            partition.apply(expected[partition.key].partitions[partition.index], now_ms=self._env.now_ms())

    def close(self, *, broker_epoch: int) -> None:
        """Flush and close every log, write the checkpoints and the clean-shutdown marker. Blocking.

        Errors  KAFKA_STORAGE_ERROR
        """
        self.directory.close(broker_epoch=broker_epoch, high_watermarks=self.high_watermarks())

    # Following the metadata: retire, remove_files, prepare, apply

    def retire(self, delta: Delta) -> list[TopicPartition]:
        """Stop serving partitions that are no longer placed here, in the event loop; returns those to remove."""
        gone = []
        for change in delta.changed_partitions:
            if change.after is not None and self.broker_id in change.after.replicas:
                continue
            key = (change.topic.name, change.index)
            held = self.partitions.get(key)
            if held is not None and held.topic_id == change.topic.id:
                del self.partitions[key]
                held.apply(change.after)
                self.traffic_of_retired.add(held.traffic)
                gone.append(key)
            elif self.failed.get(key) == change.topic.id:
                del self.failed[key]
                gone.append(key)
        return gone

    def remove_files(self, keys: Iterable[TopicPartition]) -> None:
        """Delete the files of retired partitions; they are removed after file.delete.delay.ms. Blocking.

        The caller must prevent appends. If the disk fails, the directory goes offline, and the next start removes the
        rest.
        """
        for topic, index in keys:
            held = self.directory.logs.get((topic, index))
            try:
                self._delete(topic, index, delay_ms=held.config.file_delete_delay_ms if held is not None else 0)
            except KafkaError as error:
                logger.error("cannot delete a partition", topic=topic, partition=index, error=error.message)
        with suppress(KafkaError):  # the directory has failed and has reported it
            self.directory.sync_partition_names()

    def adds_any(self, delta: Delta) -> bool:
        """Whether `prepare` must create anything for these changes."""
        return any(self._is_new(change) for change in delta.changed_partitions)

    def prepare(self, image: Image, delta: Delta) -> list[Partition]:
        """Create the logs of new partitions. Blocking; they are not served yet. Nothing else may write checkpoints."""
        new = [change for change in delta.changed_partitions if self._is_new(change)]
        if not self._forget_earlier({(change.topic.name, change.index): change.topic.id for change in new}):
            return []
        return self._open_all([(change.topic.name, change.index, change.topic.id) for change in new], image)

    @property
    def may_reopen(self) -> bool:
        """Whether there are failed partitions and no known reason why they would fail again."""
        state = self.directory.state
        return bool(self.failed) and state.failure is None and not state.is_short_of_space

    def reopen(self) -> list[Partition]:
        """Try to open the failed partitions again; returns those that opened. Blocking; the image must not change."""
        try:
            stored = set(self.directory.stored_partitions())
            self.directory.checkpoints.forget_earlier([key for key in self.failed if key not in stored])
        except (OSError, KafkaError) as error:
            logger.debug("cannot check failed partitions", error=error)
            return []
        return self._open_all([(*key, topic_id) for key, topic_id in self.failed.items()], self._image)

    def serve_reopened(self, opened: Iterable[Partition]) -> list[TopicPartition]:
        """Serve reopened partitions according to the image, in the event loop; returns those whose waiters should check
        again.
        """
        for partition in opened:
            image = self._image.partition(partition.topic, partition.index)
            assert image is not None, "a deleted partition is retired, failed or not"
            partition.apply(image, now_ms=self._env.now_ms())
            self.partitions[partition.key] = partition
            logger.info("partition is available again", topic=partition.topic, partition=partition.index)
        self.failed = {key: topic_id for key, topic_id in self.failed.items() if key not in self.partitions}
        return [partition.key for partition in opened]

    def apply(self, image: Image, delta: Delta, made: list[Partition]) -> list[TopicPartition]:
        """Serve the partitions of the image, in the event loop; returns those whose waiters should check again."""
        self._image = image
        if delta.before.brokers is not image.brokers:
            self.brokers.follow(image)
        now_ms = self._env.now_ms()
        for partition in made:
            self.partitions[partition.key] = partition
        changed = []
        for change in delta.changed_partitions:
            held = self.partitions.get((change.topic.name, change.index))
            if change.after is None or held is None or held.topic_id != change.topic.id:
                continue
            if held.apply(change.after, now_ms=now_ms):
                changed.append(held.key)
        if delta.changed_configs:
            changed += self._reconfigure(image, delta)
        return changed

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The last known high watermark of each partition, even if the leader has resigned before a shutdown."""
        return {key: partition.known_high_watermark for key, partition in tuple(self.partitions.items())}

    def write_high_watermarks(self) -> None:
        """Write the high watermark checkpoint. Blocking."""
        self.directory.checkpoints.write_high_watermarks(self.high_watermarks())

    # Helpers

    def _expected(self) -> dict[TopicPartition, TopicImage]:
        """The partitions that the metadata places here."""
        return {
            (topic.name, index): topic
            for topic in self._image.topics_by_id.values()
            for index, partition in topic.partitions.items()
            if self.broker_id in partition.replicas
        }

    def _forget_earlier(self, new: dict[TopicPartition, UUID]) -> bool:
        """Clear the checkpoints for new partitions; if that is impossible, the partitions have failed."""
        try:
            self.directory.checkpoints.forget_earlier(new)
        except KafkaError as error:
            logger.error("cannot create partitions", partitions=len(new), error=error.message)
            self.failed = self.failed | new
            return False
        return True

    def _put_away(self, unexpected: list[tuple[TopicPartition, UUID | None]], removed: Container[UUID]) -> None:
        """Delete the directories of removed topics and make strays of the rest."""
        strays = 0
        for (topic, index), topic_id in unexpected:
            if topic_id is not None and topic_id in removed:
                logger.info("finishing an interrupted deletion", topic=topic, partition=index)
                self._delete(topic, index, delay_ms=0)
                continue
            name = self.directory.set_aside(topic, index, unique_id=self._env.new_uuid())
            strays += 1
            if strays <= MAX_LOGGED_STRAYS:
                logger.warning("a directory that the metadata does not list is kept as a stray", directory=name)
        if strays > MAX_LOGGED_STRAYS:
            logger.warning("further directories are kept as strays", directories=strays - MAX_LOGGED_STRAYS)
        self.directory.sync_partition_names()

    def _delete(self, topic: str, index: int, *, delay_ms: int) -> None:
        unique_id, now_ms = self._env.new_uuid(), self._env.now_ms()
        self.directory.delete_log(topic, index, unique_id=unique_id, now_ms=now_ms, delay_ms=delay_ms, syncs_name=False)

    def _is_new(self, change: PartitionChange) -> bool:
        if change.after is None or self.broker_id not in change.after.replicas:
            return False
        key = (change.topic.name, change.index)
        return key not in self.partitions and key not in self.failed

    def _open_all(self, wanted: Iterable[tuple[str, int, UUID]], image: Image) -> list[Partition]:
        """Create or open the logs of partitions, with one sync for all names; adds those that fail to `failed`."""
        opened, failed = [], dict[TopicPartition, UUID]()
        for topic, index, topic_id in wanted:
            try:
                opened.append(self._open(topic, index, topic_id, self._log_config(topic, image)))
            except KafkaError as error:
                # The topic exists anyway; only this partition cannot be served.
                failed[topic, index] = topic_id
                if (topic, index) not in self.failed:
                    logger.error("cannot open a partition", topic=topic, partition=index, error=error.message)
        try:
            self.directory.sync_partition_names()
        except KafkaError as error:
            logger.error("cannot create partitions", partitions=len(opened), error=error.message)
            failed |= {partition.key: partition.topic_id for partition in opened}
            opened = []
        self.failed = self.failed | failed  # a new dict, because the event loop may be reading the old one
        return opened

    def _open(self, topic: str, index: int, topic_id: UUID, config: LogConfig) -> Partition:
        opened = self.directory.open_log(
            topic, index, topic_id=topic_id, config=config, timestamp_ms=self._env.timestamp_ms(), syncs_name=False
        )
        return Partition(
            broker_id=self.broker_id,
            topic=topic,
            topic_id=topic_id,
            index=index,
            log=opened,
            checkpointed_high_watermark=self.directory.checkpoints.high_watermarks.get((topic, index), 0),
            brokers=self.brokers,
            lag_time_max_ms=self.settings.replication.replica_lag_time_max_ms,
        )

    def _reconfigure(self, image: Image, delta: Delta) -> list[TopicPartition]:
        """Apply changed settings to the logs; returns the partitions whose high watermark rose."""
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
                logger.warning(warning)
        self._default_config = None

    def _is_tiered(self, topic: str, config: LogConfig) -> bool:
        """Whether a topic with remote.storage.enable is really tiered; some topics cannot be."""
        has_system = self.settings.tier.remote_log_storage_system_enable
        return has_system and is_tierable(topic) and not config.is_compacting

    def _log_config(self, topic: str, image: Image) -> LogConfig:
        overrides = image.topic_configs(topic)
        if overrides:
            config = self.settings.log_config(overrides, LogConfig)
            if config.remote_storage_enable and config.is_compacting and "cleanup.policy" not in overrides:
                # The broker's policy was changed after the topic was tiered. Loaded as a topic without a tier, its log
                # would start at the first local record.
                if topic not in self._kept_from_compaction:
                    self._kept_from_compaction.add(topic)
                    logger.warning("a tiered topic is not compacted, whatever log.cleanup.policy says", topic=topic)
                config = replace(config, cleanup_policy=frozenset({"delete"}))
            if config.remote_storage_enable and not self._is_tiered(topic, config):
                return replace(config, remote_storage_enable=False)
            return config
        # Most topics have no settings of their own and share one object.
        if self._default_config is None:
            self._default_config = self.settings.log_config({}, LogConfig)
        return self._default_config
