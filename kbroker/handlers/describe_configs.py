"""DescribeConfigs: the settings of topics and brokers, with the source of each value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.broker import Broker
from kbroker.broker.configs import describe_resource
from kbroker.handlers import Context, handles
from kbroker.handlers.permits import demand_settings
from kbroker.security.authorizing import Operation
from wire.codec import encode_element
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)


def _failed(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )


@handles(DescribeConfigsRequest, versions="1-4")
async def describe_configs(
    request: DescribeConfigsRequest, broker: Broker, context: Context
) -> DescribeConfigsResponse:
    """Describe each resource once, even if the request names it more than once.

    Kafka repeats the result, of about 20 kB, for every mention; clients look up results by resource and need only one.
    Results are encoded one by one, because the objects take forty times as much memory as their encoding.

    Errors  INVALID_REQUEST if the reply would exceed kbroker.max.reply.bytes
    """
    results: list[Any] = []
    size, max_bytes = 0, broker.settings.limits.kbroker_max_reply_bytes
    for resource, keys in _each_once(request.resources):
        if broker.turns.due():
            await broker.turns.next()
        try:
            demand_settings(context, Operation.DESCRIBE_CONFIGS, resource)
            named = resource.resource_type, resource.resource_name
            configs = describe_resource(broker.settings, broker.image, named, node_id=broker.node_id, keys=keys)
        except KafkaError as error:
            results.append(_failed(resource, error))
            continue
        for config in configs:
            if not request.include_synonyms:
                config.synonyms = []
            # Loggers have the documentation "", which Kafka always returns.
            if config.documentation and not request.include_documentation:
                config.documentation = None
        result = DescribeConfigsResult(
            error_message="",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=configs,
        )
        results.append(encoded := encode_element(result, DescribeConfigsResponse, context.api_version))
        size += len(encoded)
        if size > max_bytes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the reply would exceed kbroker.max.reply.bytes={max_bytes}")
    return DescribeConfigsResponse(results=results)


def _each_once(
    resources: Iterable[DescribeConfigsResource],
) -> Iterable[tuple[DescribeConfigsResource, set[str] | None]]:
    """Each resource with all keys that the request names for it; None means all keys."""
    asked: dict[tuple[int, str], tuple[DescribeConfigsResource, set[str] | None]] = {}
    for resource in resources:
        name = resource.resource_type, resource.resource_name
        keys = set(resource.configuration_keys) if resource.configuration_keys else None
        if name in asked:
            known = asked[name][1]
            keys = None if keys is None or known is None else known | keys
        asked[name] = resource, keys
    return asked.values()
