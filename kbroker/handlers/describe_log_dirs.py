"""DescribeLogDirs: the data directory, the space on its disk, and the sizes of its partitions."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(
    DescribeLogDirsRequest,
    versions="1-5",
    on_error=lambda request, code: DescribeLogDirsResponse(error_code=code, results=[]),
)
async def describe_log_dirs(
    request: DescribeLogDirsRequest, broker: Broker, context: Context
) -> DescribeLogDirsResponse:
    """Describe the only directory; omit partitions that are not in it."""
    context.demand(Operation.DESCRIBE, ResourceType.CLUSTER)
    asked = None
    if request.topics is not None:
        asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    path = broker.replicas.directory.path
    try:
        total_bytes, usable_bytes = await broker.env.run_blocking(broker.replicas.directory.space)
    except KafkaError as error:
        return DescribeLogDirsResponse(results=[DescribeLogDirsResult(error_code=error.code, log_dir=path, topics=[])])
    topics: dict[str, DescribeLogDirsTopic] = {}
    for (name, index), partition in list(broker.replicas.partitions.items()):
        if broker.turns.due():
            await broker.turns.next()
        if asked is None or (name, index) in asked:
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name, partitions=[]))
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=partition.log.size,
                    # A lag exists only for a replica that moves between directories.
                    offset_lag=0,
                    is_future_key=False,
                )
            )
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                error_code=ErrorCode.NONE,
                log_dir=path,
                topics=list(topics.values()),
                total_bytes=total_bytes,
                usable_bytes=usable_bytes,
            )
        ]
    )
