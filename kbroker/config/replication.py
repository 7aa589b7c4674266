"""Settings of replication."""

from __future__ import annotations

from kbroker.config.settings import SECOND, Long, setting, settings


@settings
class ReplicationSettings:
    """Checkpoints of the replication state."""

    replica_high_watermark_checkpoint_interval_ms: Long = setting(
        default=5 * SECOND, doc="How often the broker writes the high watermarks to the data directory."
    )
