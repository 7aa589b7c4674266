"""The controller: it decides on the newest state, and replays records into that state.

Every decision is ``Controller.<request>(request, ...) -> Outcome(records, response)`` and does not change the metadata.
The single writer (embedded.py) appends the records and passes them to `replay`, which creates the next image. It is
ahead of the published one by the records that are not synced yet, so that each decision sees the previous ones. Only
the broker sessions are not in the log: they depend on the clock of this process, and a new controller restarts them.

The areas are modules of functions: topics, partitions, reassignments, leader_elections, configs, brokers, isr,
producer_ids, features; auto_creation, election and placement are helpers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from kbroker.controller import (
    brokers,
    configs,
    features,
    isr,
    leader_elections,
    partitions,
    producer_ids,
    reassignments,
    topics,
)
from kbroker.controller.context import ConfigRules, Context, ControllerSettings
from kbroker.metadata.image import Image
from kbroker.runtime.outcome import Outcome
from wire.messages import alter_configs as legacy_configs
from wire.messages import incremental_alter_configs as incremental_configs
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from wire.messages.controller_registration import ControllerRegistrationRequest
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


class Controller:
    """The decisions of one cluster.

    image     the state after all replayed records
    settings  what decisions depend on; replaced as a whole when settings change
    Units     now_ms is monotonic
    """

    def __init__(
        self,
        image: Image,
        *,
        settings: ControllerSettings,
        rules: ConfigRules,
        new_uuid: Callable[[], UUID],
        now_ms: int,
    ) -> None:
        self.image = image
        self.settings = settings
        self._rules = rules
        self._new_uuid = new_uuid
        self._sessions = brokers.BrokerSessions(settings.broker_session_timeout_ms)
        self._sessions.restore(image, now_ms)

    def replay(self, records: Sequence[Any], *, offset: int, epoch: int) -> Image:
        """Replay these records, the last of which has this offset. Returns the new image."""
        self.image = self.image.apply(records, offset=offset, epoch=epoch)
        return self.image

    @property
    def _context(self) -> Context:
        return Context(self.image, self.settings, self._rules, self._new_uuid)

    def create_topics(self, request: CreateTopicsRequest) -> Outcome[CreateTopicsResponse]:
        """See topics.create_topics."""
        return topics.create_topics(self._context, request)

    def delete_topics(self, request: DeleteTopicsRequest, *, version: int) -> Outcome[DeleteTopicsResponse]:
        """See topics.delete_topics."""
        return topics.delete_topics(self._context, request, version=version)

    def create_partitions(self, request: CreatePartitionsRequest) -> Outcome[CreatePartitionsResponse]:
        """See partitions.create_partitions."""
        return partitions.create_partitions(self._context, request)

    def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Outcome[AlterPartitionReassignmentsResponse]:
        """See reassignments.alter_partition_reassignments."""
        return reassignments.alter_partition_reassignments(self._context, request)

    def elect_leaders(self, request: ElectLeadersRequest) -> Outcome[ElectLeadersResponse]:
        """See leader_elections.elect_leaders."""
        return leader_elections.elect_leaders(self._context, request)

    def incremental_alter_configs(
        self, request: incremental_configs.IncrementalAlterConfigsRequest, *, received_by: int | None = None
    ) -> Outcome[incremental_configs.IncrementalAlterConfigsResponse]:
        """See configs.incremental_alter_configs."""
        return configs.incremental_alter_configs(self._context, request, received_by=received_by)

    def alter_configs(
        self, request: legacy_configs.AlterConfigsRequest, *, received_by: int | None = None
    ) -> Outcome[legacy_configs.AlterConfigsResponse]:
        """See configs.alter_configs."""
        return configs.alter_configs(self._context, request, received_by=received_by)

    def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> Outcome[AllocateProducerIdsResponse]:
        """See producer_ids.allocate_producer_ids."""
        return producer_ids.allocate_producer_ids(self._context, request)

    def alter_partition(self, request: AlterPartitionRequest, *, version: int) -> Outcome[AlterPartitionResponse]:
        """See isr.alter_partition."""
        return isr.alter_partition(self._context, request, version=version)

    def register_broker(
        self, request: BrokerRegistrationRequest, now_ms: int, *, replaces_dead: bool = False
    ) -> Outcome[BrokerRegistrationResponse]:
        """See brokers.register_broker."""
        return brokers.register_broker(self._context, self._sessions, request, now_ms, replaces_dead=replaces_dead)

    def register_controller(self, request: ControllerRegistrationRequest) -> Outcome[None]:
        """See brokers.register_controller."""
        return brokers.register_controller(request)

    def broker_heartbeat(self, request: BrokerHeartbeatRequest, now_ms: int) -> Outcome[BrokerHeartbeatResponse]:
        """See brokers.broker_heartbeat."""
        return brokers.broker_heartbeat(self._context, self._sessions, request, now_ms)

    def fence_silent_broker(self, now_ms: int) -> Outcome[int | None]:
        """See brokers.fence_silent_broker."""
        return brokers.fence_silent_broker(self._context, self._sessions, now_ms)

    def unregister_broker(self, broker_id: int) -> Outcome[None]:
        """See brokers.unregister_broker."""
        return brokers.unregister_broker(self._context, broker_id)

    def update_features(self, request: UpdateFeaturesRequest) -> Outcome[UpdateFeaturesResponse]:
        """See features.update_features."""
        return features.update_features(self._context, request)

    def next_deadline_ms(self) -> int | None:
        """When to call fence_silent_broker next, in now_ms; None while no session can expire."""
        return self._sessions.next_deadline_ms(self.image)
