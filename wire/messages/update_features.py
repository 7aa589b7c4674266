"""UpdateFeatures: raise or lower finalized features (KIP-584, KIP-778)."""

from wire.schema import field, message, struct
from wire.types import boolean, int8, int16, int32, string


@struct
class FeatureUpdateKey:
    feature: string
    max_version_level: int16
    allow_downgrade: boolean = field(versions="0", default=False)
    upgrade_type: int8 = field(versions="1+", default=1)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    timeout_ms: int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: boolean = field(versions="1+", default=False)


@struct
class UpdatableFeatureResult:
    feature: string
    error_code: int16 = 0
    error_message: string | None


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None
    results: list[UpdatableFeatureResult] = field(versions="0-1", default=[], ignorable=True)
