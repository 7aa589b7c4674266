"""Feature levels of a running cluster, such as `transaction.version`, raised by UpdateFeatures."""

from __future__ import annotations

from collections.abc import Mapping

from compat.oracle.raw import connected
from compat.waiting import until

UPGRADE = 1
PATIENCE_S = 120.0


def raise_features(servers: str, levels: Mapping[str, int]) -> None:
    """Raise features to these levels, and wait until each of these brokers has applied them. Errors: AssertionError."""
    updates = [{"Feature": name, "MaxVersionLevel": level, "UpgradeType": UPGRADE} for name, level in levels.items()]
    if not updates:
        return
    with connected(servers, timeout_s=PATIENCE_S) as connection:
        message = {"timeoutMs": 60_000, "FeatureUpdates": updates, "ValidateOnly": False}
        answer = connection.call("UpdateFeatures", 1, message)
    codes = {each["ErrorCode"] for each in [answer, *answer["Results"]]}
    assert codes == {0}, answer
    for server in servers.split(","):
        until(lambda: levels.items() <= finalized(server).items(), patience_s=PATIENCE_S)  # noqa: B023  (called here)


def finalized(servers: str) -> dict[str, int]:
    """The feature levels that a broker reports in ApiVersions."""
    with connected(servers, timeout_s=PATIENCE_S) as connection:
        message = {"ClientSoftwareName": "compat", "ClientSoftwareVersion": "1"}
        answer = connection.call("ApiVersions", 3, message)
    return {each["Name"]: each["MaxVersionLevel"] for each in answer["FinalizedFeatures"]}
