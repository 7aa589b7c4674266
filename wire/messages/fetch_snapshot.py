"""FetchSnapshot: read a part of a snapshot file of the metadata log (KIP-630).

unaligned_records are bytes of the file from the position on; they may begin and end within a batch.
"""

from wire.schema import field, message, struct
from wire.types import ZERO_UUID, int16, int32, int64, records, string, uint16, uuid


@struct
class SnapshotId:
    end_offset: int64
    epoch: int32


@struct
class PartitionSnapshot:
    partition: int32
    current_leader_epoch: int32
    snapshot_id: SnapshotId
    position: int64
    replica_directory_id: uuid = field(versions="1+", default=ZERO_UUID, tag=0, ignorable=True)


@struct
class TopicSnapshot:
    name: string
    partitions: list[PartitionSnapshot]


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest:
    cluster_id: string | None = field(default=None, tag=0)
    replica_id: int32 = -1
    max_bytes: int32 = 0x7FFFFFFF
    topics: list[TopicSnapshot]


@struct
class LeaderIdAndEpoch:
    leader_id: int32 = 0
    leader_epoch: int32 = 0


@struct
class PartitionSnapshotResponse:
    index: int32
    error_code: int16 = 0
    snapshot_id: SnapshotId
    current_leader: LeaderIdAndEpoch | None = field(nullable="none", default=None, tag=0)
    size: int64 = 0
    position: int64 = 0
    unaligned_records: records


@struct
class ControllerEndpoint:
    node_id: int32
    host: string
    port: uint16


@struct
class TopicSnapshotResponse:
    name: string
    partitions: list[PartitionSnapshotResponse]


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse:
    throttle_time_ms: int32 = field(default=0, ignorable=True)
    error_code: int16 = 0
    topics: list[TopicSnapshotResponse]
    node_endpoints: list[ControllerEndpoint] = field(versions="1+", default=[], tag=0)
