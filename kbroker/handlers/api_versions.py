"""ApiVersions: what this broker can do. The first request of nearly every connection.

Theory of operation: the table is made from the handlers that were found, so nothing is advertised that is not served.
Features are those of the metadata log: metadata.version alone, until transactions and new groups are implemented,
because clients switch protocols by features and not by versions.

A request of a version that we do not know is answered in version 0 with UNSUPPORTED_VERSION and the range of this one
API, so that the client comes again (KIP-511). Its body is not looked at. That is the one case in which a broker answers
an unknown version at all.

Source: KIP-35, KIP-511, KIP-584; ApiVersionsRequest and ApiVersionsResponse of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from kbroker.handlers import Context, Handler, handles
from wire.errors import ErrorCode
from wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {"metadata.version": (7, 21)}
"""The levels of each feature that this broker can run at.

7 is 3.3-IV3, the lowest that Kafka 4.x knows, 21 is 3.9-IV0.
"""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class _Image(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def features(self) -> Mapping[str, int]: ...


class _Broker(Protocol):
    @property
    def image(self) -> _Image: ...


@handles(ApiVersionsRequest, versions="0-4")
async def api_versions(request: ApiVersionsRequest, broker: _Broker, context: Context) -> ApiVersionsResponse:
    """Name the versions of every API served, and the features."""
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    image = broker.image
    return ApiVersionsResponse(
        api_keys=[_range(handler) for handler in context.served.values()],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in SUPPORTED_FEATURES.items()
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.features.items())
            if level > 0
        ],
    )


def unsupported_version(served: Mapping[int, Handler[Any]]) -> ApiVersionsResponse:
    """The answer, in version 0, to an ApiVersions request of a version that is not served."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range(served[api_versions.api_key])]
    )


def _range(handler: Handler[Any]) -> ApiVersion:
    return ApiVersion(
        api_key=handler.api_key, min_version=handler.advertised.lowest, max_version=handler.advertised.highest
    )
