"""``bootstrap.checkpoint``: written by the format step into the root of the log directory, and read at the first start.

The file has the snapshot format. It holds the first records of an empty metadata log: metadata.version, and what else
the formatting tool was given (SCRAM credentials, other features). Kafka's own tool writes the same file.

Source: KIP-778, KIP-900; Kafka's BootstrapDirectory.
"""

from __future__ import annotations

from kbroker.controller import snapshots
from kbroker.controller.features import METADATA_VERSION, NEW_CLUSTER, require_supported
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Record
from kbroker.runtime.ports import Disk
from wire.errors import Malformed
from wire.stored.metadata import FeatureLevelRecord


def bootstrap_records(disk: Disk, path: str | None) -> list[Record]:
    """The first records of an empty log. Without the file, the feature levels of a new cluster."""
    if path is None or not disk.exists(path):
        return _new_cluster()
    try:
        contents = snapshots.read_snapshot(disk, path)
    except Malformed as error:
        raise UnusableMetadata(f"the bootstrap records cannot be read: {error}") from error
    levels = {one.name: one.feature_level for one in contents if isinstance(one, FeatureLevelRecord)}
    require_supported(levels, path)
    return contents


def _new_cluster() -> list[Record]:
    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in NEW_CLUSTER.items()]


def write_bootstrap(root: str, *, disk: Disk, timestamp_ms: int) -> None:
    """Write ``bootstrap.checkpoint`` as the format step does, unless it exists."""
    path = f"{root}/{snapshots.BOOTSTRAP_FILE}"
    if not disk.exists(path):
        snapshots.write_snapshot(
            disk,
            path,
            _new_cluster(),
            metadata_version=METADATA_VERSION,
            epoch=0,
            last_contained_log_timestamp=0,
            timestamp_ms=timestamp_ms,
        )
