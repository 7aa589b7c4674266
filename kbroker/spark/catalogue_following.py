"""What is in the tier, by `__remote_log_metadata`, read from a broker as any other topic."""

from __future__ import annotations

from kbroker.spark.client import EARLIEST, LATEST, BrokerClient, Topic
from kbroker.spark.errors import KbrokerSourceError
from kbroker.spark.metadata_fetching import fetch_events, tell_skipped
from kbroker.spark.pieces import TailPiece
from kbroker.spark.positions import Partition
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue


class CatalogueFollower:
    """What `__remote_log_metadata` tells; each `read` reads on from where the last one stopped. What of it cannot be
    read is counted, and told in the log unless `is_quiet`.
    """

    def __init__(self, client: BrokerClient, *, is_quiet: bool = False) -> None:
        self._client = client
        self._is_quiet = is_quiet
        self._topic: Topic | None = None
        self._next: dict[Partition, int] = {}
        self._found = Catalogue()

    def read(self) -> Catalogue:
        """All that the topic tells up to where it ends now; empty without that topic. Errors: KbrokerSourceError."""
        topic = self._client.topics([METADATA_TOPIC]).get(METADATA_TOPIC)
        if topic is None or self._topic is None or topic.id != self._topic.id:
            self._next, self._found = {}, Catalogue()
        self._topic = topic
        if topic is None:
            return self._found
        partitions = [(METADATA_TOPIC, index) for index in topic.leaders]
        ends = self._client.offsets(dict.fromkeys(partitions, LATEST))
        if behind := [each for each in partitions if self._next.get(each, 0) < ends[each].offset]:
            starts = self._client.offsets(dict.fromkeys(behind, EARLIEST))
            for partition in behind:
                start = starts[partition].offset
                if start > self._next.get(partition, 0):
                    self._found.is_whole = False
                self._read(topic, partition, max(start, self._next.get(partition, 0)), ends[partition].offset)
        return self._found

    def read_on(self) -> Catalogue:
        """The same as it is now, for good, by the topic that was read before: else all that it told of would seem to be
        gone. Errors: KbrokerSourceError, also for a topic that was deleted or made again since.
        """
        before = self._topic
        found = self.read().copy()
        if before is not None and (self._topic is None or self._topic.id != before.id):
            raise KbrokerSourceError(f"{METADATA_TOPIC} was deleted meanwhile", remedy="start again")
        return found

    def _read(self, topic: Topic, partition: Partition, offset: int, end: int) -> None:
        piece = TailPiece(METADATA_TOPIC, topic.id, partition[1], offset, end)
        self._next[partition] = offset
        for found in fetch_events(self._client, piece, partition_count=len(topic.leaders)):
            # Noted with each answer: who reads on after an error counts nothing twice.
            self._next[partition] = found.next_offset
            if not self._is_quiet:
                tell_skipped(piece, found)
            self._found.unreadable += sum(count for _, count, _ in found.skipped)
            for _, event in found.events:
                self._found.replay_event(event)
