"""ApiVersions: the APIs, versions and features that this listener serves.

The response header is always v0, even for flexible bodies, and throttle_time_ms follows the array (KIP-511, KIP-482).
The broker answers a request of an unknown version with a v0 body and UNSUPPORTED_VERSION.
"""

from wire.schema import field, message, struct
from wire.types import boolean, int16, int32, int64, string


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest:
    client_software_name: string = field(versions="3+", default="", ignorable=True)
    client_software_version: string = field(versions="3+", default="", ignorable=True)


@struct
class ApiVersion:
    api_key: int16
    min_version: int16
    max_version: int16


@struct
class SupportedFeatureKey:
    name: string
    min_version: int16
    max_version: int16


@struct
class FinalizedFeatureKey:
    name: string
    max_version_level: int16
    min_version_level: int16


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse:
    error_code: int16 = 0
    api_keys: list[ApiVersion]
    throttle_time_ms: int32 = field(versions="1+", default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = field(versions="3+", default=[], tag=0, ignorable=True)
    finalized_features_epoch: int64 = field(versions="3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field(versions="3+", default=[], tag=2, ignorable=True)
    zk_migration_ready: boolean = field(versions="3+", default=False, tag=3, ignorable=True)
