"""ApiVersions: the APIs, versions and features of this broker. The first request of nearly every connection.

Theory of operation: the table is made from the discovered handlers, so the broker advertises only what it serves.
Features come from the metadata log; clients select the protocols of transactions and groups by them. Version 3 has no
range that begins at 0, because Java's client before 3.9.0 refuses it.

A request in an unknown version gets a reply in version 0 with UNSUPPORTED_VERSION and the version range of this one
API, so that the client retries with a known version (KIP-511). Its body is not read. A broker answers no other request
in an unknown version.

Source: KIP-35, KIP-511, KIP-584; ApiVersionsRequest and ApiVersionsResponse of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import Context, Handler, handles
from wire.errors import ErrorCode
from wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FIRST_VERSION_WITH_RANGES_FROM_0 = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiVersionsRequest, versions="0-4")
async def api_versions(request: ApiVersionsRequest, broker: Broker, context: Context) -> ApiVersionsResponse:
    """Return the versions of every API served, and the features."""
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    image = broker.image
    return ApiVersionsResponse(
        api_keys=[_range(handler) for handler in context.served.values()],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in broker.supported_features.items()
            if highest > 0 and (lowest > 0 or context.api_version >= FIRST_VERSION_WITH_RANGES_FROM_0)
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.levels.items())
            if level > 0
        ],
    )


def unsupported_version(served: Mapping[int, Handler[Any]]) -> ApiVersionsResponse:
    """The version 0 response to an ApiVersions request in a version that is not served."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range(served[api_versions.api_key])]
    )


def _range(handler: Handler[Any]) -> ApiVersion:
    return ApiVersion(
        api_key=handler.api_key, min_version=handler.advertised.lowest, max_version=handler.advertised.highest
    )
