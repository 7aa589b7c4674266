"""The cluster's state at one offset of ``__cluster_metadata-0``: immutable, cheap to advance, shared by all readers.

An `Image` never changes. `ImageBuilder` replays records on top of one and makes the next. It copies each dictionary
when it first changes it, once for a whole batch of records, and copies a topic's partitions only if one of them
changes. The two images share everything else. So ``before.topics_by_id[x] is after.topics_by_id[x]`` means "unchanged",
which delta.py relies on. With one builder for all records, replaying a log of n records is O(n).

Records and rules are KRaft's. A PartitionChange keeps every field that it does not carry and raises partition_epoch; if
it has a leader, even the same one, it raises leader_epoch. RemoveTopic removes the topic's configs. Records between
BeginTransaction and EndTransaction become visible only at the end. Delegation tokens, which kbroker does not use, are
kept, so that a snapshot of a real Kafka log loses nothing. A record that does not fit the state (for
instance a partition of an unknown topic) raises `UnusableMetadata`.

Source: Kafka's metadata/src/main/java/org/apache/kafka/image and its metadata record schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.parts import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    KRAFT_VERSION_FEATURE,
    METADATA_VERSION_FEATURE,
    MIGRATING_DIRECTORY,
    NO_LEADER,
    TOPIC_RESOURCE,
    BrokerImage,
    ControllerImage,
    PartitionImage,
    TopicImage,
    changed_partition,
)
from wire.messages.broker_registration import Endpoint, FeatureRange
from wire.stored import metadata as stored
from wire.stored.control import KRaftVersionRecord, VotersRecord

__all__ = [
    "BROKER_LOGGER_RESOURCE",
    "BROKER_RESOURCE",
    "CLIENT_METRICS_RESOURCE",
    "GROUP_RESOURCE",
    "NO_LEADER",
    "TOPIC_RESOURCE",
    "BrokerImage",
    "Image",
    "ImageBuilder",
    "PartitionImage",
    "Record",
    "TopicImage",
]

Record = Any
"""One of the classes of wire.stored.metadata, or a control record about the quorum."""


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Sorted pairs of an entity's type and its name; None stands for the default entity of that type."""


class Image(NamedTuple):
    """The cluster at one offset.

    Shape   offset is that of the last applied record, -1 before the first; epoch is the controller epoch of that
            record, 0 before
            configs maps (resource type, resource name) to keys and values; an absent resource has no overrides
            client_quotas maps entities to their quotas
            acls maps ids to access control entries; scram_credentials maps (user, mechanism) to the record
            delegation_tokens are kept for snapshots only
            kraft_version and voters are what the control records say about the quorum; 0 and None in a static quorum
            open_transaction holds records that wait for their EndTransaction, None outside a transaction
    Units   offset counts records
    """

    offset: int = -1
    epoch: int = 0
    topics_by_name: Mapping[str, TopicImage] = MappingProxyType({})
    topics_by_id: Mapping[UUID, TopicImage] = MappingProxyType({})
    brokers: Mapping[int, BrokerImage] = MappingProxyType({})
    controllers: Mapping[int, ControllerImage] = MappingProxyType({})
    configs: Mapping[tuple[int, str], Mapping[str, str]] = MappingProxyType({})
    features: Mapping[str, int] = MappingProxyType({})
    next_producer_id: int = 0
    producer_ids_owner: tuple[int, int] | None = None
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = MappingProxyType({})
    acls: Mapping[UUID, stored.AccessControlEntryRecord] = MappingProxyType({})
    scram_credentials: Mapping[tuple[str, int], Record] = MappingProxyType({})
    delegation_tokens: Mapping[str, Record] = MappingProxyType({})
    zk_migration_state: int | None = None
    kraft_version: int = 0
    voters: VotersRecord | None = None
    open_transaction: tuple[Record, ...] | None = None

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self.offset + 1

    @property
    def levels(self) -> Mapping[str, int]:
        """The finalized level of each feature, with that of the quorum, which is not recorded as a feature."""
        return {**self.features, KRAFT_VERSION_FEATURE: self.kraft_version} if self.kraft_version else self.features

    @property
    def metadata_version(self) -> int:
        """The finalized metadata.version level; 0 if the log has none yet."""
        return self.features.get(METADATA_VERSION_FEATURE, 0)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The overrides of one topic, empty when it has none."""
        return self.configs.get((TOPIC_RESOURCE, name), {})

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """The dynamic settings of one broker, or the cluster-wide dynamic defaults for None."""
        return self.configs.get((BROKER_RESOURCE, "" if broker_id is None else str(broker_id)), {})

    def partition(self, name: str, index: int) -> PartitionImage | None:
        """One partition by its topic's name; None when there is no such topic or partition."""
        topic = self.topics_by_name.get(name)
        return None if topic is None else topic.partitions.get(index)

    def apply(self, records: Iterable[Record], *, offset: int, epoch: int) -> Image:
        """The image after these records; `offset` is that of the last one. May raise UnusableMetadata."""
        builder = ImageBuilder(self)
        for record in records:
            builder.replay(record)
        return builder.build(offset=offset, epoch=epoch)


class ImageBuilder:
    """Replays records on top of an image and builds the next one. Use it once, then drop it."""

    __slots__ = ("_base", "_changed", "_drafts", "_open", "_unsorted")

    def __init__(self, base: Image) -> None:
        self._base = base
        self._changed: dict[str, Any] = {}  # field of Image -> the copy that this builder may change
        self._drafts: dict[UUID, dict[int, PartitionImage]] = {}  # topics whose partitions this builder may change
        self._unsorted: set[UUID] = set()
        self._open: list[Record] | None = None if base.open_transaction is None else list(base.open_transaction)

    def replay(self, record: Record) -> None:
        """Apply one record. Raises UnusableMetadata if it does not fit the state."""
        if self._open is not None and type(record) not in _CONTROL:
            self._replay_inside_transaction(record)
            return
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise UnusableMetadata(f"metadata record {type(record).__name__} is unknown to this version")
        handler(self, record)

    def build(self, *, offset: int, epoch: int) -> Image:
        """The new image; offset is that of the last record (control records included)."""
        for topic_id, draft in self._drafts.items():
            partitions = dict(sorted(draft.items())) if topic_id in self._unsorted else draft
            by_id = self._writable("topics_by_id")
            topic = TopicImage(by_id[topic_id].name, topic_id, partitions)
            by_id[topic_id] = topic
            self._writable("topics_by_name")[topic.name] = topic
        pending = None if self._open is None else tuple(self._open)
        return self._base._replace(offset=offset, epoch=epoch, open_transaction=pending, **self._changed)

    # -- copy on first write

    def _writable(self, name: str) -> dict[Any, Any]:
        found: dict[Any, Any] | None = self._changed.get(name)
        if found is None:
            found = self._changed[name] = dict(getattr(self._base, name))
        return found

    def _current(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._base, name)

    def _partitions(self, topic_id: UUID, record: Record) -> dict[int, PartitionImage]:
        partitions = self._drafts.get(topic_id)
        if partitions is None:
            topic: TopicImage | None = self._current("topics_by_id").get(topic_id)
            if topic is None:
                raise UnusableMetadata(f"{type(record).__name__} names topic id {topic_id}, which does not exist")
            partitions = self._drafts[topic_id] = dict(topic.partitions)
        return partitions

    # -- topics

    def _topic(self, record: stored.TopicRecord) -> None:
        if record.name in self._current("topics_by_name") or record.topic_id in self._current("topics_by_id"):
            raise UnusableMetadata(f"TopicRecord creates topic {record.name!r}, which already exists")
        topic = TopicImage(record.name, record.topic_id, {})
        self._writable("topics_by_name")[topic.name] = topic
        self._writable("topics_by_id")[topic.id] = topic
        self._drafts[topic.id] = {}

    def _remove_topic(self, record: stored.RemoveTopicRecord) -> None:
        topic = self._writable("topics_by_id").pop(record.topic_id, None)
        if topic is None:
            raise UnusableMetadata(f"RemoveTopicRecord names topic id {record.topic_id}, which does not exist")
        del self._writable("topics_by_name")[topic.name]
        self._drafts.pop(topic.id, None)
        if (TOPIC_RESOURCE, topic.name) in self._current("configs"):
            del self._writable("configs")[TOPIC_RESOURCE, topic.name]

    def _partition(self, record: stored.PartitionRecord) -> None:
        partitions = self._partitions(record.topic_id, record)
        if record.partition_id != len(partitions):
            self._unsorted.add(record.topic_id)
        replicas = tuple(record.replicas)
        isr = tuple(record.isr)
        directories = tuple(record.directories) or (MIGRATING_DIRECTORY,) * len(replicas)
        if len(directories) != len(replicas):
            raise UnusableMetadata(
                f"PartitionRecord of {record.topic_id} has {len(directories)} directories for {len(replicas)} replicas"
            )
        partitions[record.partition_id] = PartitionImage(
            replicas,
            replicas if isr == replicas else isr,  # share one tuple: most partitions have a full ISR
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            directories,
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            record.leader_recovery_state,
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
        )

    def _partition_change(self, record: stored.PartitionChangeRecord) -> None:
        partitions = self._partitions(record.topic_id, record)
        before = partitions.get(record.partition_id)
        if before is None:
            raise UnusableMetadata(
                f"PartitionChangeRecord of {record.topic_id}-{record.partition_id}, which does not exist"
            )
        partitions[record.partition_id] = changed_partition(before, record)

    def _clear_elr(self, record: stored.ClearElrRecord) -> None:
        by_name = self._current("topics_by_name")
        if record.topic_name and record.topic_name not in by_name:
            raise UnusableMetadata(f"ClearElrRecord names topic {record.topic_name!r}, which does not exist")
        for topic in [by_name[record.topic_name]] if record.topic_name else list(by_name.values()):
            partitions: Mapping[int, PartitionImage] = self._drafts.get(topic.id, topic.partitions)
            if any(partition.eligible_leader_replicas or partition.last_known_elr for partition in partitions.values()):
                draft = self._partitions(topic.id, record)
                for index, partition in draft.items():
                    draft[index] = partition._replace(eligible_leader_replicas=(), last_known_elr=())

    # -- brokers and controllers

    def _register_broker(self, record: stored.RegisterBrokerRecord) -> None:
        self._writable("brokers")[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_feature_ranges(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(record.log_dirs),
            cordoned_log_dirs=None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
            is_migrating_zk_broker=record.is_migrating_zk_broker,
        )

    def _unregister_broker(self, record: stored.UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch, record)
        del self._writable("brokers")[record.broker_id]

    def _registration_change(self, record: stored.BrokerRegistrationChangeRecord) -> None:
        before = self._registered(record.broker_id, record.broker_epoch, record)
        cordoned = before.cordoned_log_dirs if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs)
        self._writable("brokers")[record.broker_id] = before._replace(
            fenced=before.fenced if record.fenced == 0 else record.fenced == 1,
            in_controlled_shutdown=before.in_controlled_shutdown or record.in_controlled_shutdown == 1,
            log_dirs=tuple(record.log_dirs) or before.log_dirs,
            cordoned_log_dirs=cordoned,
        )

    def _fence_broker(self, record: stored.FenceBrokerRecord) -> None:
        self._writable("brokers")[record.id] = self._registered(record.id, record.epoch, record)._replace(fenced=True)

    def _unfence_broker(self, record: stored.UnfenceBrokerRecord) -> None:
        self._writable("brokers")[record.id] = self._registered(record.id, record.epoch, record)._replace(fenced=False)

    def _registered(self, broker_id: int, epoch: int, record: Record) -> BrokerImage:
        broker: BrokerImage | None = self._current("brokers").get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise UnusableMetadata(
                f"{type(record).__name__} of broker {broker_id} at epoch {epoch}, which is not registered"
            )
        return broker

    def _register_controller(self, record: stored.RegisterControllerRecord) -> None:
        self._writable("controllers")[record.controller_id] = ControllerImage(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_feature_ranges(record.features),
            zk_migration_ready=record.zk_migration_ready,
        )

    # -- configs, features, producer ids

    def _config(self, record: stored.ConfigRecord) -> None:
        self._set("configs", (record.resource_type, record.resource_name), record.name, record.value)

    def _set(self, name: str, owner: Any, key: str, value: object) -> None:
        """Set a key of one resource or entity, or delete it if the value is None."""
        owners = self._writable(name)
        keys = dict(owners.get(owner, {}))
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value
        if keys:
            owners[owner] = keys
        else:
            owners.pop(owner, None)

    def _feature_level(self, record: stored.FeatureLevelRecord) -> None:
        if record.feature_level == 0:
            self._writable("features").pop(record.name, None)
        else:
            self._writable("features")[record.name] = record.feature_level

    def _producer_ids(self, record: stored.ProducerIdsRecord) -> None:
        if record.next_producer_id < self._current("next_producer_id"):
            raise UnusableMetadata(f"ProducerIdsRecord goes back to producer id {record.next_producer_id}")
        self._changed["next_producer_id"] = record.next_producer_id
        self._changed["producer_ids_owner"] = (record.broker_id, record.broker_epoch)

    def _client_quota(self, record: stored.ClientQuotaRecord) -> None:
        entity: QuotaEntity = tuple(
            sorted(((part.entity_type, part.entity_name) for part in record.entity), key=lambda pair: pair[0])
        )
        self._set("client_quotas", entity, record.key, None if record.remove else record.value)

    # -- records that are only kept

    def _access_control_entry(self, record: stored.AccessControlEntryRecord) -> None:
        self._writable("acls")[record.id] = record

    def _remove_access_control_entry(self, record: stored.RemoveAccessControlEntryRecord) -> None:
        if self._writable("acls").pop(record.id, None) is None:
            raise UnusableMetadata(f"RemoveAccessControlEntryRecord names {record.id}, which does not exist")

    def _scram_credential(self, record: stored.UserScramCredentialRecord) -> None:
        self._writable("scram_credentials")[record.name, record.mechanism] = record

    def _remove_scram_credential(self, record: stored.RemoveUserScramCredentialRecord) -> None:
        self._writable("scram_credentials").pop((record.name, record.mechanism), None)

    def _delegation_token(self, record: stored.DelegationTokenRecord) -> None:
        self._writable("delegation_tokens")[record.token_id] = record

    def _remove_delegation_token(self, record: stored.RemoveDelegationTokenRecord) -> None:
        self._writable("delegation_tokens").pop(record.token_id, None)

    def _zk_migration_state(self, record: stored.ZkMigrationStateRecord) -> None:
        self._changed["zk_migration_state"] = record.zk_migration_state

    def _kraft_version(self, record: KRaftVersionRecord) -> None:
        self._changed["kraft_version"] = record.kraft_version

    def _voters(self, record: VotersRecord) -> None:
        self._changed["voters"] = record

    def _nothing(self, _record: stored.NoOpRecord) -> None:
        """A NoOp only advances the offset."""

    # -- metadata transactions (KIP-866)

    def _begin_transaction(self, _record: stored.BeginTransactionRecord) -> None:
        self._open = []

    def _outside_transaction(self, record: Record) -> None:
        raise UnusableMetadata(f"{type(record).__name__} without a BeginTransactionRecord")

    def _replay_inside_transaction(self, record: Record) -> None:
        assert self._open is not None
        if isinstance(record, stored.BeginTransactionRecord):
            raise UnusableMetadata("BeginTransactionRecord inside a transaction")
        if isinstance(record, stored.AbortTransactionRecord):
            self._open = None
        elif isinstance(record, stored.EndTransactionRecord):
            waiting, self._open = self._open, None
            for waited in waiting:
                self.replay(waited)
        else:
            self._open.append(record)


def _endpoints(end_points: Iterable[Endpoint]) -> dict[str, Endpoint]:
    return {endpoint.name: endpoint for endpoint in end_points}


def _feature_ranges(features: Iterable[FeatureRange]) -> dict[str, tuple[int, int]]:
    return {feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in features}


_HANDLERS: Mapping[type[Any], Callable[[ImageBuilder, Any], None]] = {
    stored.RegisterBrokerRecord: ImageBuilder._register_broker,
    stored.UnregisterBrokerRecord: ImageBuilder._unregister_broker,
    stored.TopicRecord: ImageBuilder._topic,
    stored.PartitionRecord: ImageBuilder._partition,
    stored.ConfigRecord: ImageBuilder._config,
    stored.PartitionChangeRecord: ImageBuilder._partition_change,
    stored.FenceBrokerRecord: ImageBuilder._fence_broker,
    stored.UnfenceBrokerRecord: ImageBuilder._unfence_broker,
    stored.RemoveTopicRecord: ImageBuilder._remove_topic,
    stored.DelegationTokenRecord: ImageBuilder._delegation_token,
    stored.UserScramCredentialRecord: ImageBuilder._scram_credential,
    stored.FeatureLevelRecord: ImageBuilder._feature_level,
    stored.ClientQuotaRecord: ImageBuilder._client_quota,
    stored.ProducerIdsRecord: ImageBuilder._producer_ids,
    stored.BrokerRegistrationChangeRecord: ImageBuilder._registration_change,
    stored.AccessControlEntryRecord: ImageBuilder._access_control_entry,
    stored.RemoveAccessControlEntryRecord: ImageBuilder._remove_access_control_entry,
    stored.NoOpRecord: ImageBuilder._nothing,
    stored.ZkMigrationStateRecord: ImageBuilder._zk_migration_state,
    stored.RemoveUserScramCredentialRecord: ImageBuilder._remove_scram_credential,
    stored.BeginTransactionRecord: ImageBuilder._begin_transaction,
    stored.EndTransactionRecord: ImageBuilder._outside_transaction,
    stored.AbortTransactionRecord: ImageBuilder._outside_transaction,
    stored.RemoveDelegationTokenRecord: ImageBuilder._remove_delegation_token,
    stored.RegisterControllerRecord: ImageBuilder._register_controller,
    stored.ClearElrRecord: ImageBuilder._clear_elr,
    KRaftVersionRecord: ImageBuilder._kraft_version,
    VotersRecord: ImageBuilder._voters,
}
_CONTROL = frozenset({KRaftVersionRecord, VotersRecord})
"""Control records, which no metadata transaction holds back."""
