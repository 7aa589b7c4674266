"""The inputs of every controller decision, besides its request.

Decisions are functions ``decide(context, request) -> Outcome``. They read nothing else, so a test needs no mock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.config import Settings
from kbroker.config.rules import ConfigRules
from kbroker.controller.mutation_quota import Mutations
from kbroker.controller.observers import QuorumObservers
from kbroker.controller.sessions import BrokerSessions
from kbroker.metadata.image import BrokerImage, Image
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.quotas.rates import Windows
from wire.errors import ErrorCode, KafkaError
from wire.messages.broker_registration import Endpoint

DEFAULT_MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
    ErrorCode.STALE_BROKER_EPOCH: "Broker epoch has changed.",
}


class TooManyRecords(KafkaError):
    """A client request needs more records than one decision may have; the whole request fails with POLICY_VIOLATION."""

    def __init__(self, message: str = "Unable to perform excessively large batch operation.") -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, message)


class ControllerSettings(NamedTuple):
    """The settings that decisions depend on, with Kafka's names.

    Units  broker_session_timeout_ms in milliseconds; max_records_per_decision counts records: a client
           request that needs more is refused with POLICY_VIOLATION (W11), as in Kafka
    Shape  undeletable_topics maps topics that the broker depends on to the error message for requests to delete them,
           change their partitions, or compact them; listeners are the controller's own; quota_windows are those of
           controller_mutation_rate
    """

    cluster_id: str
    node_id: int = 1
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    broker_session_timeout_ms: int = 9_000
    max_records_per_decision: int = 10_000
    listeners: Sequence[Endpoint] = ()
    quota_windows: Windows = Windows()
    max_quota_clients: int = 10_000
    undeletable_topics: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, settings: Settings, cluster_id: str, *, listeners: Sequence[Endpoint] = ()) -> ControllerSettings:
        """The settings of a node's controller, with its advertised addresses."""
        quotas, undeletable_topics = settings.quotas, {}
        if settings.tier.remote_log_storage_system_enable:
            undeletable_topics[REMOTE_LOG_METADATA_TOPIC] = (
                f"{REMOTE_LOG_METADATA_TOPIC} lists what is in the tier: while remote.log.storage.system.enable is "
                "true, it cannot be deleted, repartitioned or compacted"
            )
        return cls(
            cluster_id=cluster_id,
            node_id=settings.node_id,
            num_partitions=settings.log.num_partitions,
            default_replication_factor=settings.log.default_replication_factor,
            delete_topic_enable=settings.log.delete_topic_enable,
            unclean_leader_election_enable=settings.log.unclean_leader_election_enable,
            broker_session_timeout_ms=settings.metadata.broker_session_timeout_ms,
            max_records_per_decision=settings.metadata.kbroker_max_metadata_records,
            listeners=listeners,
            quota_windows=Windows(
                quotas.controller_quota_window_num,
                1_000 * quotas.controller_quota_window_size_seconds,
            ),
            max_quota_clients=quotas.kbroker_max_quota_clients,
            undeletable_topics=undeletable_topics,
        )


class Context(NamedTuple):
    """The inputs of one decision.

    image         the state after all earlier decisions
    sessions      the only state that a decision may change: it is not in the log
    observers     the nodes that follow the metadata log; not in the log either
    mutations     the partitions that the client may create and delete; not in the log either
    now_ms        monotonic
    timestamp_ms  wall time
    version       the version in which the request was sent
    """

    image: Image
    settings: ControllerSettings
    rules: ConfigRules
    new_uuid: Callable[[], UUID]
    sessions: BrokerSessions
    observers: QuorumObservers
    mutations: Mutations
    now_ms: int
    timestamp_ms: int
    version: int

    def check_topic(self, name: str, configs: Mapping[str, str], previous: Mapping[str, str]) -> None:
        """Raise KafkaError(INVALID_CONFIG) unless this topic may have these overrides."""
        self.rules.validate_topic(configs, previous)
        if "compact" in configs.get("cleanup.policy", "") and name in self.settings.undeletable_topics:
            raise KafkaError(ErrorCode.INVALID_CONFIG, self.settings.undeletable_topics[name])

    def require_room(self, records: list[Any], more: int) -> None:
        """Raise TooManyRecords if a client request would need more records than one decision may have."""
        if len(records) + more > self.settings.max_records_per_decision:
            raise TooManyRecords


def error_text(error: KafkaError) -> str:
    """The message for the client: the error's own, or else Kafka's standard message for the code."""
    return error.message or DEFAULT_MESSAGES.get(error.code, error.code.name)


def check_broker_epoch(image: Image, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The registration with this epoch. Raises STALE_BROKER_EPOCH."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}"
        )
    return broker
