"""A consumer of assigned partitions: it fetches batches from the leaders and decodes them one by one.

Source  KIP-98 (aborted transactions); Fetcher of Apache Kafka 4.3.1
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster, Partition, UnknownPartition, reason_of, throttled
from kbroker.client.operations import by_topic, list_offsets
from wire.errors import ErrorCode, KafkaError, Malformed, check, code_of
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.record_batch import RecordBatch, batches
from wire.record_values import read_values

SETTINGS: Final[Mapping[str, Any]] = {
    "check_crcs": True,
    "fetch_max_bytes": 50 << 20,
    "fetch_max_wait_ms": 500,
    "fetch_min_bytes": 1,
    "group_instance_id": None,
    "heartbeat_interval_ms": 3_000,
    "max_partition_fetch_bytes": 1 << 20,
    "max_poll_interval_ms": 300_000,
    "max_poll_records": 500,
    "metadata_max_age_ms": 300_000,
    "session_timeout_ms": 45_000,
}
FETCH_BY_NAME: Final = 12
"""The last version of Fetch with the names of topics."""
PIECES: Final = 32
"""The most Values of one poll; each has about 1,000 records or fewer."""
ABORT: Final = b"\0\0\0\0"
"""The key of the control record that ends an aborted transaction."""


class Received(NamedTuple):
    """A record as a consumer gets it; timestamp_type is 0 for the producer's time, 1 for the broker's."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Values(NamedTuple):
    """The values of adjacent records of a partition, and their offsets."""

    topic: str
    partition: int
    offsets: Sequence[int]
    values: Sequence[bytes | None]


Decode = Callable[[Partition, RecordBatch], Iterator[Any]]


class Consumer:
    """Errors: KafkaError. OFFSET_OUT_OF_RANGE only if `reset` is None; otherwise the position moves to that end."""

    def __init__(
        self, cluster: Cluster, settings: Mapping[str, Any], *, is_committed_only: bool, reset: int | None = None
    ) -> None:
        self._cluster = cluster
        self._settings = {**SETTINGS, **settings}
        self._isolation_level = int(is_committed_only)
        self._reset = reset
        self._fetched: deque[Iterator[Any]] = deque()
        self.positions: dict[Partition, int] = {}
        """The next offset of each assigned partition."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets on."""
        self.positions = dict(positions)
        self._fetched.clear()

    def poll(self, *, timeout_ms: int, max_records: int | None = None) -> list[Received]:
        """The next records, or none after a time."""
        limit = self._settings["max_poll_records"]
        return self._next(self._received, timeout_ms, limit if max_records is None else min(limit, max_records))

    def poll_values(self, *, timeout_ms: int) -> list[Values]:
        """The values of the next records, or none after a time: several times faster than `poll`."""
        return self._next(self._values, timeout_ms, PIECES)

    def _next(self, decode: Decode, timeout_ms: int, limit: int) -> list[Any]:
        while True:
            while self._fetched:
                try:
                    found = list(islice(self._fetched[0], limit))
                except Malformed as error:
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch cannot be read: {error}") from error
                if found:
                    return found
                self._fetched.popleft()
            if not self._fetch(timeout_ms, decode):
                return []

    def _fetch(self, timeout_ms: int, decode: Decode) -> bool:
        """Ask all leaders at once; return whether records have arrived."""
        by_leader: dict[int, list[Partition]] = {}
        lost = [each for each in self.positions if self._cluster.leaders.get(each, -1) < 0]
        if lost:
            self._look_up(lost)
        for partition in self.positions:
            if (leader := self._cluster.leaders.get(partition, -1)) >= 0:
                by_leader.setdefault(leader, []).append(partition)
        if not by_leader:
            if self.positions:
                self._cluster.waits_for("no partition has a known leader")
            self._cluster.wait(timeout_ms)
        asked = []
        outside: list[Partition] = []
        for leader, partitions in by_leader.items():
            try:
                self._cluster.send(self._request(partitions, timeout_ms), leader, at_most=FETCH_BY_NAME)
                asked.append(leader)
            except KafkaError as error:
                self._failed(partitions, error)
        for leader in asked:
            try:
                answer = self._cluster.receive(leader)
                throttled(self._cluster, answer)
                check(answer.error_code)
            except KafkaError as error:
                self._failed(by_leader[leader], error)
                continue
            for topic in answer.responses:
                for each in topic.partitions:
                    if each.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and self._reset is not None:
                        outside.append((topic.topic, each.partition_index))
                    else:
                        self._take((topic.topic, each.partition_index), each, decode)
        if outside and self._reset is not None:  # now that no response is due any more
            self.positions |= self.ends(outside, self._reset)
        return bool(self._fetched)

    def _request(self, partitions: Iterable[Partition], timeout_ms: int) -> FetchRequest:
        settings = self._settings

        def of_partition(topic: str, index: int) -> FetchPartition:
            return FetchPartition(
                partition=index,
                fetch_offset=self.positions[topic, index],
                partition_max_bytes=settings["max_partition_fetch_bytes"],
            )

        topics = [FetchTopic(topic=topic, partitions=parts) for topic, parts in by_topic(partitions, of_partition)]
        return FetchRequest(
            max_wait_ms=min(settings["fetch_max_wait_ms"], timeout_ms), min_bytes=settings["fetch_min_bytes"],
            max_bytes=settings["fetch_max_bytes"], isolation_level=self._isolation_level,
            topics=topics,
        )  # fmt: skip

    def _take(self, partition: Partition, answer: Any, decode: Decode) -> None:
        if answer.error_code:
            code = code_of(answer.error_code)
            self._failed([partition], KafkaError(code, f"{partition[0]}-{partition[1]}: {code.name}"))
        elif answer.records:
            aborted = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
            self._fetched.append(self._records(partition, answer.records, aborted, decode))

    def _records(
        self, partition: Partition, data: Any, aborted: list[tuple[int, int]], decode: Decode
    ) -> Iterator[Any]:  # fmt: skip
        """The records of an answer, from the position on, without those of aborted transactions."""
        ignored: set[int] = set()
        found = batches(data)
        for batch in found:
            while aborted and aborted[0][0] <= batch.last_offset:
                ignored.add(aborted.pop(0)[1])
            if batch.next_offset > self.positions[partition]:
                if self._settings["check_crcs"] and not batch.crc_is_valid():
                    said = f"the batch at offset {batch.base_offset} of {partition[0]}-{partition[1]} has a wrong CRC"
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, said)
                if batch.is_control:
                    if any(record.key == ABORT for record in batch.records()):
                        ignored.discard(batch.producer_id)
                elif not (batch.is_transactional and batch.producer_id in ignored):
                    yield from decode(partition, batch)
                self.positions[partition] = batch.next_offset

    def _received(self, partition: Partition, batch: RecordBatch) -> Iterator[Received]:
        kind = int(batch.is_log_append_time)
        for offset, timestamp, key, value, headers in batch.records():
            if offset >= self.positions[partition]:
                self.positions[partition] = offset + 1
                yield Received(*partition, offset, timestamp, kind, key, value, headers)

    def _values(self, partition: Partition, batch: RecordBatch) -> Iterator[Values]:
        for offsets, values in read_values(batch):
            first = bisect_left(offsets, self.positions[partition])
            if first < len(offsets):
                self.positions[partition] = offsets[-1] + 1
                yield Values(*partition, offsets[first:], values[first:])

    def _failed(self, partitions: Sequence[Partition], error: KafkaError) -> None:
        """Forget the leaders after a retriable error; raise others."""
        if not error.code.retriable or error.code is ErrorCode.CORRUPT_MESSAGE:
            raise error
        for partition in partitions:
            self._cluster.leaders.pop(partition, None)
        self._cluster.waits_for(reason_of(error, partitions))
        self._cluster.wait(self._cluster.retry_ms)

    def _look_up(self, partitions: Sequence[Partition]) -> None:
        try:
            self._cluster.refresh(partitions)
        except UnknownPartition as error:  # it may appear again
            self._cluster.waits_for(reason_of(error))
            self._cluster.wait(self._cluster.retry_ms)

    def ends(self, partitions: Iterable[Partition], which: int) -> dict[Partition, int]:
        """The first or the next offset of partitions: EARLIEST or LATEST."""
        specs = dict.fromkeys(partitions, which)
        found = list_offsets(self._cluster, specs, isolation_level=self._isolation_level)
        return {partition: each.offset for partition, each in found.items()}
