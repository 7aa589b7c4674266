"""The records of `__consumer_offsets`, classic and KIP-848.

A key starts with its record type (int16), a value with its version (int16); neither is part of these bodies. A null
value is a tombstone.
"""

from wire.schema import EMPTY_STRUCT, field, stored, struct
from wire.types import ZERO_UUID, bytes_, int8, int32, int64, string, uuid


@stored(record_type=1, versions="0", flexible="none")
class OffsetCommitKey:
    group: string
    topic: string
    partition: int32


@stored(record_type=1, versions="0-4", flexible="4+")
class OffsetCommitValue:
    offset: int64
    leader_epoch: int32 = field(versions="3+", default=-1, ignorable=True)
    metadata: string
    commit_timestamp: int64
    expire_timestamp: int64 = field(versions="1", default=-1, ignorable=True)
    topic_id: uuid = field(versions="4+", default=ZERO_UUID, tag=0, ignorable=True)


@stored(record_type=2, versions="0", flexible="none")
class GroupMetadataKey:
    group: string


@struct
class MemberMetadata:
    member_id: string
    group_instance_id: string | None = field(versions="3+", default=None, ignorable=True)
    client_id: string
    client_host: string
    rebalance_timeout: int32 = field(versions="1+", default=-1, ignorable=True)
    session_timeout: int32
    subscription: bytes_
    assignment: bytes_


@stored(record_type=2, versions="0-4", flexible="4+")
class GroupMetadataValue:
    protocol_type: string
    generation: int32
    protocol: string | None
    leader: string | None
    current_state_timestamp: int64 = field(versions="2+", default=-1, ignorable=True)
    members: list[MemberMetadata]


@stored(record_type=0, versions="0", flexible="none")
class LegacyOffsetCommitKey:
    group: string
    topic: string
    partition: int32


@stored(record_type=0, versions="0", flexible="none")
class LegacyOffsetCommitValue:
    offset: int64
    metadata: string
    commit_timestamp: int64


@stored(record_type=3, versions="0", flexible="none")
class ConsumerGroupMetadataKey:
    group_id: string


@stored(record_type=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    epoch: int32
    metadata_hash: int64 = field(default=0, tag=0)


@stored(record_type=4, versions="0", flexible="none")
class ConsumerGroupPartitionMetadataKey:
    group_id: string


@struct
class PartitionMetadata:
    partition: int32
    racks: list[string]


@struct
class TopicMetadata:
    topic_id: uuid
    topic_name: string
    num_partitions: int32
    partition_metadata: list[PartitionMetadata]


@stored(record_type=4, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    topics: list[TopicMetadata]


@stored(record_type=5, versions="0", flexible="none")
class ConsumerGroupMemberMetadataKey:
    group_id: string
    member_id: string


@struct
class ClassicProtocol:
    name: string
    metadata: bytes_


@struct
class ClassicMemberMetadata:
    session_timeout_ms: int32 = 0
    supported_protocols: list[ClassicProtocol] = field(default=[])


@stored(record_type=5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    instance_id: string | None
    rack_id: string | None
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None
    rebalance_timeout_ms: int32 = -1
    server_assignor: string | None
    # None is written; an absent field is read as an empty struct, a member of the classic protocol.
    classic_member_metadata: ClassicMemberMetadata | None = field(default=EMPTY_STRUCT, tag=0)


@stored(record_type=6, versions="0", flexible="none")
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: string


@stored(record_type=6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int32
    assignment_timestamp: int64 = field(default=0, tag=0)


@stored(record_type=7, versions="0", flexible="none")
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: string
    member_id: string


@struct
class TopicPartition:
    topic_id: uuid
    partitions: list[int32]


@stored(record_type=7, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: list[TopicPartition]


@stored(record_type=8, versions="0", flexible="none")
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: string
    member_id: string


@struct
class TopicPartitions:
    topic_id: uuid
    partitions: list[int32]
    assignment_epochs: list[int32] | None = field(default=[], tag=0)


@stored(record_type=8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int32
    previous_member_epoch: int32
    state: int8
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


@stored(record_type=16, versions="0", flexible="none")
class ConsumerGroupRegularExpressionKey:
    group_id: string
    regular_expression: string


@stored(record_type=16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    topics: list[string]
    version: int64
    timestamp: int64
