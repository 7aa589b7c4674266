"""DescribeConfigs: the settings of topics and brokers, with where each value comes from."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.broker import Broker
from kbroker.config.describe import ConfigEntry
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def _refused(request: DescribeConfigsRequest, code: ErrorCode) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_failed(resource, KafkaError(code)) for resource in request.resources])


def _failed(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )


@handles(DescribeConfigsRequest, versions="1-4", on_error=_refused)
async def describe_configs(
    request: DescribeConfigsRequest, broker: Broker, context: Context
) -> DescribeConfigsResponse:
    """Answer each resource by itself."""
    results = []
    for resource in request.resources:
        keys: Collection[str] | None = resource.configuration_keys
        try:
            entries = broker.describe_configs(
                resource.resource_type,
                resource.resource_name,
                keys=keys,
                include_synonyms=request.include_synonyms,
                include_documentation=request.include_documentation,
            )
        except KafkaError as error:
            results.append(_failed(resource, error))
            continue
        results.append(
            DescribeConfigsResult(
                error_message="",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[_result(entry) for entry in entries],
            )
        )
    return DescribeConfigsResponse(results=results)


def _result(entry: ConfigEntry) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ],
        config_type=entry.config_type,
        documentation=entry.documentation,
    )
