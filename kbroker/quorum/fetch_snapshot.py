"""FetchSnapshot: a node that cannot continue from the log copies a snapshot file, one part for each request.

Apache Kafka 4.3.1 has the same errors but cannot encode most of them, and answers UNKNOWN_SERVER_ERROR instead.

Source: KIP-630; KafkaRaftClient of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.metadata_reading import read_snapshot_part
from kbroker.controller.snapshots import SnapshotId
from kbroker.handlers import Context, handles
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.quorum import ControllerService, epoch_fault
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch_snapshot import (
    ControllerEndpoint,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderIdAndEpoch,
    PartitionSnapshotResponse,
    TopicSnapshotResponse,
)
from wire.messages.fetch_snapshot import SnapshotId as WireSnapshotId

MAX_BYTES: Final = 8 << 20
"""The most that one response holds."""


@handles(FetchSnapshotRequest, versions="0-1")
async def fetch_snapshot(
    request: FetchSnapshotRequest, service: ControllerService, context: Context
) -> FetchSnapshotResponse:
    """Return the bytes of a snapshot from a position on.

    Errors  CLUSTER_AUTHORIZATION_FAILED, INCONSISTENT_CLUSTER_ID and INVALID_REQUEST at the top; for the partition
            UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, SNAPSHOT_NOT_FOUND,
            POSITION_OUT_OF_RANGE
    """
    context.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if request.cluster_id not in (None, service.cluster_id):
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a FetchSnapshot has one partition")
    topic, asked = request.topics[0], request.topics[0].partitions[0]
    data = PartitionSnapshotResponse(
        index=asked.partition,
        snapshot_id=WireSnapshotId(end_offset=0, epoch=0),
        position=asked.position,
        unaligned_records=b"",
        current_leader=LeaderIdAndEpoch(leader_id=service.node_id, leader_epoch=service.log.epoch),
    )
    try:
        if (topic.name, asked.partition) != (CLUSTER_METADATA_TOPIC, 0):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        code = epoch_fault(asked.current_leader_epoch, service.log.epoch)
        if code is not ErrorCode.NONE:
            raise KafkaError(code)
        snapshot = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        data.size, data.unaligned_records = await service.env.run_blocking(
            read_snapshot_part, service.log, snapshot, asked.position, min(request.max_bytes, MAX_BYTES)
        )
    except KafkaError as error:
        data.error_code, data.position = error.code, 0
    else:
        data.snapshot_id = asked.snapshot_id
    response = FetchSnapshotResponse(topics=[TopicSnapshotResponse(name=topic.name, partitions=[data])])
    endpoint = service.listeners.get(context.listener)
    if endpoint is not None and context.api_version >= 1:
        response.node_endpoints = [ControllerEndpoint(node_id=service.node_id, host=endpoint.host, port=endpoint.port)]
    return response
