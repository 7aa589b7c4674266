"""A controller with its image, which decisions drive; shared by the tests of decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from kbroker.config import Settings
from kbroker.config.rules import ConfigRules
from kbroker.controller.context import ControllerSettings
from kbroker.controller.controller import Controller
from kbroker.metadata.image import Image
from kbroker.runtime.outcome import Outcome
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest, Endpoint, FeatureRange
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.stored.metadata import FeatureLevelRecord

R = TypeVar("R")

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
SETTINGS = ControllerSettings(cluster_id=CLUSTER_ID, num_partitions=3)
RULES = ConfigRules(Settings.load())


def topic(
    name: str,
    partitions: int = -1,
    replication_factor: int = -1,
    *,
    assignments: Mapping[int, list[int]] | list[tuple[int, list[int]]] = (),  # type: ignore[assignment]
    configs: Mapping[str, str | None] | None = None,
) -> CreatableTopic:
    pairs = assignments.items() if isinstance(assignments, Mapping) else assignments
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in pairs],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


class Cluster:
    """Brokers and one controller without a log; offsets are those that a log would assign."""

    def __init__(self, brokers: int = 1, **settings: Any) -> None:
        self.now_ms = 0
        self._ids = 0
        self.controller = Controller(
            Image(),
            settings=SETTINGS._replace(**settings),
            rules=RULES,
            new_uuid=self.new_uuid,
            now_ms=self.now_ms,
        )
        self.decided: list[Any] = []
        self.commit(Outcome([FeatureLevelRecord(name="metadata.version", feature_level=21)], None))
        for broker_id in range(1, brokers + 1):
            self.start(broker_id)

    def new_uuid(self) -> UUID:
        self._ids += 1
        return UUID(int=(0x1234_0000 << 96) + self._ids)

    @property
    def image(self) -> Image:
        return self.controller.image

    def commit(self, outcome: Outcome[R]) -> R:
        """Replay the records as if they were read from a log."""
        self.decided += outcome.records
        if outcome.records:
            self.controller.replay(outcome.records, offset=self.image.offset + len(outcome.records), epoch=1)
        return outcome.response

    def decide(self, request: Any, **context: Any) -> Outcome[Any]:
        """Decide without committing."""
        return self.controller.decide(request, **{"now_ms": self.now_ms, "timestamp_ms": self.now_ms, **context})

    def ask(self, request: Any, **context: Any) -> Any:
        return self.commit(self.decide(request, **context))

    def registration(self, broker_id: int, incarnation: int = 1) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=1_000_000 * broker_id + incarnation),
            listeners=[Endpoint(name="PLAINTEXT", host=f"host{broker_id}", port=9000 + broker_id, security_protocol=0)],
            features=[
                FeatureRange(name="metadata.version", min_supported_version=7, max_supported_version=30),
                FeatureRange(name="group.version", min_supported_version=0, max_supported_version=1),
            ],
            rack=None,
            log_dirs=[UUID(int=5_000 + broker_id)],
        )

    def start(self, broker_id: int, incarnation: int = 1) -> None:
        """Register and unfence. Broker 1 is in the controller's process."""
        request = self.registration(broker_id, incarnation)
        if broker_id == 1:
            self.register_own(request)
        else:
            self.ask(request)
        self.heartbeat(broker_id)

    def register_own(self, request: BrokerRegistrationRequest) -> None:
        """Register the broker in the controller's process."""
        self.controller.sessions.own_incarnation = request.incarnation_id
        self.ask(request)

    def heartbeat(
        self, broker_id: int, *, offset: int | None = None, fence: bool = False, shut_down: bool = False
    ) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch,
            current_metadata_offset=self.image.offset if offset is None else offset,
            want_fence=fence,
            want_shut_down=shut_down,
        )
        response: BrokerHeartbeatResponse = self.ask(request)
        return response

    def create(self, *topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsResponse:
        request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
        response: CreateTopicsResponse = self.ask(request)
        return response

    def fails(self, *topics: CreatableTopic) -> tuple[int, str | None]:
        """The error code and message of the one refused topic; the image must not have changed."""
        before = self.image
        (result,) = self.create(*topics).topics
        assert self.image is before
        return result.error_code, result.error_message
