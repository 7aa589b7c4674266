"""A broker's records in `__remote_log_metadata`, read by Fetch and decoded by the schemas in Kafka's jar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from compat.oracle.raw import connected
from compat.oracle.schema import Message, decode_tier_record
from compat.tiered.records import last_offset, records, whole_batches

TOPIC = "__remote_log_metadata"
COPY_STARTED, COPY_FINISHED, DELETE_STARTED, DELETE_FINISHED = range(4)
_FETCH = 11


@dataclass(frozen=True, order=True)
class RemoteSegment:
    """One segment according to the metadata topic, without the fields that differ between brokers (ids, clocks).

    Shape  epochs is (leader_epoch, start_offset); states is the order of its states, without repetitions
    """

    start_offset: int
    end_offset: int
    size: int
    max_timestamp_ms: int
    epochs: tuple[tuple[int, int], ...]
    txn_index_empty: bool
    states: tuple[int, ...]

    @property
    def offsets(self) -> tuple[int, int]:
        """The first and the last offset, both inclusive."""
        return self.start_offset, self.end_offset

    @property
    def state(self) -> int:
        """Its current state."""
        return self.states[-1]


@dataclass
class _Reported:
    partition: int
    metadata: Message
    states: list[int] = field(default_factory=list)


class RemoteLog:
    """Follows the metadata topic of one broker, whose address is queried each time; each call reads the new records."""

    def __init__(self, bootstrap_servers: Callable[[], str]) -> None:
        self._servers = bootstrap_servers
        self._next: list[int] = []
        # by topic id, partition and segment id, in the order of their first records
        self._segments: dict[tuple[bytes, int, bytes], _Reported] = {}
        self.metadata_partitions: dict[tuple[bytes, int], set[int]] = {}

    def segments(self, topic_id: bytes, partition: int) -> list[RemoteSegment]:
        """All segments in the topic, including deleted ones, by their start."""
        self._read()
        found = [
            reported for (topic, part, _), reported in self._segments.items() if (topic, part) == (topic_id, partition)
        ]
        return sorted(_segment(reported) for reported in found)

    def live(self, topic_id: bytes, partition: int) -> list[tuple[int, int]]:
        """The offsets of the segments whose copy is finished and whose deletion has not begun."""
        return [each.offsets for each in self.segments(topic_id, partition) if each.state == COPY_FINISHED]

    def states(self) -> dict[tuple[bytes, int, bytes], int]:
        """The state of every segment in the topic, by topic id, partition and segment id."""
        self._read()
        return {key: reported.states[-1] for key, reported in self._segments.items()}

    def _partitions(self) -> int:
        with connected(self._servers()) as connection:
            answer = connection.call("Metadata", 4, {"Topics": [{"Name": TOPIC}], "AllowAutoTopicCreation": False})
        return len(answer["Topics"][0]["Partitions"])

    def _read(self) -> None:
        if not self._next:
            self._next = [0] * self._partitions()
        while self._read_once():
            pass

    def _read_once(self) -> bool:
        """Read new records of all partitions; True if there were any, so that there may be more."""
        if not self._next:
            return False
        wanted = [
            {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
            for partition, offset in enumerate(self._next)
        ]
        request = {"ReplicaId": -1, "SessionEpoch": -1, "Topics": [{"Topic": TOPIC, "Partitions": wanted}]}
        with connected(self._servers()) as connection:
            answer = connection.call("Fetch", _FETCH, request)
        was_more = False
        for part in answer["Responses"][0]["Partitions"]:
            for batch in whole_batches(part["Records"] or b""):
                for record in records(batch):
                    if record.offset >= self._next[part["PartitionIndex"]]:
                        assert record.value is not None, "a tombstone"
                        self._note(part["PartitionIndex"], *decode_tier_record(record.value))
                self._next[part["PartitionIndex"]] = last_offset(batch) + 1
                was_more = True
        return was_more

    def _note(self, metadata_partition: int, name: str, message: Message) -> None:
        identity = message["RemoteLogSegmentId"]
        owner = identity["TopicIdPartition"]
        key = (owner["Id"], owner["Partition"], identity["Id"])
        self.metadata_partitions.setdefault(key[:2], set()).add(metadata_partition)
        if name == "RemoteLogSegmentMetadataRecord":
            # A broker repeats a record if the answer to its Produce is lost.
            reported = self._segments.setdefault(key, _Reported(metadata_partition, message))
            assert reported.metadata == message, f"reported differently: {message}"
        self._segments[key].states.append(message["RemoteLogSegmentState"])


def _segment(reported: _Reported) -> RemoteSegment:
    metadata = reported.metadata
    return RemoteSegment(
        start_offset=metadata["StartOffset"],
        end_offset=metadata["EndOffset"],
        size=metadata["SegmentSizeInBytes"],
        max_timestamp_ms=metadata["MaxTimestampMs"],
        epochs=tuple((each["LeaderEpoch"], each["Offset"]) for each in metadata["SegmentLeaderEpochs"]),
        txn_index_empty=metadata["TxnIndexEmpty"],
        states=tuple(state for state, _ in groupby(reported.states)),
    )


def metadata_partition(topic_id: bytes, partition: int, count: int) -> int:
    """The metadata partition for a partition, by the rule of RemoteLogMetadataTopicPartitioner."""
    most, least = int.from_bytes(topic_id[:8]), int.from_bytes(topic_id[8:])
    value = 1
    for part in ((least ^ least >> 32), (most ^ most >> 32), partition):
        value = (31 * value + part) & 0xFFFFFFFF
    return (_murmur2(value.to_bytes(4)) & 0x7FFFFFFF) % count


def _murmur2(four_bytes: bytes) -> int:
    """Kafka's murmur2 of exactly four bytes."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    mixed = int.from_bytes(four_bytes, "little") * multiplier & mask
    mixed = (mixed ^ mixed >> 24) * multiplier & mask
    found = (0x9747B28C ^ 4) * multiplier & mask ^ mixed
    found = (found ^ found >> 13) * multiplier & mask
    return found ^ found >> 15
