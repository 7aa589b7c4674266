"""Settings of replication."""

from __future__ import annotations

from kbroker.config.settings import KB, MB, MINUTE, SECOND, Dynamic, Setting, harmless, refused, setting, settings
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER


@settings
class ReplicationSettings:
    """Checkpoints of the replication state."""

    replica_high_watermark_checkpoint_interval_ms: int = setting(
        default=5 * SECOND, kind=Kind.LONG, doc="How often the broker writes the high watermarks to the data directory."
    )


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "Replication between brokers is not implemented yet.",
        follower_fetch_last_tiered_offset_enable=Setting(False, dynamic=CLUSTER_WIDE),
        replica_lag_time_max_ms=Setting(30 * SECOND, kind=Kind.LONG),
        num_replica_fetchers=Setting(1, at_least=1, dynamic=CLUSTER_WIDE),
        replica_fetch_backoff_ms=Setting(1000, at_least=0),
        replica_fetch_max_bytes=Setting(MB, at_least=0),
        replica_fetch_min_bytes=Setting(1),
        replica_fetch_response_max_bytes=Setting(10 * MB, at_least=0),
        replica_fetch_wait_max_ms=Setting(500),
        replica_socket_receive_buffer_bytes=Setting(64 * KB),
        replica_socket_timeout_ms=Setting(30 * SECOND),
        replication_quota_window_num=Setting(11, at_least=1),
        replication_quota_window_size_seconds=Setting(1, at_least=1),
    ),
    *harmless(
        "The only broker leads every partition.",
        auto_leader_rebalance_enable=Setting(True),
        leader_imbalance_check_interval_seconds=Setting(300, kind=Kind.LONG, at_least=1),
        unclean_leader_election_interval_ms=Setting(5 * MINUTE, kind=Kind.LONG, at_least=1, internal=True),
    ),
    *refused(
        "Fetching from followers is not implemented yet.",
        replica_selector_class=Setting(kind=Kind.STRING),
    ),
)
