"""Settings of transactions: their coordinator, the topic that stores them, and their verification."""

from __future__ import annotations

from kbroker.config.settings import DAY, HOUR, MB, MINUTE, SECOND, Dynamic, Short, setting, settings


@settings
class TransactionSettings:
    """Bounds and delays of transactions, and the topic that stores them."""

    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        default=100,
        at_least=0,
        doc="How long a producer that starts a transaction waits until its last one is complete. After that it gets "
        "CONCURRENT_TRANSACTIONS and asks again.",
    )
    kbroker_max_partitions_per_transaction: int = setting(
        default=2_000,
        at_least=1,
        doc="Maximum number of partitions in one transaction. A request that adds more fails with POLICY_VIOLATION.",
    )
    kbroker_max_transactional_ids: int = setting(
        default=500_000,
        at_least=1,
        doc="Maximum number of transactional ids, divided among the partitions of __transaction_state. For each "
        "further one, the id that was idle longest expires. Ids longer than 256 characters count more than once.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        default=10 * SECOND, at_least=1, doc="How often the broker looks for transactions that have timed out."
    )
    transaction_max_timeout_ms: int = setting(
        default=15 * MINUTE, at_least=1, doc="Longest timeout of a transaction that a producer may request."
    )
    transaction_partition_verification_enable: bool = setting(
        default=True,
        dynamic=Dynamic.CLUSTER_WIDE,
        doc="Whether the broker asks the transaction coordinator before it accepts the first records of a transaction "
        "in a partition. Without it, a late request can leave a transaction open forever.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        default=1 * HOUR, at_least=1, doc="How often the broker looks for transactional ids that have expired."
    )
    transaction_state_log_load_buffer_size: int = setting(
        default=5 * MB,
        at_least=1,
        doc="Size of one read of a partition of __transaction_state while the broker loads it.",
    )
    transaction_state_log_min_isr: int = setting(
        default=2, at_least=1, doc="Value of min.insync.replicas of __transaction_state when it is created."
    )
    transaction_state_log_num_partitions: int = setting(
        default=50, at_least=1, doc="Number of partitions of __transaction_state when it is created."
    )
    transaction_state_log_replication_factor: Short = setting(
        default=3, at_least=1, doc="Replication factor of __transaction_state when it is created."
    )
    transaction_state_log_segment_bytes: int = setting(
        default=100 * MB, at_least=1, doc="Segment size of __transaction_state."
    )
    transactional_id_expiration_ms: int = setting(
        default=7 * DAY, at_least=1, doc="A transactional id expires when it was not used for this long."
    )
