"""Metadata, DescribeCluster and DescribeTopicPartitions, which `kbroker.metadata.answers` answers from an image.

A Metadata request can create unknown topics. DescribeTopicPartitions answers in pages (KIP-966).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.answers import answer_describe_cluster, answer_describe_topic_partitions, answer_metadata
from wire.errors import ErrorCode
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from wire.types import ZERO_UUID


def _refused(request: MetadataRequest, code: ErrorCode) -> MetadataResponse:
    return MetadataResponse(
        error_code=code,
        brokers=[],
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=ZERO_UUID, partitions=[])
            for topic in request.topics or ()
        ],
    )


@handles(MetadataRequest, versions="0-13", on_error=_refused)
async def metadata(request: MetadataRequest, broker: Broker, context: Context) -> MetadataResponse:
    """Answer from the metadata image. A topic that this request creates is unknown in this reply: clients retry."""
    version, image = context.api_version, broker.image
    described = partial(
        broker.topic_cache.encoded,
        image,
        version=version,
        listener=context.listener,
        with_operations=version >= 8 and request.include_topic_authorized_operations,
    )
    plan = partial(
        answer_metadata,
        image,
        request,
        version=version,
        viewpoint=broker.viewpoint(context.listener),
        may_create=broker.may_create,
        described=described,
    )
    answer = await broker.env.run_blocking(plan) if context.is_large else plan()
    topics: list[Any] = answer.response.topics  # some entries are bytes: topics that are already encoded
    for topic in answer.topics:
        topics.append(topic)
        if broker.turns.due():
            await broker.turns.next()
    if answer.to_create:
        await broker.create_automatically(answer.to_create, context.sender)
    return answer.response


@handles(DescribeClusterRequest, versions="0-2")
async def describe_cluster(
    request: DescribeClusterRequest, broker: Broker, context: Context
) -> DescribeClusterResponse:
    """The brokers, the controller and the cluster's id."""
    return answer_describe_cluster(
        broker.image, request, version=context.api_version, viewpoint=broker.viewpoint(context.listener)
    )


@handles(DescribeTopicPartitionsRequest, versions="0")
async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, broker: Broker, context: Context
) -> DescribeTopicPartitionsResponse:
    """Topics with their partitions: one page."""
    answer = partial(
        answer_describe_topic_partitions,
        broker.image,
        request,
        listener=context.listener,
        partition_limit=broker.settings.fetch.max_request_partition_size_limit,
    )
    return await broker.env.run_blocking(answer) if context.is_large else answer()
