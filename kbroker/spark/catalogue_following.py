"""What is in the tier, by `__remote_log_metadata`, read from a broker as any other topic."""

from __future__ import annotations

from kbroker.spark.client import EARLIEST, LATEST, BrokerClient, Topic, explain
from kbroker.spark.errors import BrokerUnavailable
from kbroker.spark.positions import Partition
from kbroker.tiered.catalogue import METADATA_TOPIC, Catalogue
from wire.record_batch import batches


class CatalogueFollower:
    """What `__remote_log_metadata` tells; each `read` reads on from where the last one stopped."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
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

    def _read(self, topic: Topic, partition: Partition, offset: int, end: int) -> None:
        while offset < end:
            fetched = self._client.fetch(topic.id, partition, offset)
            if fetched.error_code:
                raise BrokerUnavailable(
                    f"what is in the tier cannot be read: {explain(fetched.error_code)}",
                    remedy="start the job again", topic=partition[0], partition=partition[1], offset=offset,
                )  # fmt: skip
            for batch in batches(fetched.records):
                for record in () if batch.is_control else batch.records():
                    if record.offset >= offset:
                        self._found.replay(record.value)
                offset = batch.next_offset
        self._next[partition] = offset
