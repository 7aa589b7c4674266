"""Which replica a consumer should read from (KIP-392).

With the rack-aware selector the leader names a replica in the consumer's rack: itself if it is there, else the in-sync
follower with the most records. A follower counts only if it has the offset that the consumer wants.

Source: RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.replication.leader import LeaderProgress

NO_PREFERENCE: Final = -1


def preferred_replica(
    progress: LeaderProgress, fetch_offset: int, *, rack: str, racks: Mapping[int, str | None]
) -> int:
    """The follower from which a consumer in `rack` should read; -1 for the leader.

    `racks` are those of the brokers that consumers can reach.
    """
    if racks.get(progress.broker_id) == rack:
        return NO_PREFERENCE
    best: tuple[int, int, int] | None = None
    for follower_id, follower in progress.followers.items():
        has_offset = follower.log_start_offset <= fetch_offset <= follower.fetch_offset
        if follower_id in progress.isr and has_offset and racks.get(follower_id) == rack:
            found = (follower.fetch_offset, follower.caught_up_ms, follower_id)
            best = found if best is None else max(best, found)
    return NO_PREFERENCE if best is None else best[2]
