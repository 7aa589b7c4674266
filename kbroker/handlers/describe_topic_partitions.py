"""DescribeTopicPartitions: topics with their partitions, in pages (KIP-966)."""

from __future__ import annotations

from functools import partial

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.answers import answer_describe_topic_partitions
from wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse


@handles(DescribeTopicPartitionsRequest, versions="0")
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
