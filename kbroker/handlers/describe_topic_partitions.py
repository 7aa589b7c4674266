"""DescribeTopicPartitions: topics with their partitions, in pages (KIP-966)."""

from __future__ import annotations

from functools import partial

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.answers import answer_describe_topic_partitions
from wire.errors import ErrorCode
from wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from wire.types import ZERO_UUID


def _refused(request: DescribeTopicPartitionsRequest, code: ErrorCode) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name, topic_id=ZERO_UUID, partitions=[])
            for topic in request.topics
        ]
    )


@handles(DescribeTopicPartitionsRequest, versions="0", on_error=_refused)
async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, broker: Broker, context: Context
) -> DescribeTopicPartitionsResponse:
    """Answer one page from the metadata image."""
    answer = partial(
        answer_describe_topic_partitions,
        broker.image,
        request,
        listener=context.listener,
        partition_limit=broker.settings.fetch.max_request_partition_size_limit,
    )
    return await broker.env.run_blocking(answer) if context.is_large else answer()
