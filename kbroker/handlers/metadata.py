"""Metadata, DescribeCluster and DescribeTopicPartitions, which `kbroker.metadata.answers` answers from an image.

A Metadata request can create unknown topics. DescribeTopicPartitions answers in pages (KIP-966). No answer tells
whether a topic exists that the client may not describe.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.answers import (
    UNASKED_OPERATIONS,
    answer_describe_cluster,
    answer_describe_topic_partitions,
    answer_metadata,
)
from kbroker.metadata.image import TopicImage
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from wire.types import ZERO_UUID


class _Rights:
    """The rights of a client; satisfies `kbroker.metadata.answers.Rights`."""

    def __init__(self, context: Context) -> None:
        self._may, self._operations_on, self.on_cluster = context.may, context.operations_on, context.cluster_operations

    def may_describe(self, topic: str, *, is_named: bool = True) -> bool:
        return self._may(Operation.DESCRIBE, ResourceType.TOPIC, topic, is_logged=is_named)

    def may_create(self, topic: str) -> bool:
        may = self._may
        return may(Operation.CREATE, ResourceType.CLUSTER, is_logged=False) or may(
            Operation.CREATE, ResourceType.TOPIC, topic
        )

    def on_topic(self, topic: str) -> int:
        return self._operations_on(ResourceType.TOPIC, topic)


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
    version, image, rights = context.api_version, broker.image, _Rights(context)
    with_operations = version >= 8 and request.include_topic_authorized_operations
    with_cluster = 8 <= version <= 10 and request.include_cluster_authorized_operations

    def described(topic: TopicImage) -> bytes:
        operations = rights.on_topic(topic.name) if with_operations else UNASKED_OPERATIONS
        return broker.topic_cache.encoded(
            image, topic, version=version, listener=context.listener, operations=operations
        )

    plan = partial(
        answer_metadata,
        image,
        request,
        version=version,
        viewpoint=broker.viewpoint(context.listener),
        rights=rights,
        creates=broker.may_create if broker.settings.log.auto_create_topics_enable else None,
        described=described,
        cluster_operations=rights.on_cluster() if with_cluster else UNASKED_OPERATIONS,
    )
    answer = await broker.env.run_blocking(plan) if context.is_large else plan()
    topics: list[Any] = answer.response.topics  # some entries are bytes: topics that are already encoded
    for topic in answer.topics:
        topics.append(topic)
        if broker.turns.due():
            await broker.turns.next()
    if answer.to_create:
        await broker.auto_creator.create(answer.to_create, context.sender)
    return answer.response


@handles(DescribeClusterRequest, versions="0-2")
async def describe_cluster(
    request: DescribeClusterRequest, broker: Broker, context: Context
) -> DescribeClusterResponse:
    """The brokers, the controller and the cluster's id."""
    return answer_describe_cluster(
        broker.image,
        request,
        version=context.api_version,
        viewpoint=broker.viewpoint(context.listener),
        rights=_Rights(context),
    )


@handles(DescribeTopicPartitionsRequest, versions="0")
async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, broker: Broker, context: Context
) -> DescribeTopicPartitionsResponse:
    """Topics with their partitions: one page."""
    image, turns = broker.image, broker.turns
    names = [topic.name for topic in request.topics] or image.topics_by_name
    answer = partial(
        answer_describe_topic_partitions,
        image,
        request,
        listener=context.listener,
        partition_limit=broker.settings.fetch.max_request_partition_size_limit,
        hidden=await context.denied(
            Operation.DESCRIBE, ResourceType.TOPIC, names, turns, is_logged=bool(request.topics)
        ),
    )
    page = await broker.env.run_blocking(answer) if context.is_large else answer()
    for topic in page.topics:
        if turns.due():
            await turns.next()
        if topic.error_code not in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST):
            topic.topic_authorized_operations = context.operations_on(ResourceType.TOPIC, topic.name or "")
    return page
