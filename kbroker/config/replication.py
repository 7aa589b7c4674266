"""Settings of replication."""

from __future__ import annotations

from kbroker.config.settings import SECOND, setting, settings
from kbroker.config.values import Kind


@settings
class ReplicationSettings:
    """Checkpoints of the replication state."""

    replica_high_watermark_checkpoint_interval_ms: int = setting(
        default=5 * SECOND, kind=Kind.LONG, doc="How often the broker writes the high watermarks to the data directory."
    )
