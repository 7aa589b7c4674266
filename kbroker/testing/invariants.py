"""Invariants of brokers, mostly ones that clients cannot observe. They are compared about twenty times a second,
and more often after a truncation.

    K4  producer-beyond-end  a replica knows a producer by a record that its log does not have
    K6  hw-fell              a replica lowers the high watermark that it knows, though its log still has the records
    K6  hw-without-isr       a high watermark rises while the ISR is smaller than min.insync.replicas (KIP-966)
    K6  isr-behind           a member of the committed ISR ends below the leader's high watermark
    K7  epoch-beyond-end     a leader epoch begins after the end of the log
    K8  fenced-leader        the metadata name a leader that is fenced
    K9  copied-by-a-follower, deleted-by-a-follower   a broker that does not lead a partition changes its tier
    K9  copied-too-early     a broker copies records that are not below its high watermark

A new leader answers ListOffsets only when its high watermark has reached its epoch (KIP-207), so a leader that begins
with a high watermark that is too low looks like one that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from kbroker.replication.partition import Partition
from kbroker.testing.cluster import MemoryCluster
from kbroker.testing.event_lines import EventLine
from kbroker.testing.plan import LOOK_EACH_MS
from kbroker.testing.recorder import History
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteLogSegmentState

STARTED: Final = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_LOOKS_SOON: Final = 20
_SOON_S: Final = 0.0005
"""After a truncation: its traces last until the next records arrive."""
_LED_LATELY_MS: Final = 15_000
"""A broker that loses a leadership may still end what it has begun."""


class Invariants:
    """Compares the replicas of brokers with what they were when it last looked.

    Note  a node that has lost its power lacks records until it has left the ISR. If the ISR has only such nodes,
          Kafka without KIP-966's ELR may lose what they lack: then the partition is excused
    """

    def __init__(
        self, cluster: MemoryCluster, history: History, *, look_each_ms: int = LOOK_EACH_MS, syncs_all: bool = False
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._syncs_all = syncs_all
        self._look_each_s = look_each_ms / 1000
        self._told: Callable[[EventLine], object] = lambda _: None
        self._soon = 0
        self._woken = trio.Event()
        self._seen: dict[Partition, tuple[int, int, int]] = {}
        self._led_ms: dict[tuple[int, str, int], int] = {}

    async def watch(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Look at these partitions, and at each change of the tier, forever."""
        events = self._cluster.events
        before, events.listener = events.listener, self._listen
        self._told = before
        self._cluster.store.watchers.append(self._judge_operation)
        try:
            while True:
                self._excuse()
                for node in self._cluster.brokers:
                    self.look(node.id, partitions)
                self._judge_leaders(partitions)
                await self._pause()
        finally:
            events.listener = before
            self._cluster.store.watchers.remove(self._judge_operation)

    def _listen(self, line: EventLine) -> None:
        self._told(line)
        if line.event.startswith("truncating a partition"):
            self._soon = _LOOKS_SOON
            self._woken.set()

    async def _pause(self) -> None:
        if self._soon:
            self._soon -= 1
            await trio.sleep(_SOON_S)
            return
        self._woken = trio.Event()
        with trio.move_on_after(self._look_each_s):
            await self._woken.wait()

    def look(self, broker: int, partitions: Sequence[tuple[str, int]]) -> None:
        """Look at the replicas of a broker, if it is up."""
        for named in partitions:
            if (replica := self._cluster.nodes[broker].replica(*named)) is not None:
                if replica.is_leader:
                    self._led_ms[broker, *named] = self._history.now()
                self._compare_log(broker, replica)
                now = (replica.known_high_watermark, replica.leader_epoch, replica.partition_epoch)
                before = self._seen.get(replica, now)
                self._seen[replica] = now
                if not self._history.is_lossy(replica.name):
                    self._compare(broker, replica, before)
                    self._compare_members(broker, replica)

    def _excuse(self) -> None:
        if self._syncs_all:
            return
        suspects = self._cluster.suspects
        for named in sorted(set().union(*suspects.values())):
            image = self._cluster.image.partition(*named)
            if image is None:
                continue
            for node, partitions in suspects.items():
                if node not in image.isr:
                    partitions.discard(named)
            if all(named in suspects.get(member, ()) for member in image.isr):
                self._history.excused.add(f"{named[0]}-{named[1]}")

    def _compare_log(self, broker: int, replica: Partition) -> None:
        end = replica.log.log_end_offset
        entries = replica.log.leader_epochs.entries
        if entries and entries[-1][1] > end:
            text = f"broker {broker} has the epoch {entries[-1][0]} from {entries[-1][1]} on"
            self._history.complain("K7", "epoch-beyond-end", replica.name, end, text)
        for producer_id, entry in replica.log.producers.producers.items():
            if entry.last_offset >= end:
                text = f"broker {broker} knows the producer {producer_id} by offset {entry.last_offset}"
                self._history.complain("K4", "producer-beyond-end", replica.name, end, text)

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

    def _judge_leaders(self, partitions: Sequence[tuple[str, int]]) -> None:
        image = self._cluster.image
        for named in partitions:
            found = image.partition(*named)
            if found is not None and (broker := image.brokers.get(found.leader)) is not None and broker.fenced:
                key = f"{named[0]}-{named[1]}"
                text = f"broker {found.leader} leads in epoch {found.leader_epoch} and is fenced"
                self._history.complain("K8", "fenced-leader", key, -1, text)

    def _judge_operation(self, broker: int, operation: str, segment: RemoteLogSegmentMetadata) -> None:
        """A broker begins to copy or delete a segment."""
        placed = segment.remote_log_segment_id.topic_id_partition
        name, index = placed.topic, placed.partition
        topic = self._cluster.image.topics_by_name.get(name)
        if topic is None or topic.id != placed.topic_id:
            return  # every node that knows of the deletion of a topic deletes its segments
        replica = self._cluster.nodes[broker].replica(name, index)
        if operation == "delete" and segment.state is STARTED and segment.broker_id == broker:
            return  # its own copy that it could not finish
        # It may also have led for a moment since the last look.
        leads = replica is not None and (
            replica.is_leader or replica not in self._seen or self._seen[replica][1] != replica.leader_epoch
        )
        led_ms = self._led_ms.get((broker, name, index), -_LED_LATELY_MS)
        if not leads and self._history.now() - led_ms >= _LED_LATELY_MS:
            kind = "copied-by-a-follower" if operation == "copy" else "deleted-by-a-follower"
            text = f"broker {broker} does not lead, and begins to {operation} the segment to {segment.end_offset}"
            self._history.complain("K9", kind, f"{name}-{index}", segment.start_offset, text)
        if operation == "copy" and replica is not None and replica.known_high_watermark <= segment.end_offset:
            text = f"broker {broker} copies up to {segment.end_offset}, and knows {replica.known_high_watermark}"
            self._history.complain("K9", "copied-too-early", f"{name}-{index}", segment.start_offset, text)
