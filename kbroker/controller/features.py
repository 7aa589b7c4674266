"""Feature levels that this version supports, and decisions for UpdateFeatures.

A new cluster starts at metadata.version 21 (3.9-IV0), so that it can be handed to every newer version of Apache Kafka,
and with group.version 1, so that clients can use both group protocols. The directory of an Apache Kafka 4.3 may be at
metadata.version 30 (4.3-IV0). Levels above 21 change the versions of records and requests; the controller does not
keep eligible leader replicas (KIP-966), so that their feature must be at 0. A directory may also claim share and
streams groups, which kbroker's brokers refuse by name; UpdateFeatures does not switch them on.

kraft.version 0 means a static quorum, and 1 one whose voters are in the metadata log (KIP-853). Both are led if this
controller is the only voter. The level is in a control record of the log, and never changes here.

Only UpdateFeatures changes levels; a request is applied completely or not at all. metadata.version can be lowered only
as far as no record would be lost.

Source: KIP-584, KIP-778; Kafka's FeatureControlManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kbroker.controller.context import Context, error_text
from kbroker.controller.decisions import decides
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.parts import (
    GROUP_VERSION_FEATURE,
    KRAFT_VERSION_FEATURE,
    METADATA_VERSION_FEATURE,
    TRANSACTION_VERSION_FEATURE,
)
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from wire.stored.metadata import FeatureLevelRecord

LOWEST_METADATA_VERSION: Final = 7
"""3.3-IV3, the lowest level that Kafka 4.x knows."""

METADATA_VERSION: Final = 21
"""3.9-IV0, the level of a new cluster."""

HIGHEST_METADATA_VERSION: Final = 30
"""4.3-IV0, the level of a directory that Apache Kafka 4.3 has formatted."""

SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "eligible.leader.replicas.version": (0, 0),
        GROUP_VERSION_FEATURE: (0, 1),
        KRAFT_VERSION_FEATURE: (0, 1),
        METADATA_VERSION_FEATURE: (LOWEST_METADATA_VERSION, HIGHEST_METADATA_VERSION),
        "share.version": (0, 1),
        "streams.version": (0, 1),
        TRANSACTION_VERSION_FEATURE: (0, 2),
    }
)
"""The supported levels, lowest and highest, by name in order."""

NEW_CLUSTER: Final[Mapping[str, int]] = MappingProxyType(
    {METADATA_VERSION_FEATURE: METADATA_VERSION, GROUP_VERSION_FEATURE: 1}
)
"""The levels of a new cluster. group.version depends on no level of metadata.version, in Kafka either."""

_UPGRADE = 1
_SAFE_DOWNGRADE = 2
_UNSAFE_DOWNGRADE = 3

NOT_RAISED: Final = frozenset({KRAFT_VERSION_FEATURE, "share.version", "streams.version"})
"""A directory of Apache Kafka may have these features, but they cannot be switched on."""
WHY_NOT_RAISED: Final = "kbroker serves no share groups, no streams groups, and no quorum of several voters"

_CHANGING_METADATA: Final = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30})
"""The levels of metadata.version that changed the metadata records."""


def require_supported(finalized: Mapping[str, int], where: str) -> None:
    """Raise UnusableMetadata unless this controller can lead a cluster with these levels; `where` they are stored."""
    wrong, lowered, remedies = [], [], []
    for name, level in sorted(finalized.items()):
        lowest, highest = SUPPORTED_FEATURES.get(name, (0, 0))
        if not lowest <= level <= highest:
            wrong.append(f"{name}={level} (supported: {lowest} to {highest})")
            if level < lowest:
                remedies.append(f"raise {name} with `kafka-features.sh upgrade` of an Apache Kafka that starts on it")
            elif name == METADATA_VERSION_FEATURE:  # which cannot be lowered so far
                remedies.append("format a new directory with `kafka-storage.sh format --release-version 3.9`")
            else:
                lowered.append(f"--feature {name}={highest}")
    if lowered:
        remedies.append(f"start Apache Kafka on it and run `kafka-features.sh downgrade {' '.join(lowered)}`")
    if wrong:
        raise UnusableMetadata(
            f"{where} has {', '.join(wrong)}, which a controller of kbroker does not support: "
            f"{', and '.join(remedies)}; or run kbroker as a broker of Apache Kafka's controllers"
        )


@decides(UpdateFeaturesRequest, adds=True, may_be_long=True)
def update_features(context: Context, request: UpdateFeaturesRequest) -> Outcome[UpdateFeaturesResponse]:
    """Decide new finalized levels. INVALID_UPDATE_VERSION for one feature fails the whole request."""
    records: list[Any] = []
    try:
        for update in request.feature_updates:
            _check(context, update)
            if update.max_version_level != context.image.levels.get(update.feature, 0):
                records.append(FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level))
    except KafkaError as error:
        text = f"The update failed for all features since the following feature had an error: {error_text(error)}"
        return Outcome([], UpdateFeaturesResponse(error_code=error.code, error_message=text))
    results = [
        # The message is Kafka's; version 2 and later have no results.
        UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.name)
        for update in request.feature_updates
    ]
    return Outcome(
        [] if request.validate_only else records, UpdateFeaturesResponse(error_message=None, results=results)
    )


def _check(context: Context, update: FeatureUpdateKey) -> None:
    def refuse(reason: str) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}",
        )

    level, current = update.max_version_level, context.image.levels.get(update.feature, 0)
    kind = update.upgrade_type  # Kafka's controller ignores allow_downgrade of version 0
    if kind not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
        raise refuse("The controller does not support the given upgrade type.")
    if level < 0:
        raise refuse("A feature version cannot be less than 0.")
    if update.feature not in SUPPORTED_FEATURES:
        raise refuse(f"Local controller {context.settings.node_id} does not support this feature.")
    lowest, highest = SUPPORTED_FEATURES[update.feature]
    if not lowest <= level <= highest:
        raise refuse(f"Local controller {context.settings.node_id} only supports versions {lowest}-{highest}")
    if level > current and update.feature in NOT_RAISED:
        raise refuse(f"{WHY_NOT_RAISED}.")
    for broker in context.image.brokers.values():
        lowest, highest = broker.features.get(update.feature, (0, 0))
        if not lowest <= level <= highest:
            raise refuse(f"Broker {broker.id} only supports versions {lowest}-{highest}")
    if level < current and kind == _UPGRADE:
        raise refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level < current and update.feature == KRAFT_VERSION_FEATURE:
        raise refuse("Can't downgrade the version of this feature.")
    if level > current and kind != _UPGRADE:
        raise refuse("Can't downgrade to a newer version.")
    if update.feature == METADATA_VERSION_FEATURE and not _CHANGING_METADATA.isdisjoint(range(level + 1, current + 1)):
        raise refuse(
            "Unsafe metadata downgrade is not supported in this version."
            if kind == _UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
