"""Settings of the metadata log and the controllers."""

from __future__ import annotations

from kbroker.config.settings import DAY, GB, HOUR, MB, MINUTE, Long, setting, settings


@settings
class MetadataSettings:
    """Segments, snapshots and retention of the metadata log; time-outs between brokers and controllers."""

    metadata_log_segment_bytes: int = setting(
        default=1 * GB, at_least=8 * MB, doc="Maximum segment size of the metadata log."
    )
    metadata_log_segment_ms: Long = setting(
        default=7 * DAY, doc="Age at which a segment of the metadata log is rolled."
    )
    metadata_log_max_record_bytes_between_snapshots: Long = setting(
        default=20 * MB, at_least=1, doc="Number of bytes of new records after which the controller writes a snapshot."
    )
    metadata_log_max_snapshot_interval_ms: Long = setting(
        default=HOUR,
        at_least=0,
        doc="Time after which the controller writes a snapshot if there are new records. 0 means never.",
    )
    metadata_max_retention_bytes: Long = setting(
        default=100 * MB, doc="Maximum size of the metadata log and its snapshots. The oldest are deleted first."
    )
    metadata_max_retention_ms: Long = setting(
        default=7 * DAY, doc="Age at which snapshots and segments of the metadata log are deleted."
    )
    broker_heartbeat_interval_ms: int = setting(default=2_000, doc="Time between heartbeats to the controller.")
    broker_session_timeout_ms: int = setting(
        default=9_000, doc="Time after which the controller fences a broker that sends no heartbeat."
    )
    metadata_max_idle_interval_ms: int = setting(
        default=500,
        at_least=0,
        doc="While other nodes follow the metadata log, the controller writes a record at least this often, so that it "
        "is visible how far behind they are. 0 means never.",
    )
    kbroker_max_metadata_records: int = setting(
        default=10_000,
        at_least=1,
        at_most=10_000,
        doc="Number of metadata records that one request of a client may need; a new topic needs one, and one for each "
        "of its partitions and settings. Other requests fail with POLICY_VIOLATION.",
    )
    auto_leader_rebalance_enable: bool = setting(
        default=True, doc="Whether the controller moves leaders back to the preferred replicas from time to time."
    )
    leader_imbalance_check_interval_seconds: Long = setting(
        default=300, at_least=1, doc="How often the controller does that."
    )
    unclean_leader_election_interval_ms: Long = setting(
        default=5 * MINUTE,
        at_least=1,
        internal=True,
        doc="How often the controller elects leaders outside of the ISR for topics that allow it.",
    )
    initial_broker_registration_timeout_ms: int = setting(
        default=60_000,
        doc="Time after which the start of a broker fails if it could not register with the controllers.",
    )
    controller_quorum_fetch_timeout_ms: int = setting(
        default=2_000,
        at_least=0,
        doc="Time that a broker waits for a controller's answer to a Fetch before it asks another one.",
    )
    controller_quorum_request_timeout_ms: int = setting(
        default=2_000, at_least=0, doc="The same for connecting, and for other requests about the metadata log."
    )
    controller_quorum_retry_backoff_ms: int = setting(
        default=20, at_least=0, doc="Delay before a broker asks again after a failure; doubled up to one second."
    )
    controller_quorum_fetch_max_bytes: int = setting(
        default=1 * MB, at_least=1, doc="Maximum bytes of metadata records in one answer."
    )
    controller_quorum_fetch_snapshot_max_bytes: int = setting(
        default=1 * MB, at_least=1, doc="Maximum bytes of a metadata snapshot in one answer."
    )
    controller_socket_timeout_ms: int = setting(
        default=30_000, doc="Time that a broker waits for the controller's answer to one request."
    )
