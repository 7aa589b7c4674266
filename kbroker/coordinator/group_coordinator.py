"""The runtime of consumer groups: one shard for each partition of `__consumer_offsets` that this broker leads.

Theory of operation: a group id hashes to a partition of `__consumer_offsets`, and the leader of that partition
coordinates the group. When this broker becomes the leader, it loads the partition into a new shard; requests are
answered with COORDINATOR_LOAD_IN_PROGRESS until that is done. When it loses the leadership, it drops the shard and
answers waiting requests with NOT_COORDINATOR. deciding.py makes and stores decisions; upkeep.py loads logs and keeps
them short.

A waiting JoinGroup or SyncGroup parks the task of its connection until the shard has the answer. One task runs the
timers of all shards.

Source: GroupCoordinatorService of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final
from uuid import UUID

import trio

from kbroker.config.groups import GroupSettings
from kbroker.coordinator import upkeep
from kbroker.coordinator.deciding import Decisions, Logs, Wait
from kbroker.coordinator.led import HISTORY_BYTES, LedPartition, State
from kbroker.coordinator.shard import Caller, GroupShard, Parked, partition_for, refuse
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.names import GROUP_METADATA_TOPIC
from kbroker.replication.replicas import Replicas
from kbroker.runtime.cautious_clock import CautiousClock
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.plans import UNKNOWN_SPACE
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.offset_delete import OffsetDeleteRequest
from wire.messages.sync_group import SyncGroupRequest

REMEMBERED_GROUPS: Final = 10_000
REMEMBERED_LENGTH: Final = 256
STALL_MS: Final = 500
ROUNDS_AFTER_A_STALL: Final = 3
REWRITE_INTERVAL_MS: Final = 5_000
"""The minimum time between two rewrites, because each one syncs the log."""

_OF_NAMED_GROUPS: Final = (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest, OffsetDeleteRequest)

logger = get_logger(__name__)


class GroupCoordinator:
    """The groups that this broker coordinates.

    Shape  led maps partition indexes of `__consumer_offsets` that this broker leads to their state
    """

    def __init__(
        self,
        env: Env,
        settings: GroupSettings,
        *,
        replicas: Replicas,
        purgatory: Purgatory,
        logs: Logs,
        lowest_free_bytes: int = UNKNOWN_SPACE,
    ) -> None:
        """`lowest_free_bytes`: groups may not write when the disk has less free space."""
        self.settings = settings
        self._lowest_free_bytes = lowest_free_bytes
        self.led: dict[int, LedPartition] = {}
        self._env = env
        self._replicas = replicas
        self._purgatory = purgatory
        self._logs = logs
        self._codec = Codec(settings.offsets_topic_compression_codec)
        self.decisions = Decisions(
            env,
            purgatory=purgatory,
            logs=logs,
            codec=self._codec,
            commit_timeout_ms=settings.offsets_commit_timeout_ms,
            on_deadline=self._note_deadline,
            on_growth=self._want_rewriting,
        )
        self._topic_id: UUID | None = None
        self._partition_count = settings.offsets_topic_num_partitions
        self._hash = lru_cache(REMEMBERED_GROUPS)(partition_for)
        self._to_load: list[LedPartition] = []
        self._load_wanted = trio.Event()
        self._rewrite_wanted = trio.Event()
        self._sleep = trio.CancelScope()
        self._due_ms: int | None = None
        self._has_followed = False
        self._image = Image()

    @property
    def has_space(self) -> bool:
        """Whether groups may write. Their limit is below that of producers, so that consumers can commit on a nearly
        full disk.
        """
        return self._replicas.directory.state.leaves(self._lowest_free_bytes)

    # Which partition, which shard

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds a group."""
        find = self._hash if len(group_id) <= REMEMBERED_LENGTH else partition_for
        return find(group_id, self._partition_count)

    def shard_of(self, group_id: str) -> GroupShard:
        """The shard that holds a group, for reading.

        Errors  NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS
        """
        return self._find(group_id).shard

    def shards(self) -> Iterator[GroupShard]:
        """The shards of this broker, for operations on all groups. Failed shards are skipped, as in Kafka.

        Errors  COORDINATOR_LOAD_IN_PROGRESS
        """
        for led in self.led.values():
            if led.state is not State.FAILED:
                led.require_active()
                yield led.shard

    def _find(self, group_id: str) -> LedPartition:
        led = self.led.get(self.partition_of(group_id))
        if led is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate the group {group_id}")
        led.require_active()
        return led

    # Requests

    async def ask(self, group_id: str, request: Any, caller: Caller, *, wait: Wait) -> Any:
        """The response to a request of one group. Errors are in the response.

        `wait` is used if the response depends on other members.
        """
        try:
            led = self._find(group_id)
            response = await self.decisions.decide(led, partial(led.shard.decide, request, caller))
        except KafkaError as error:
            if not group_id and type(request) in _OF_NAMED_GROUPS:
                return _refuse_nameless(request, caller)
            return refuse(request, error.code, caller.api_version)
        if type(response) is Parked:
            return await self.decisions.answer(response, request, caller, wait)
        return response

    # Background tasks
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load shards, run their timers, and keep their logs short, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._load_shards)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._shorten_logs)
            task_status.started()

    def _note_deadline(self, now_ms: int, due_ms: int) -> None:
        if self._due_ms is None or due_ms < self._due_ms:
            self._due_ms = due_ms
            self._sleep.deadline = trio.current_time() + max(0, due_ms - now_ms) / 1000

    def _late_ms(self) -> int:
        """How late the earliest timer is."""
        return 0 if self._due_ms is None else self._env.now_ms() - self._due_ms

    async def _keep_time(self) -> None:
        clock = CautiousClock(self._env, report=partial(logger.info, of="offsets of groups"))
        while True:
            self._due_ms, now_ms = None, self._env.now_ms()
            with trio.CancelScope() as self._sleep:
                for led in self._active():
                    due_ms = led.shard.next_deadline_ms()
                    if due_ms is not None:
                        self._note_deadline(now_ms, due_ms)
                await trio.sleep_forever()
            if self._late_ms() > STALL_MS:
                # The process was stalled. Let the requests that arrived in the meantime run first: they may be
                # heartbeats.
                for _ in range(ROUNDS_AFTER_A_STALL):
                    await trio.lowlevel.checkpoint()
            for led in self._active():
                due_ms = led.shard.next_deadline_ms()
                if due_ms is not None and due_ms <= self._env.now_ms() and led.state is State.ACTIVE:
                    with suppress(KafkaError):  # the leadership was lost while waiting for the lock
                        on_time = partial(led.shard.on_time, aging_timestamp_ms=clock.timestamp_ms())
                        await self.decisions.decide(led, on_time)

    def _active(self) -> list[LedPartition]:
        return [led for led in self.led.values() if led.state is State.ACTIVE]

    async def _load_shards(self) -> None:
        while True:
            if not self._to_load:
                self._load_wanted = trio.Event()
                await self._load_wanted.wait()
            led = self._to_load.pop(0)
            if led.state is State.LOADING:
                slice_bytes = self.settings.offsets_load_buffer_size
                if await upkeep.load(self._env, self._logs, led, slice_bytes=slice_bytes):
                    await self._activate(led)

    async def _activate(self, led: LedPartition) -> None:
        # Topics may have been deleted during loading, or just before a crash. Collect them before any client can
        # commit: offsets committed after that belong to topics that exist.
        deleted_topics = _deleted_topics(led.shard, self._image)
        led.state = State.ACTIVE
        with suppress(KafkaError):
            await self.decisions.decide(led, led.shard.on_loaded)
            for deleted in deleted_topics:
                await self.decisions.decide(led, partial(led.shard.on_topics_deleted, [deleted]))
        if led.wants_rewriting:
            self._want_rewriting()

    def _want_rewriting(self) -> None:
        self._rewrite_wanted.set()

    async def _shorten_logs(self) -> None:
        while True:
            await self._rewrite_wanted.wait()
            self._rewrite_wanted = trio.Event()
            for led in self._active():
                if not led.wants_rewriting or led.state is not State.ACTIVE:
                    continue
                try:
                    await upkeep.shorten(self._env, self._logs, self._purgatory, led, codec=self._codec)
                except KafkaError as error:
                    led.postpone_rewriting()
                    logger.warning(
                        "cannot rewrite the log of groups; will retry", partition=led.partition.name, why=error.message
                    )
            await self._env.sleep_ms(REWRITE_INTERVAL_MS)

    # Following the metadata

    async def on_image(self, image: Image, delta: Delta) -> None:
        """Load new partitions, unload lost ones, and delete the offsets of deleted topics."""
        self._image = image
        topic = image.topics_by_name.get(GROUP_METADATA_TOPIC)
        if topic is not delta.before.topics_by_name.get(GROUP_METADATA_TOPIC) or not self._has_followed:
            self._has_followed = True
            topic_id = None if topic is None else topic.id
            if topic_id != self._topic_id:
                # Keep the partition count that the topic had first: a new count would separate groups from their
                # offsets.
                self._topic_id = topic_id
                default = self.settings.offsets_topic_num_partitions
                self._partition_count = default if topic is None else len(topic.partitions)
            await self.follow(image)
        deleted = [(one.id, one.name) for one in delta.deleted_topics]
        if deleted:
            for led in self._active():
                with suppress(KafkaError):
                    await self.decisions.decide(led, partial(led.shard.on_topics_deleted, deleted))

    async def follow(self, image: Image) -> None:
        """Load the partitions that this broker leads now, and unload those that it no longer leads."""
        self._image = image
        topic = image.topics_by_name.get(GROUP_METADATA_TOPIC)
        partitions = self._replicas.partitions
        led_now = {
            index: partition
            for index in (() if topic is None else topic.partitions)
            if (partition := partitions.get((GROUP_METADATA_TOPIC, index))) is not None and partition.is_leader
        }
        for index, led in list(self.led.items()):
            if led.partition is not led_now.get(index) or not led.is_led:
                del self.led[index]
                self._unload(led)
        for index, partition in led_now.items():
            if index in self.led:
                continue
            partition.log.lowest_free_bytes = self._lowest_free_bytes
            shard = GroupShard(
                self.settings,
                new_uuid=self._env.new_uuid,
                max_pending_bytes=self.settings.kbroker_group_max_pending_member_bytes // self._partition_count,
            )
            led = LedPartition(partition, shard, history_bytes=HISTORY_BYTES // self._partition_count)
            self.led[index] = led
            if partition.log.log_start_offset == partition.log.log_end_offset:
                await self._activate(led)
            else:
                self._to_load.append(led)
                self._load_wanted.set()

    def _unload(self, led: LedPartition) -> None:
        was_active, led.state = led.state is State.ACTIVE, State.UNLOADED
        if was_active:
            led.shard.unload(now_ms=self._env.now_ms(), timestamp_ms=self._env.timestamp_ms())
            self.decisions.deliver(led)
        self._purgatory.wake(led.partition.key)


def _refuse_nameless(request: Any, caller: Caller) -> Any:
    """INVALID_GROUP_ID for an empty group id, even on brokers that are not its coordinator."""
    response = refuse(request, ErrorCode.INVALID_GROUP_ID, caller.api_version)
    if type(request) is JoinGroupRequest:
        response.member_id = request.member_id
    return response


def _deleted_topics(shard: GroupShard, image: Image) -> set[tuple[UUID, str]]:
    """Ids and names of topics that have offsets in the shard but no longer exist."""
    return {
        (committed.topic_id, name)
        for group_id in shard.group_ids()
        for name, partitions in shard.offsets_of(group_id).items()
        for committed in partitions.values()
        if (topic := image.topics_by_name.get(name)) is None or not committed.is_of(topic.id)
    }
