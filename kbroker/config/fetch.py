"""Settings of Produce, Fetch and DescribeTopicPartitions."""

from __future__ import annotations

from kbroker.config.settings import DAY, MB, Dynamic, setting, settings

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
