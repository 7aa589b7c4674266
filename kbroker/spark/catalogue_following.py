"""The tier's metadata, read from the topic `__remote_log_metadata` through a broker."""

from __future__ import annotations

from kbroker.spark.client import EARLIEST, LATEST, BrokerClient, Topic
from kbroker.spark.errors import KbrokerSourceError
from kbroker.spark.metadata_fetching import fetch_events, tell_skipped
from kbroker.spark.pieces import TailPiece
from kbroker.spark.positions import Partition
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue


class CatalogueFollower:
    """The contents of `__remote_log_metadata`. Each `read` continues where the previous one stopped.

    Records that cannot be read are counted, and logged unless `is_quiet`.
    """

    def __init__(self, client: BrokerClient, *, is_quiet: bool = False) -> None:
        self._client = client
        self._is_quiet = is_quiet
        self._topic: Topic | None = None
        self._next: dict[Partition, int] = {}
        self._found = Catalogue()

    def read(self) -> Catalogue:
        """The metadata up to the topic's current end; empty if the topic does not exist. Errors: KbrokerSourceError."""
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
        """Like `read`, but returns a copy, and fails if the topic was deleted or created again since the last `read`:
        otherwise all segments would seem to be deleted. Errors: KbrokerSourceError.
        """
        before = self._topic
        found = self.read().copy()
        if before is not None and (self._topic is None or self._topic.id != before.id):
            raise KbrokerSourceError(f"{METADATA_TOPIC} was deleted while it was read", remedy="start again")
        return found

    def _read(self, topic: Topic, partition: Partition, offset: int, end: int) -> None:
        piece = TailPiece(METADATA_TOPIC, topic.id, partition[1], offset, end)
        self._next[partition] = offset
        for found in fetch_events(self._client, piece, partition_count=len(topic.leaders)):
            # Updated after each answer, so that a retry after an error counts nothing twice.
            self._next[partition] = found.next_offset
            if not self._is_quiet:
                tell_skipped(piece, found)
            self._found.unreadable += sum(count for _, count, _ in found.skipped)
            for _, event in found.events:
                self._found.replay_event(event)
