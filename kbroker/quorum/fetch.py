"""Fetch of the metadata log by the nodes that follow it.

A response has whole batches up to the high watermark, which is the end of what is synced and applied here. A fetch from
the end waits until more is committed. If the log cannot continue what the sender has, the response has the snapshot to
start from or the epoch at which the logs diverge, and no records. There are no sessions.

Source: KIP-595, KIP-630, KIP-853; KafkaRaftClient of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.controller.metadata_reading import FetchedMetadata, read_metadata
from kbroker.controller.observers import ObserverKey
from kbroker.handlers import Context, handles
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.parts import CLUSTER_METADATA_TOPIC_ID
from kbroker.quorum import METADATA_CHANGED, ControllerService, epoch_fault
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.storage.files import FileRange
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    SnapshotId,
)
from wire.messages.produce import LeaderIdAndEpoch, NodeEndpoint

MAX_BYTES: Final = 8 << 20
"""The most that one response holds, as in Kafka; a larger batch comes alone."""

_FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
_FIRST_VERSION_WITH_NODE_ENDPOINTS: Final = 16


@handles(FetchRequest, versions="4-18", on_error=lambda request, code: FetchResponse(error_code=code, responses=[]))
async def fetch(request: FetchRequest, service: ControllerService, context: Context) -> FetchResponse:
    """Return records of the metadata log; wait for them for at most max_wait_ms.

    Errors  CLUSTER_AUTHORIZATION_FAILED, INCONSISTENT_CLUSTER_ID and INVALID_REQUEST for another partition, at the top;
            for the partition INVALID_REQUEST, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
    """
    context.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if request.cluster_id not in (None, service.cluster_id):
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    asked = _only_partition(request, by_id=context.api_version >= _FIRST_VERSION_WITH_TOPIC_IDS)
    code = _fault(request, asked, service.log.epoch)
    if code is not ErrorCode.NONE:
        context.has_errors = True
        return _answer(service, context, _data(service, error_code=code))
    state = request.replica_state
    key = ObserverKey(request.replica_id if state is None else state.replica_id, asked.replica_directory_id)
    max_bytes = min(request.max_bytes, MAX_BYTES)
    found = await _read(service, asked, key, max_bytes)
    if found.is_empty:

        def has_more() -> bool:
            return service.image.end_offset > min(asked.fetch_offset, asked.high_watermark)

        await context.wait(service.purgatory, METADATA_CHANGED, until=has_more, max_wait_ms=request.max_wait_ms)
        found = await _read(service, asked, key, max_bytes)
    data = _data(service, high_watermark=found.high_watermark, records=found.records or b"")
    if found.snapshot is not None:
        data.snapshot_id = SnapshotId(end_offset=found.snapshot.end_offset, epoch=found.snapshot.epoch)
    if found.diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=found.diverging.epoch, end_offset=found.diverging.end_offset)
    return _answer(service, context, data)


def _only_partition(request: FetchRequest, *, by_id: bool) -> FetchPartition:
    if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
        topic, partition = request.topics[0], request.topics[0].partitions[0]
        is_metadata = topic.topic_id == CLUSTER_METADATA_TOPIC_ID if by_id else topic.topic == CLUSTER_METADATA_TOPIC
        if is_metadata and partition.partition == 0:
            return partition
    raise KafkaError(ErrorCode.INVALID_REQUEST, "only partition 0 of the metadata log can be fetched from a controller")


def _fault(request: FetchRequest, asked: FetchPartition, epoch: int) -> ErrorCode:
    if (
        request.max_wait_ms < 0
        or asked.fetch_offset < 0
        or not 0 <= asked.last_fetched_epoch <= asked.current_leader_epoch
    ):
        return ErrorCode.INVALID_REQUEST
    return epoch_fault(asked.current_leader_epoch, epoch)


async def _read(service: ControllerService, asked: FetchPartition, key: ObserverKey, max_bytes: int) -> FetchedMetadata:
    end_offset = service.image.end_offset
    if asked.fetch_offset == end_offset and asked.last_fetched_epoch == service.log.epoch:
        found = FetchedMetadata(end_offset)  # the usual case needs no thread
    else:
        read = partial(read_metadata, service.log, max_bytes=max_bytes, end_offset=end_offset)
        found = await service.env.run_blocking(read, asked.fetch_offset, asked.last_fetched_epoch)
    if found.snapshot is None and found.diverging is None and key.id >= 0:
        service.controller.observers.on_fetch(
            key, asked.fetch_offset, log_end_offset=end_offset, timestamp_ms=service.env.timestamp_ms()
        )
    return found


def _data(
    service: ControllerService,
    *,
    error_code: ErrorCode = ErrorCode.NONE,
    high_watermark: int = -1,
    records: FileRange | bytes = b"",
) -> PartitionData:
    return PartitionData(
        partition_index=0,
        error_code=error_code,
        high_watermark=high_watermark,
        log_start_offset=service.log.log_start_offset,
        current_leader=LeaderIdAndEpoch(leader_id=service.node_id, leader_epoch=service.log.epoch),
        aborted_transactions=[],  # as Kafka's controllers
        records=records,
    )


def _answer(service: ControllerService, context: Context, data: PartitionData) -> FetchResponse:
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[data])
        ]
    )
    endpoint = service.listeners.get(context.listener)
    if endpoint is not None and context.api_version >= _FIRST_VERSION_WITH_NODE_ENDPOINTS:
        response.node_endpoints = [NodeEndpoint(node_id=service.node_id, host=endpoint.host, port=endpoint.port)]
    return response
