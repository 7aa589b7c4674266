"""The topic of the tier's metadata as logs without a broker, for tests of its manager and of the layers above it.

It is not a mock: records go through `kbroker.storage.log` to the disk of the environment, and a crash of that disk has
its usual effect. Only the broker around it is missing.
"""

from __future__ import annotations

from uuid import NAMESPACE_OID, UUID, uuid5

from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.tiered.metadata_reading import has_batch, is_truncated, read_log
from kbroker.tiered.metadata_topic import Events
from wire.errors import ErrorCode, KafkaError
from wire.record_batch import Record, build_batch

FOR_EVER_MS = 1 << 40


class LogMetadataTopic:
    """`kbroker.tiered.ports.MetadataTopic` with a log for each partition and no broker.

    Shape  partition_count applies when the topic is created; an existing topic keeps its number
    Note   clean_shutdown says that the logs were closed, so opening them checks nothing
    Note   is_reachable says whether the topic can be created and has leaders; commits whether an append is committed at
           once (`commit_all` does it later)
    """

    def __init__(
        self,
        env: Env,
        directory: str,
        *,
        partition_count: int,
        clean_shutdown: bool = False,
    ) -> None:
        self.partition_count = partition_count
        self.is_reachable = True
        self.commits = True
        self.ensured = 0
        self.logs: list[Log] = []
        self.env = env
        self._clean_shutdown = clean_shutdown
        self._directory = directory
        self._topic_id = uuid5(NAMESPACE_OID, "remote log metadata")
        self._high_watermarks: list[int] = []
        self._purgatory = Purgatory()
        if env.disk.exists(directory):
            self._open(len(env.disk.list(directory)))

    async def ensure(self) -> int:
        """Create the topic if needed. Errors: KafkaError LEADER_NOT_AVAILABLE if that is impossible."""
        self.ensured += 1
        self.require_leader()
        if not self.logs:
            self.env.disk.make_directory(self._directory)
            for index in range(self.partition_count):
                self.env.disk.make_directory(self._path(index))
            self.env.disk.sync_directory(self._directory)
            self.env.disk.sync_directory(self._directory.rpartition("/")[0] or "/")
            self._open(self.partition_count)
        return len(self.logs)

    async def append(self, partition: int, values: list[bytes]) -> int:
        """Append one batch, synced, and wait until it is committed; returns its first offset."""
        self.require_leader()
        now_ms = self.env.timestamp_ms()
        batch = build_batch([Record(timestamp=now_ms, key=None, value=value) for value in values])
        return await self.append_batch(partition, batch)

    async def append_batch(self, partition: int, batch: bytes) -> int:
        """Append a batch as any client may send it."""
        held = self.logs[partition]
        plan = held.append(batch, leader_epoch=0, timestamp_ms=self.env.timestamp_ms())
        await self.env.run_blocking(held.flush)
        if self.commits:
            self.commit_all()
        await self.wait_beyond(partition, plan.first_offset)
        return plan.first_offset

    def forget_commits(self) -> None:
        """Have the high watermarks at 0 until the next commit, as on a new leader."""
        self._high_watermarks = [0] * len(self.logs)

    def commit_all(self) -> None:
        """Commit everything appended."""
        self._high_watermarks = [held.log_end_offset for held in self.logs]
        self._wake(len(self.logs))

    @property
    def topic_id(self) -> UUID | None:
        """None while the topic is deleted or does not exist."""
        return self._topic_id if self.logs else None

    def reader(self, partition: int) -> LogReader:
        """A reader of one partition."""
        return LogReader(self, partition)

    def high_watermark(self, partition: int) -> int:
        """The committed end of a partition, 0 if it is not here."""
        return self._high_watermarks[partition] if self.is_reachable and self.logs else 0

    async def wait_beyond(self, partition: int, offset: int) -> None:
        """Return once the offset is committed, or the partition has no leader or is no longer here."""
        await self._purgatory.wait(
            partition,
            until=lambda: not (self.is_reachable and self.logs) or self.high_watermark(partition) > offset,
            max_wait_ms=FOR_EVER_MS,
        )

    def set_reachable(self, is_reachable: bool) -> None:
        """Take the leader from all partitions, or give it back."""
        self.is_reachable = is_reachable
        self._wake(len(self.logs))

    def reopen(self, *, topic_id: UUID | None = None) -> None:
        """Reopen the logs from the disk, as after a restart; another id makes it another topic."""
        self._topic_id = topic_id or self._topic_id
        self._open(len(self.logs))

    def delete(self, *, topic_id: UUID) -> None:
        """Delete the topic; its next incarnation has this id."""
        for index, held in enumerate(self.logs):
            held.close()
            for name in self.env.disk.list(self._path(index)):
                self.env.disk.unlink(f"{self._path(index)}/{name}")
            self.env.disk.remove_directory(self._path(index))
        self.env.disk.remove_directory(self._directory)
        self._topic_id, count, self.logs = topic_id, len(self.logs), []
        self._wake(count)

    def close(self) -> None:
        """Close the logs."""
        for held in self.logs:
            held.close()

    def _wake(self, count: int) -> None:
        for index in range(count):
            self._purgatory.wake(index)

    def require_leader(self) -> None:
        """Errors: LEADER_NOT_AVAILABLE."""
        if not self.is_reachable:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads")

    def _path(self, index: int) -> str:
        return f"{self._directory}/{REMOTE_LOG_METADATA_TOPIC}-{index}"

    def _open(self, count: int) -> None:
        self.logs = [
            Log(
                self._path(index),
                disk=self.env.disk,
                config=LogConfig(segment_bytes=16 << 20),
                topic=REMOTE_LOG_METADATA_TOPIC,
                partition=index,
                topic_id=self._topic_id,
                clean_shutdown=self._clean_shutdown,
            )
            for index in range(count)
        ]
        self.commit_all()


class LogReader:
    """`kbroker.tiered.ports.MetadataReader` of a LogMetadataTopic."""

    def __init__(self, topic: LogMetadataTopic, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    @property
    def directory(self) -> str | None:
        """The directory of the log."""
        return self._log().directory if self._topic.logs else None

    async def end_offset(self) -> int:
        """The end of the log, once all of it is committed."""
        topic, log = self._topic, self._led()
        if topic.high_watermark(self._partition) < log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "not all is committed")
        return log.log_end_offset

    async def read(self, offset: int, leader_epoch: int, *, partition_count: int) -> Events | None:
        """The next committed events."""
        topic, log = self._topic, self._led()
        if is_truncated(log, offset, leader_epoch):
            return None
        await topic.wait_beyond(self._partition, offset)
        if self._led() is not log:
            return Events(offset)
        end_offset = topic.high_watermark(self._partition)
        return await read_log(topic.env, log, offset, end_offset=end_offset, partition_count=partition_count)

    async def has_batch(self, base_offset: int, crc: int) -> bool:
        """Whether the committed log has this batch."""
        log = self._led()
        if base_offset >= self._topic.high_watermark(self._partition):
            return False
        return await self._topic.env.run_blocking(has_batch, log, base_offset, crc)

    def close(self) -> None:
        """Nothing is open."""

    def _log(self) -> Log:
        return self._topic.logs[self._partition]

    def _led(self) -> Log:
        self._topic.require_leader()
        if not self._topic.logs:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic")
        return self._log()
