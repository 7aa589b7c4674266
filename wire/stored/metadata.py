"""The records of the metadata log, `__cluster_metadata-0`, each in the frame of wire.stored.frame (KRaft, KIP-631).

In a PartitionChangeRecord a field at its default means no change, and leader -2 means no change of the leader.
"""

from wire.messages.broker_registration import Endpoint, FeatureRange
from wire.schema import field, stored, struct
from wire.types import boolean, bytes_, float64, int8, int16, int32, int64, string, uuid


@stored(record_type=0, versions="0-4", flexible="0+")
class RegisterBrokerRecord:
    broker_id: int32
    is_migrating_zk_broker: boolean = field(versions="2+", default=False)
    incarnation_id: uuid
    broker_epoch: int64
    end_points: list[Endpoint]
    features: list[FeatureRange]
    rack: string | None
    fenced: boolean = True
    in_controlled_shutdown: boolean = field(versions="1+", default=False)
    log_dirs: list[uuid] = field(versions="3+", default=[], tag=0)
    cordoned_log_dirs: list[uuid] | None = field(versions="4+", default=None, tag=1)


@stored(record_type=1, versions="0", flexible="0+")
class UnregisterBrokerRecord:
    broker_id: int32
    broker_epoch: int64


@stored(record_type=2, versions="0", flexible="0+")
class TopicRecord:
    name: string
    topic_id: uuid


@stored(record_type=3, versions="0-2", flexible="0+")
class PartitionRecord:
    partition_id: int32 = -1
    topic_id: uuid
    replicas: list[int32]
    isr: list[int32]
    removing_replicas: list[int32]
    adding_replicas: list[int32]
    leader: int32 = -1
    leader_recovery_state: int8 = field(default=0, tag=0)
    leader_epoch: int32 = -1
    partition_epoch: int32 = -1
    directories: list[uuid] = field(versions="1+", default=[])
    eligible_leader_replicas: list[int32] | None = field(versions="2+", default=None, tag=1)
    last_known_elr: list[int32] | None = field(versions="2+", default=None, tag=2)


@stored(record_type=4, versions="0", flexible="0+")
class ConfigRecord:
    resource_type: int8
    resource_name: string
    name: string
    value: string | None


@stored(record_type=5, versions="0-2", flexible="0+")
class PartitionChangeRecord:
    partition_id: int32 = -1
    topic_id: uuid
    isr: list[int32] | None = field(default=None, tag=0)
    leader: int32 = field(default=-2, tag=1)
    replicas: list[int32] | None = field(default=None, tag=2)
    removing_replicas: list[int32] | None = field(default=None, tag=3)
    adding_replicas: list[int32] | None = field(default=None, tag=4)
    leader_recovery_state: int8 = field(default=-1, tag=5)
    directories: list[uuid] | None = field(versions="1+", default=None, tag=8)
    eligible_leader_replicas: list[int32] | None = field(versions="2+", default=None, tag=6)
    last_known_elr: list[int32] | None = field(versions="2+", default=None, tag=7)


@stored(record_type=7, versions="0", flexible="0+")
class FenceBrokerRecord:
    id: int32
    epoch: int64


@stored(record_type=8, versions="0", flexible="0+")
class UnfenceBrokerRecord:
    id: int32
    epoch: int64


@stored(record_type=9, versions="0", flexible="0+")
class RemoveTopicRecord:
    topic_id: uuid


@stored(record_type=10, versions="0", flexible="0+")
class DelegationTokenRecord:
    owner: string
    requester: string
    renewers: list[string]
    issue_timestamp: int64
    max_timestamp: int64
    expiration_timestamp: int64
    token_id: string


@stored(record_type=11, versions="0", flexible="0+")
class UserScramCredentialRecord:
    name: string
    mechanism: int8
    salt: bytes_
    stored_key: bytes_
    server_key: bytes_
    iterations: int32


@stored(record_type=12, versions="0", flexible="0+")
class FeatureLevelRecord:
    name: string
    feature_level: int16


@struct
class EntityData:
    entity_type: string
    entity_name: string | None


@stored(record_type=14, versions="0", flexible="0+")
class ClientQuotaRecord:
    entity: list[EntityData]
    key: string
    value: float64
    remove: boolean


@stored(record_type=15, versions="0", flexible="0+")
class ProducerIdsRecord:
    broker_id: int32
    broker_epoch: int64 = -1
    next_producer_id: int64


@stored(record_type=17, versions="0-3", flexible="0+")
class BrokerRegistrationChangeRecord:
    broker_id: int32
    broker_epoch: int64
    fenced: int8 = field(default=0, tag=0)
    in_controlled_shutdown: int8 = field(versions="1+", default=0, tag=1)
    log_dirs: list[uuid] = field(versions="2+", default=[], tag=2)
    cordoned_log_dirs: list[uuid] | None = field(versions="3+", default=None, tag=3)


@stored(record_type=18, versions="0", flexible="0+")
class AccessControlEntryRecord:
    id: uuid
    resource_type: int8
    resource_name: string
    pattern_type: int8
    principal: string
    host: string
    operation: int8
    permission_type: int8


@stored(record_type=19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord:
    id: uuid


@stored(record_type=20, versions="0", flexible="0+")
class NoOpRecord:
    pass


@stored(record_type=21, versions="0", flexible="0+")
class ZkMigrationStateRecord:
    zk_migration_state: int8


@stored(record_type=22, versions="0", flexible="0+")
class RemoveUserScramCredentialRecord:
    name: string
    mechanism: int8


@stored(record_type=23, versions="0", flexible="0+")
class BeginTransactionRecord:
    name: string | None = field(default=None, tag=0)


@stored(record_type=24, versions="0", flexible="0+")
class EndTransactionRecord:
    pass


@stored(record_type=25, versions="0", flexible="0+")
class AbortTransactionRecord:
    reason: string | None = field(default=None, tag=0)


@stored(record_type=26, versions="0", flexible="0+")
class RemoveDelegationTokenRecord:
    token_id: string


@stored(record_type=27, versions="0", flexible="0+")
class RegisterControllerRecord:
    controller_id: int32
    incarnation_id: uuid
    zk_migration_ready: boolean
    end_points: list[Endpoint]
    features: list[FeatureRange]


@stored(record_type=28, versions="0", flexible="0+")
class ClearElrRecord:
    topic_name: string
