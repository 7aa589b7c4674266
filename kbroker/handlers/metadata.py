"""Metadata: the brokers, and the topics with their leaders. A request can create unknown topics."""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.answers import answer_metadata
from wire.errors import ErrorCode
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
    encoded = partial(
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
        encoded=encoded,
    )
    answer = await broker.env.run_blocking(plan) if context.is_large else plan()
    topics: list[Any] = answer.response.topics  # some entries are bytes: topics that are already encoded
    for topic in answer.topics:
        topics.append(topic)
        if broker.turns.due():
            await broker.turns.next()
    if answer.to_create:
        await broker.create_automatically(answer.to_create)
    return answer.response
