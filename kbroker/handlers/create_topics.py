"""CreateTopics: the controller creates the topics."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.handlers.controller import decided
from kbroker.handlers.permits import permit_creations
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse


@handles(CreateTopicsRequest, versions="2-7")
async def create_topics(request: CreateTopicsRequest, broker: Broker, context: Context) -> CreateTopicsResponse:
    """Create the topics that the client may create. The reply has the settings of those that it may describe."""
    permitted, refused = await permit_creations(request, broker, context)
    answer: CreateTopicsResponse = await decided(permitted, CreateTopicsResponse, broker, context)
    if context.authorizer is not None:
        for topic in answer.topics:
            if broker.turns.due():
                await broker.turns.next()
            may = context.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name, is_logged=False)
            if not (topic.error_code or may):
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topic.num_partitions = topic.replication_factor = -1
                topic.configs = []
        answer.topics += refused
    return answer
