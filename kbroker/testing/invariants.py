"""Invariants of brokers that clients cannot observe.

    K6  hw-fell           a replica lowers the high watermark that it knows, though its log still has the records
    K6  hw-without-isr    a high watermark rises while the ISR is smaller than min.insync.replicas (KIP-966)
    K6  isr-behind        a member of the committed ISR ends below the leader's high watermark

A new leader answers ListOffsets only when its high watermark has reached its epoch (KIP-207), so a leader that begins
with a high watermark that is too low looks like one that waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.replication.partition import Partition
from kbroker.testing.cluster import MemoryCluster
from kbroker.testing.recorder import History


class Invariants:
    """Compares the replicas of brokers with what they were when it last looked."""

    def __init__(self, cluster: MemoryCluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._seen: dict[Partition, tuple[int, int, int]] = {}

    def look(self, broker: int, partitions: Sequence[tuple[str, int]]) -> None:
        """Look at the replicas of a broker, if it is up."""
        for named in partitions:
            if (replica := self._cluster.nodes[broker].replica(*named)) is not None:
                now = (replica.known_high_watermark, replica.leader_epoch, replica.partition_epoch)
                before = self._seen.get(replica, now)
                self._seen[replica] = now
                self._compare(broker, replica, before)
                self._compare_members(broker, replica)

    def _compare_members(self, leader: int, replica: Partition) -> None:
        image, high_watermark = self._cluster.image.partition(*replica.key), replica.known_high_watermark
        if image is None or (image.leader, image.leader_epoch) != (leader, replica.leader_epoch):
            return
        for member in image.isr:
            node = self._cluster.nodes[member]
            held = node.replica(*replica.key) if node.is_serving else None
            if held is not None and held.log.log_end_offset < high_watermark:
                text = f"broker {member} is in the ISR of broker {leader} and ends at {held.log.log_end_offset}"
                self._history.complain("K6", "isr-behind", replica.name, high_watermark, text)

    def _compare(self, broker: int, replica: Partition, before: tuple[int, int, int]) -> None:
        high_watermark = replica.known_high_watermark
        if high_watermark < before[0] <= replica.log.log_end_offset:
            text = f"broker {broker} knew {before[0]} in epoch {before[1]}, and has it in epoch {replica.leader_epoch}"
            self._history.complain("K6", "hw-fell", replica.name, high_watermark, text)
        progress = replica.progress
        if (
            progress is None
            or high_watermark == before[0]
            or before[1:] != (replica.leader_epoch, replica.partition_epoch)
        ):
            return
        needed = min(replica.log.config.min_insync_replicas, len(replica.replicas))
        if len(progress.isr) < needed:
            text = f"broker {broker} has raised it from {before[0]} with the ISR {sorted(progress.isr)} of {needed}"
            self._history.complain("K6", "hw-without-isr", replica.name, high_watermark, text)
