"""Fetch: read record batches from partitions, within a session if there is one (KIP-227).

aborted_transactions is None for read_uncommitted and a list for read_committed. rack_id is never null, but empty.
"""

from wire.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from wire.schema import field, message, struct
from wire.types import ZERO_UUID, int8, int16, int32, int64, records, string, uuid


@struct
class ReplicaState:
    replica_id: int32 = -1
    replica_epoch: int64 = -1


@struct
class FetchPartition:
    partition: int32
    current_leader_epoch: int32 = field(versions="9+", default=-1, ignorable=True)
    fetch_offset: int64
    last_fetched_epoch: int32 = field(versions="12+", default=-1)
    log_start_offset: int64 = field(versions="5+", default=-1, ignorable=True)
    partition_max_bytes: int32
    replica_directory_id: uuid = field(versions="17+", default=ZERO_UUID, tag=0, ignorable=True)
    high_watermark: int64 = field(versions="18+", default=0x7FFFFFFFFFFFFFFF, tag=1, ignorable=True)


@struct
class FetchTopic:
    topic: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartition]


@struct
class ForgottenTopic:
    topic: string = field(versions="7-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[int32]


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest:
    cluster_id: string | None = field(versions="12+", default=None, tag=0, ignorable=True)
    replica_id: int32 = field(versions="0-14", default=-1)
    replica_state: ReplicaState | None = field(versions="15+", nullable="none", default=None, tag=1)
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32 = 0x7FFFFFFF
    isolation_level: int8 = 0
    session_id: int32 = field(versions="7+", default=0, ignorable=True)
    session_epoch: int32 = field(versions="7+", default=-1, ignorable=True)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field(versions="7+", default=[])
    rack_id: string = field(versions="11+", default="", ignorable=True)


@struct
class EpochEndOffset:
    epoch: int32 = -1
    end_offset: int64 = -1


@struct
class SnapshotId:
    end_offset: int64 = -1
    epoch: int32 = -1


@struct
class AbortedTransaction:
    producer_id: int64
    first_offset: int64


@struct
class PartitionData:
    partition_index: int32
    error_code: int16 = 0
    high_watermark: int64
    last_stable_offset: int64 = -1
    log_start_offset: int64 = field(versions="5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset | None = field(versions="12+", nullable="none", default=None, tag=0)
    current_leader: LeaderIdAndEpoch | None = field(versions="12+", nullable="none", default=None, tag=1)
    snapshot_id: SnapshotId | None = field(versions="12+", nullable="none", default=None, tag=2)
    aborted_transactions: list[AbortedTransaction] | None
    preferred_read_replica: int32 = field(versions="11+", default=-1)
    records: records | None


@struct
class FetchableTopicResponse:
    topic: string = field(versions="0-12", default="", ignorable=True)
    topic_id: uuid = field(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[PartitionData]


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = field(versions="7+", default=0, ignorable=True)
    session_id: int32 = field(versions="7+", default=0)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field(versions="16+", default=[], tag=0)
