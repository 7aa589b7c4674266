"""Settings of Produce, Fetch and DescribeTopicPartitions."""

from __future__ import annotations

from kbroker.config.settings import DAY, MB, MINUTE, Dynamic, Setting, harmless, setting, settings

CLUSTER_WIDE = Dynamic.CLUSTER_WIDE


@settings
class FetchSettings:
    """Bounds on what clients may request and on the state that the broker keeps for them."""

    fetch_max_bytes: int = setting(
        default=55 * MB, at_least=1024, doc="Largest Fetch response, even if the client allows more."
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        default=1000, at_least=0, doc="Maximum number of fetch sessions. Clients without a session send full requests."
    )
    max_request_partition_size_limit: int = setting(
        default=2000, at_least=1, doc="Maximum number of partitions in one DescribeTopicPartitions response."
    )
    producer_id_expiration_ms: int = setting(
        default=DAY,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="A partition forgets an idempotent producer that has written nothing for this long. Record timestamps do"
        " not matter.",
    )


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "The broker looks for idle producers together with retention, every log.retention.check.interval.ms.",
        producer_id_expiration_check_interval_ms=Setting(10 * MINUTE, at_least=1, internal=True),
    ),
    *harmless(
        "A waiting request is a task that the broker wakes, so there is no purgatory list to purge.",
        delete_records_purgatory_purge_interval_requests=Setting(1),
        fetch_purgatory_purge_interval_requests=Setting(1000),
        producer_purgatory_purge_interval_requests=Setting(1000),
        share_fetch_purgatory_purge_interval_requests=Setting(1000),
    ),
)
