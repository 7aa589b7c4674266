"""The groups that this broker coordinates, and their shards.

Source: GroupCoordinatorService of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from kbroker.config.groups import GroupSettings
from kbroker.coordinator.caller import Caller
from kbroker.coordinator.common.led import State
from kbroker.coordinator.common.ports import Logs, Producer, Wait
from kbroker.coordinator.common.runtime import CoordinatorRuntime, Kind
from kbroker.coordinator.refusals import refuse
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.names import GROUP_METADATA_TOPIC
from kbroker.replication.replicas import Replicas
from kbroker.runtime.net_ports import Env
from kbroker.runtime.purgatory import Purgatory
from kbroker.storage.plans import UNKNOWN_SPACE
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.offset_delete import OffsetDeleteRequest
from wire.messages.sync_group import SyncGroupRequest
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from kbroker.coordinator.shard import GroupShard

TARGET_WAIT_MS: Final = 1_000

_OF_NAMED_GROUPS: Final = (
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetDeleteRequest,
    TxnOffsetCommitRequest,
)


class GroupCoordinator:
    """The groups that this broker coordinates.

    Shape  led maps the indexes of the partitions of `__consumer_offsets` that this broker leads to their state
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
        self._purgatory = purgatory
        self._env = env
        self._replicas = replicas
        kind = Kind(
            name="group",
            topic=GROUP_METADATA_TOPIC,
            ages="offsets of groups",
            partition_count=settings.offsets_topic_num_partitions,
            codec=Codec(settings.offsets_topic_compression_codec),
            commit_timeout_ms=settings.offsets_commit_timeout_ms,
            load_slice_bytes=settings.offsets_load_buffer_size,
            lowest_free_bytes=lowest_free_bytes,
        )
        self.runtime = CoordinatorRuntime(env, kind, self._new_shard, replicas=replicas, purgatory=purgatory, logs=logs)
        self.led = self.runtime.led

    def _new_shard(self, partition_count: int) -> GroupShard:
        from kbroker.coordinator.shard import GroupShard  # noqa: PLC0415  (`kbroker serve` has imported it)

        pending_bytes = self.settings.kbroker_group_max_pending_member_bytes // partition_count
        return GroupShard(self.settings, new_uuid=self._env.new_uuid, max_pending_bytes=pending_bytes)

    def reconfigure(self, settings: GroupSettings) -> None:
        """Use changed settings from now on."""
        self.settings = settings
        for led in self.led.values():
            led.shard.reconfigure(settings)

    @property
    def has_space(self) -> bool:
        """Whether groups may write. Their limit is below that of producers, so that consumers can commit on a nearly
        full disk.
        """
        return self._replicas.directory.state.leaves(self.runtime.kind.lowest_free_bytes)

    def shard_of(self, group_id: str) -> GroupShard:
        """The shard that holds a group, for reading.

        Errors  NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS
        """
        return self.runtime.find(group_id).shard

    def knows(self, group_id: str) -> bool:
        """Whether a shard of this broker has a group of this id."""
        led = self.runtime.led.get(self.runtime.partition_of(group_id))
        return led is not None and led.shard.group(group_id) is not None

    def named_topics(self, request: JoinGroupRequest | ConsumerGroupHeartbeatRequest) -> Collection[str]:
        """The topics by name of which the decision needs to know whether the sender may describe them."""
        led = self.led.get(self.runtime.partition_of(request.group_id))
        return () if led is None else led.shard.named_topics(request)

    def shards(self) -> Iterator[GroupShard]:
        """The shards of this broker, for operations on all groups. Failed shards are skipped, as in Kafka.

        Errors  COORDINATOR_LOAD_IN_PROGRESS
        """
        for led in self.led.values():
            if led.state is not State.FAILED:
                led.require_active()
                yield led.shard

    async def ask(
        self, group_id: str, request: Any, caller: Caller, *, wait: Wait, producer: Producer | None = None
    ) -> Any:
        """The response to a request of one group. Errors are in the response.

        `wait` is used if the response depends on other members; with a producer what the request stores is part of the
        producer's transaction.
        """
        if not group_id and type(request) in _OF_NAMED_GROUPS:
            response = refuse(request, ErrorCode.INVALID_GROUP_ID, caller.api_version)
            if type(request) is JoinGroupRequest:
                response.member_id = request.member_id
            return response
        try:
            return await self.runtime.ask(group_id, request, caller, wait=wait, producer=producer)
        except KafkaError as error:
            return refuse(request, error.code, caller.api_version)

    def on_marker(self, partition_index: int, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """A transaction marker was appended to a partition of `__consumer_offsets`: the offsets of that transaction
        become visible or are dropped. See CoordinatorRuntime.on_marker.
        """
        del producer_epoch  # a marker ends the transaction of every epoch, as in Kafka
        self.runtime.on_marker(partition_index, producer_id, committed=committed)

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, *, wait: Wait
    ) -> ConsumerGroupHeartbeatResponse:
        """The response to a heartbeat of KIP-848. A member that joins while a thread computes the target assignment of
        a large group waits a moment for it, because it would send its next heartbeat only seconds later.
        """
        answer: ConsumerGroupHeartbeatResponse = await self.ask(request.group_id, request, caller, wait=wait)
        led = self.led.get(self.runtime.partition_of(request.group_id))
        if request.member_epoch != 0 or answer.error_code or led is None:
            return answer

        def is_computed() -> bool:
            return not led.shard.is_computing(request.group_id)

        if is_computed() or not await wait(
            self._purgatory, led.partition.key, until=is_computed, max_wait_ms=TARGET_WAIT_MS
        ):
            return answer
        request.member_id = answer.member_id or request.member_id
        request.member_epoch = answer.member_epoch  # a static member that joins twice would be refused
        again: ConsumerGroupHeartbeatResponse = await self.ask(request.group_id, request, caller, wait=wait)
        return again

    async def on_image(self, image: Image, delta: Delta) -> None:
        """Load new partitions, unload lost ones, and delete the offsets of deleted topics. Consumer groups compare the
        topics whose partitions are new or gone.
        """
        await self.runtime.on_image(image, delta)
        changed = {one.topic.name for one in delta.changed_partitions if one.before is None or one.after is None}
        for led in self.runtime.active():
            led.shard.on_image(image, changed, has_new_topics=bool(delta.created_topics))
        deleted = [(one.id, one.name) for one in delta.deleted_topics]
        if deleted:
            await self.runtime.decide_everywhere(lambda shard: partial(shard.on_topics_deleted, deleted))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the shards until cancelled."""
        await self.runtime.run(task_status=task_status)
