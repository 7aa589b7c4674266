"""Settings of replication."""

from __future__ import annotations

from typing import Final

from kbroker.config.settings import MAX_INT64, MB, SECOND, Dynamic, Long, Setting, setting, settings
from kbroker.config.values import Kind

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@settings
class ReplicationSettings:
    """How followers copy partitions, and when they count as in sync."""

    replica_high_watermark_checkpoint_interval_ms: Long = setting(
        default=5 * SECOND, doc="How often the broker writes the high watermarks to the data directory."
    )
    replica_lag_time_max_ms: Long = setting(
        default=30 * SECOND,
        doc="The leader removes a follower from the ISR that has not caught up with its log for this long.",
    )
    num_replica_fetchers: int = setting(
        default=1,
        at_least=1,
        dynamic=Dynamic.CLUSTER_WIDE,
        doc="Number of connections over which a follower fetches from each other broker.",
    )
    replica_fetch_wait_max_ms: int = setting(
        default=500,
        doc="How long a leader lets a follower wait for new records. Must be less than replica.lag.time.max.ms.",
    )
    replica_fetch_min_bytes: int = setting(
        default=1, doc="How many bytes a leader waits for before it answers a follower."
    )
    replica_fetch_max_bytes: int = setting(
        default=MB, at_least=0, doc="Largest size of the records of one partition in an answer to a follower."
    )
    replica_fetch_response_max_bytes: int = setting(
        default=10 * MB, at_least=0, doc="Largest size of all records in an answer to a follower."
    )
    replica_fetch_backoff_ms: int = setting(
        default=1 * SECOND, at_least=0, doc="How long a follower waits after an error before it fetches again."
    )
    replica_selector_class: str | None = setting(
        one_of=(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
        doc="How the leader chooses the replica that a consumer reads from. The rack-aware one names an in-sync replica"
        " in the consumer's rack (client.rack, broker.rack). Other classes cannot be loaded.",
    )
    replication_quota_window_num: int = setting(
        default=11, at_least=1, doc="Number of windows over which the throttled replication traffic is measured."
    )
    replication_quota_window_size_seconds: int = setting(default=1, at_least=1, doc="Length of each of these windows.")
    replica_socket_timeout_ms: int = setting(
        default=30 * SECOND,
        doc="A follower connects again if the leader has not answered for this long, in addition to"
        " replica.fetch.wait.max.ms.",
    )


THROTTLES: Final = tuple(
    Setting(
        MAX_INT64,
        name=name,
        kind=Kind.LONG,
        at_least=0,
        dynamic=Dynamic.CLUSTER_WIDE,
        internal=True,
        doc=f"Bytes per second that this broker {moves} for the replicas in {side}.replication.throttled.replicas.",
    )
    for name, side, moves in ((LEADER_RATE, "leader", "sends"), (FOLLOWER_RATE, "follower", "fetches"))
)
"""Settings that IncrementalAlterConfigs alone can set."""
