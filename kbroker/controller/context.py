"""What every decision of the controller may look at: the image, its settings, the rules for configs, and new ids.

Decisions are functions ``decide(context, request) -> Outcome``. They read nothing else, so that a test needs four
values and no mock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from kbroker.metadata.image import Image
from wire.errors import ErrorCode, KafkaError

MAX_RECORDS_PER_DECISION = 10_000
"""More records than this in one client's request are refused with POLICY_VIOLATION (W11), as Kafka does."""

DEFAULT_MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
    ErrorCode.STALE_BROKER_EPOCH: "Broker epoch has changed.",
}


class TooManyRecords(KafkaError):
    """A client's request needs more records than one decision may have; all of it fails with POLICY_VIOLATION."""

    def __init__(self, message: str = "Unable to perform excessively large batch operation.") -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, message)


class DescribedConfig(Protocol):
    """One line of a topic's effective configuration, as CreateTopics v5+ returns it."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str | None: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def source(self) -> int: ...

    @property
    def is_sensitive(self) -> bool: ...


class ConfigRules(Protocol):
    """What the controller needs to know of settings; kbroker.config fulfils it."""

    def validate_topic(self, configs: Mapping[str, str], previous: Mapping[str, str]) -> None:
        """Raise KafkaError(INVALID_CONFIG) unless these are legal overrides of one topic."""

    def validate_broker(self, configs: Mapping[str, str], previous: Mapping[str, str], *, per_broker: bool) -> None:
        """Raise KafkaError unless these are legal dynamic settings of one broker, or of all (per_broker false)."""

    def validate_group(self, configs: Mapping[str, str]) -> None:
        """Raise KafkaError unless these are legal settings of one group."""

    def validate_client_metrics(self, configs: Mapping[str, str]) -> None:
        """Raise KafkaError unless these are legal settings of one subscription to clients' metrics."""

    def is_list(self, resource_type: int, key: str) -> bool:
        """Whether APPEND and SUBTRACT make sense for the key."""

    def default(self, resource_type: int, key: str) -> str | None:
        """The value that an APPEND or SUBTRACT starts from when the resource has no override."""

    def describe_topic(self, configs: Mapping[str, str], image: Image) -> Sequence[DescribedConfig]:
        """The effective settings of a topic with these overrides, sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """How an internal topic is made on its first use."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings that decisions depend on, by Kafka's names.

    Units  broker_session_timeout_ms in milliseconds; max_records_per_decision counts records
    Shape  undeletable_topics maps topics that the broker cannot do without to what is said to who would delete them,
           give them other partitions, or have them compacted
    """

    cluster_id: str
    node_id: int = 1
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    auto_create_topics_enable: bool = True
    unclean_leader_election_enable: bool = False
    broker_session_timeout_ms: int = 9_000
    max_records_per_decision: int = MAX_RECORDS_PER_DECISION
    internal_topics: Mapping[str, InternalTopic] = field(default_factory=dict)
    undeletable_topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """One moment's view, handed to a decision."""

    image: Image
    settings: ControllerSettings
    rules: ConfigRules
    new_uuid: Callable[[], UUID]

    def check_topic(self, name: str, configs: Mapping[str, str], previous: Mapping[str, str]) -> None:
        """Raise KafkaError(INVALID_CONFIG) unless this topic may have these settings of its own."""
        self.rules.validate_topic(configs, previous)
        if "compact" in configs.get("cleanup.policy", "") and name in self.settings.undeletable_topics:
            raise KafkaError(ErrorCode.INVALID_CONFIG, self.settings.undeletable_topics[name])

    def require_room(self, records: list[Any], more: int) -> None:
        """Raise TooManyRecords when a client's request would need more records than one decision may have."""
        if len(records) + more > self.settings.max_records_per_decision:
            raise TooManyRecords


def error_text(error: KafkaError) -> str:
    """The message for the client: the error's own, else Kafka's standard words for the code."""
    return error.message or DEFAULT_MESSAGES.get(error.code, error.code.name)
