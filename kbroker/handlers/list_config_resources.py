"""ListConfigResources: the names of the resources that DescribeConfigs can describe."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    Image,
)
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_EVERY_TYPE = (TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)


@handles(ListConfigResourcesRequest, versions="0-1")
async def list_config_resources(
    request: ListConfigResourcesRequest, broker: Broker, context: Context
) -> ListConfigResourcesResponse:
    """Answer from the metadata image. Groups and subscriptions are listed only if they have settings."""
    context.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    wanted = set(request.resource_types) or set(_EVERY_TYPE)
    if context.api_version == 0:
        wanted = {CLIENT_METRICS_RESOURCE}
    if not wanted <= set(_EVERY_TYPE):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(wanted)
            for name in _names(broker.image, kind)
        ]
    )


def _names(image: Image, kind: int) -> Iterable[str]:
    if kind == TOPIC_RESOURCE:
        return image.topics_by_name
    if kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return (str(broker.id) for broker in image.brokers.values() if not broker.fenced)
    return (name for resource_type, name in image.configs if resource_type == kind)
