"""The records of `__remote_log_metadata`, each in the frame of wire.stored.frame (KIP-405).

end_offset is inclusive. The snapshot record belongs to a local file, not to the topic.
"""

from wire.schema import field, stored, struct
from wire.types import boolean, bytes_, int8, int32, int64, string, uuid


@struct
class TopicIdPartitionEntry:
    name: string
    id: uuid
    partition: int32


@struct
class RemoteLogSegmentIdEntry:
    topic_id_partition: TopicIdPartitionEntry
    id: uuid


@struct
class SegmentLeaderEpochEntry:
    leader_epoch: int32
    offset: int64


@stored(record_type=0, versions="0", flexible="0+")
class RemoteLogSegmentMetadataRecord:
    remote_log_segment_id: RemoteLogSegmentIdEntry
    start_offset: int64
    end_offset: int64
    broker_id: int32
    max_timestamp_ms: int64
    event_timestamp_ms: int64
    segment_leader_epochs: list[SegmentLeaderEpochEntry]
    segment_size_in_bytes: int32
    custom_metadata: bytes_ | None = None
    remote_log_segment_state: int8
    txn_index_empty: boolean = field(default=False, tag=0)


@stored(record_type=1, versions="0", flexible="0+")
class RemoteLogSegmentMetadataUpdateRecord:
    remote_log_segment_id: RemoteLogSegmentIdEntry
    broker_id: int32
    event_timestamp_ms: int64
    custom_metadata: bytes_ | None = None
    remote_log_segment_state: int8


@stored(record_type=2, versions="0", flexible="0+")
class RemotePartitionDeleteMetadataRecord:
    topic_id_partition: TopicIdPartitionEntry
    broker_id: int32
    event_timestamp_ms: int64
    remote_partition_delete_state: int8


@stored(record_type=3, versions="0", flexible="0+")
class RemoteLogSegmentMetadataSnapshotRecord:
    segment_id: uuid
    start_offset: int64
    end_offset: int64
    broker_id: int32
    max_timestamp_ms: int64
    event_timestamp_ms: int64
    segment_leader_epochs: list[SegmentLeaderEpochEntry]
    segment_size_in_bytes: int32
    custom_metadata: bytes_ | None = None
    remote_log_segment_state: int8
    txn_index_empty: boolean = field(default=False, tag=0)
