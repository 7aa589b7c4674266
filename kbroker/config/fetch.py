"""Settings of Produce, Fetch and the requests that describe topics."""

from __future__ import annotations

from kbroker.config.settings import DAY, MB, MINUTE, Dynamic, Setting, harmless, setting, settings

CLUSTER_WIDE = Dynamic.CLUSTER_WIDE


@settings
class FetchSettings:
    """Bounds of what clients may ask for and of what is remembered for them."""

    fetch_max_bytes: int = setting(
        default=55 * MB, at_least=1024, doc="The most that one Fetch returns, whatever the client asks for."
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        default=1000, at_least=0, doc="How many fetch sessions are remembered; clients beyond them send full requests."
    )
    max_request_partition_size_limit: int = setting(
        default=2000, at_least=1, doc="The most partitions in one answer to DescribeTopicPartitions."
    )
    producer_id_expiration_ms: int = setting(
        default=DAY,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="A partition forgets an idempotent producer that was silent for so long, whatever times its records have.",
    )


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "Silent producers are looked for whenever retention is, each log.retention.check.interval.ms.",
        producer_id_expiration_check_interval_ms=Setting(10 * MINUTE, at_least=1, internal=True),
    ),
    *harmless(
        "A waiting request is a task that is woken, so there is no list of them to purge.",
        delete_records_purgatory_purge_interval_requests=Setting(1),
        fetch_purgatory_purge_interval_requests=Setting(1000),
        producer_purgatory_purge_interval_requests=Setting(1000),
        share_fetch_purgatory_purge_interval_requests=Setting(1000),
    ),
)
