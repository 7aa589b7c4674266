"""Settings of the metadata log and the controllers."""

from __future__ import annotations

from kbroker.config.settings import DAY, GB, HOUR, MB, MINUTE, Setting, harmless, refused, setting, settings
from kbroker.config.values import Kind


@settings
class MetadataSettings:
    """Segments, snapshots and retention of the metadata log."""

    metadata_log_segment_bytes: int = setting(
        default=1 * GB, at_least=8 * MB, doc="Maximum segment size of the metadata log."
    )
    metadata_log_segment_ms: int = setting(
        default=7 * DAY, kind=Kind.LONG, doc="Age at which a segment of the metadata log is rolled."
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        default=20 * MB,
        kind=Kind.LONG,
        at_least=1,
        doc="Number of bytes of new records after which the controller writes a snapshot.",
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        default=HOUR,
        kind=Kind.LONG,
        at_least=0,
        doc="Time after which the controller writes a snapshot if there are new records. 0 means never.",
    )
    metadata_max_retention_bytes: int = setting(
        default=100 * MB,
        kind=Kind.LONG,
        doc="Maximum size of the metadata log and its snapshots. The oldest are deleted first.",
    )
    metadata_max_retention_ms: int = setting(
        default=7 * DAY,
        kind=Kind.LONG,
        doc="Age at which snapshots and segments of the metadata log are deleted.",
    )


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "The only controller is in this process, so there are no elections and no requests to other controllers.",
        broker_heartbeat_interval_ms=Setting(2000),
        broker_session_timeout_ms=Setting(9000),
        controller_performance_always_log_threshold_ms=Setting(2000, kind=Kind.LONG, at_least=0, internal=True),
        controller_performance_sample_period_ms=Setting(MINUTE, kind=Kind.LONG, at_least=100, internal=True),
        controller_quorum_append_linger_ms=Setting(25, at_least=0),
        controller_quorum_election_backoff_max_ms=Setting(1000, at_least=0),
        controller_quorum_election_timeout_ms=Setting(1000, at_least=0),
        controller_quorum_fetch_max_bytes=Setting(MB, at_least=1),
        controller_quorum_fetch_snapshot_max_bytes=Setting(MB, at_least=1),
        controller_quorum_fetch_timeout_ms=Setting(2000, at_least=0),
        controller_quorum_request_timeout_ms=Setting(2000, at_least=0),
        controller_quorum_retry_backoff_ms=Setting(20, at_least=0),
        controller_quota_window_num=Setting(11, at_least=1),
        controller_quota_window_size_seconds=Setting(1, at_least=1),
        initial_broker_registration_timeout_ms=Setting(MINUTE),
        metadata_max_idle_interval_ms=Setting(500, at_least=0),
    ),
    *harmless(
        "Only Kafka's own tests set it.",
        internal_metadata_delete_delay_millis=Setting(60_000, kind=Kind.LONG, internal=True),
        internal_metadata_log_segment_bytes=Setting(kind=Kind.INT, internal=True),
        internal_metadata_max_batch_size_in_bytes=Setting(8 * MB, internal=True),
    ),
    *refused(
        "A quorum of several controllers is not implemented yet.",
        controller_quorum_auto_join_enable=Setting(False),
    ),
    *refused(
        "The metadata log is in the data directory; a separate directory is not implemented yet.",
        metadata_log_dir=Setting(kind=Kind.STRING),
    ),
)
