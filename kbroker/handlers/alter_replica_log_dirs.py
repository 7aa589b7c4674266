"""AlterReplicaLogDirs: move replicas between the log directories of a broker (KIP-113). A broker has only one."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def _answer(codes: dict[tuple[str, int], ErrorCode]) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (name, index), code in codes.items():
        result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        topics.setdefault(name, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions) for name, partitions in topics.items()
        ]
    )


def _refused(request: AlterReplicaLogDirsRequest, code: ErrorCode) -> AlterReplicaLogDirsResponse:
    return _answer(
        {(topic.name, index): code for wanted in request.dirs for topic in wanted.topics for index in topic.partitions}
    )


@handles(AlterReplicaLogDirsRequest, versions="1-2", on_error=_refused)
async def alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, broker: Broker, context: Context
) -> AlterReplicaLogDirsResponse:
    """Succeed for replicas that are in the named directory; fail for unknown directories, partitions and replicas.

    If the request names a partition more than once, the last entry counts.
    """
    context.demand(Operation.ALTER, ResourceType.CLUSTER)
    codes: dict[tuple[str, int], ErrorCode] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                if broker.turns.due():
                    await broker.turns.next()
                codes[topic.name, index] = _move(broker, topic.name, index, path=wanted.path)
    return _answer(codes)


def _move(broker: Broker, topic: str, index: int, *, path: str) -> ErrorCode:
    if path != broker.replicas.directory.path:
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        broker.find(topic, index)
    except KafkaError as error:
        # Kafka answers with this older code, because old tools know no other.
        return ErrorCode.REPLICA_NOT_AVAILABLE if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER else error.code
    return ErrorCode.NONE
