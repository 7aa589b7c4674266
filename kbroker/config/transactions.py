"""Settings of transactions. They have no effect yet, and are declared so that the broker can read Kafka's files."""

from __future__ import annotations

from kbroker.config.settings import (
    DAY,
    HOUR,
    MB,
    MINUTE,
    SECOND,
    Dynamic,
    Setting,
    harmless,
)
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER

KNOWN: tuple[Setting, ...] = (
    *harmless(
        "Transactions are not supported yet.",
        add_partitions_to_txn_retry_backoff_max_ms=Setting(100, at_least=0),
        add_partitions_to_txn_retry_backoff_ms=Setting(20, at_least=1),
        transaction_abort_timed_out_transaction_cleanup_interval_ms=Setting(10 * SECOND, at_least=1),
        transaction_max_timeout_ms=Setting(15 * MINUTE, at_least=1),
        transaction_partition_verification_enable=Setting(True, dynamic=CLUSTER_WIDE),
        transaction_remove_expired_transaction_cleanup_interval_ms=Setting(HOUR, at_least=1),
        transaction_state_log_load_buffer_size=Setting(5 * MB, at_least=1),
        transaction_state_log_min_isr=Setting(2, at_least=1),
        transaction_state_log_num_partitions=Setting(50, at_least=1),
        transaction_state_log_replication_factor=Setting(3, kind=Kind.SHORT, at_least=1),
        transaction_state_log_segment_bytes=Setting(100 * MB, at_least=1),
        transaction_two_phase_commit_enable=Setting(False),
        transactional_id_expiration_ms=Setting(7 * DAY, at_least=1),
    ),
)
