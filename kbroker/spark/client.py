"""A blocking client for topics, offsets, epochs and raw batches.

It uses kafka-python's connections, so it reaches any broker, with TLS and SASL. It sends its own requests and leaves
the records of a Fetch as bytes, so that one decoder serves records from the broker and from the store.

Retriable errors (a leader change, a broker that is starting) are retried for a while; then they become
BrokerUnavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from kbroker.spark.errors import BrokerUnavailable, InvalidOption, KbrokerSourceError, unknown_topic
from kbroker.spark.positions import Partition
from wire.types import ZERO_UUID

T = TypeVar("T")

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
WAIT_MS: Final = 15_000
PAUSE_S: Final = 0.1
FETCH_WAIT_MS: Final = 500
FETCH_BYTES: Final = 8 << 20

OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
INVALID_TOPIC_EXCEPTION: Final = 17
UNKNOWN_TOPIC_ID: Final = 100
INCONSISTENT_TOPIC_ID: Final = 103
# The callers of `fetch` handle these errors; retriable ones are retried here.
REFUSED: Final = frozenset({OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE})
GONE: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID})


class Topic(NamedTuple):
    """A topic. Shape: leaders maps partitions to node ids, -1 for no leader; id is zero if the broker is too old."""

    name: str
    id: UUID
    is_internal: bool
    leaders: Mapping[int, int]


class OffsetAt(NamedTuple):
    """An answer of ListOffsets; offset is -1 if there is none."""

    offset: int
    timestamp_ms: int


class EpochEnd(NamedTuple):
    """The newest epoch at or below the requested one, and its end offset; -1 and -1 if there is none."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer of a Fetch for one partition. Shape: error_code is 0, or in REFUSED or GONE."""

    records: bytes
    error_code: int
    high_watermark: int
    log_start_offset: int


class BrokerClient:
    """A connected client. Errors: BrokerUnavailable and InvalidOption from the constructor."""

    def __init__(self, settings: Mapping[str, Any], *, wait_ms: int = WAIT_MS) -> None:
        from kbroker.spark import kafka_python  # noqa: PLC0415  (see there)

        self._kafka = kafka_python
        self._servers = ",".join(settings["bootstrap_servers"])
        self._wait_ms = wait_ms
        self._leaders: dict[Partition, int] = {}
        self._leader_epochs: dict[Partition, int] = {}
        try:
            self._client = self._kafka.KafkaAdminClient(**settings)
        except (self._kafka.KafkaError, OSError) as error:
            raise self._unavailable(error) from error
        except ValueError as error:
            raise InvalidOption(f"kafka.*: {error}", remedy="correct the option") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- questions ----------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """The existing topics among these names, or all topics."""
        wanted = (
            None if names is None else [self._kafka.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        )
        if wanted == []:
            return {}

        def look() -> dict[str, Topic] | int:
            answer = self._ask(self._kafka.MetadataRequest(topics=wanted, allow_auto_topic_creation=False), None)
            found: dict[str, Topic] = {}
            for topic in answer.topics:
                if topic.error_code in GONE or topic.error_code == INVALID_TOPIC_EXCEPTION:
                    continue
                if topic.error_code:
                    return int(topic.error_code)
                leaders = {int(each.partition_index): int(each.leader_id) for each in topic.partitions}
                for each in topic.partitions:
                    self._leader_epochs[topic.name, int(each.partition_index)] = int(each.leader_epoch)
                found[topic.name] = Topic(topic.name, topic.topic_id or ZERO_UUID, bool(topic.is_internal), leaders)
            return found

        found = self._until(look, "the topics")
        for topic in found.values():
            self._leaders.update({(topic.name, index): leader for index, leader in topic.leaders.items()})
        return found

    def offsets(self, timestamps: Mapping[Partition, int]) -> dict[Partition, OffsetAt]:
        """ListOffsets: for each partition the offset of a timestamp, or of EARLIEST, LATEST or EARLIEST_LOCAL.

        Errors  UnknownTopic
        """
        kind = self._kafka.ListOffsetsRequest.ListOffsetsTopic

        def request(wanted: Sequence[Partition]) -> Any:
            def of_partition(topic: str, index: int) -> Any:
                return kind.ListOffsetsPartition(partition_index=index, timestamp=timestamps[topic, index])

            topics = [kind(name=topic, partitions=parts) for topic, parts in _by_topic(wanted, of_partition)]
            return self._kafka.ListOffsetsRequest(
                replica_id=-1, isolation_level=0, topics=topics, timeout_ms=self._wait_ms
            )

        def read(answer: Any) -> Iterator[tuple[Partition, int, OffsetAt]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    found = OffsetAt(each.offset, each.timestamp)
                    yield (topic.name, each.partition_index), each.error_code, found

        return self._of_leaders(timestamps, request, read, "the offsets of the partitions")

    def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, EpochEnd]:
        """OffsetForLeaderEpoch. Errors: UnknownTopic."""
        kind = self._kafka.OffsetForLeaderEpochRequest.OffsetForLeaderTopic

        def request(wanted: Sequence[Partition]) -> Any:
            def of_partition(topic: str, index: int) -> Any:
                epoch = epochs[topic, index]
                return kind.OffsetForLeaderPartition(partition=index, current_leader_epoch=-1, leader_epoch=epoch)

            topics = [kind(topic=topic, partitions=parts) for topic, parts in _by_topic(wanted, of_partition)]
            return self._kafka.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

        def read(answer: Any) -> Iterator[tuple[Partition, int, EpochEnd]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    yield (topic.topic, each.partition), each.error_code, EpochEnd(each.leader_epoch, each.end_offset)

        return self._of_leaders(epochs, request, read, "the leader epochs")

    def epochs(self, log_starts: Mapping[Partition, int]) -> dict[Partition, list[tuple[int, int]]]:
        """The leader epochs of partitions from these log start offsets on, (leader_epoch, start_offset) ascending. The
        first epoch may be reported to begin at 0, which is never above its first record.

        A broker returns the end of one epoch for each request. So this follows the history downwards from the leader's
        epoch to the epoch that contains the log start offset. For an epoch without records the broker may return
        nothing, as for an epoch that is newer than all; then the previous epoch is requested. For epochs older than all
        that the broker knows, it returns the start of the oldest known epoch; these are not part of the log.
        """
        found: dict[Partition, list[tuple[int, int]]] = {partition: [] for partition in log_starts}
        if unknown := {topic for topic, index in found if (topic, index) not in self._leader_epochs}:
            self.topics(unknown)
        asked = {partition: max(0, self._leader_epochs.get(partition, 0)) for partition in found}
        while asked:
            ends = self.epoch_ends(asked)
            before, asked = asked, {}
            for partition, (epoch, end) in ends.items():
                history = found[partition]
                if epoch < 0 and not history and before[partition] > 0:
                    asked[partition] = before[partition] - 1
                    continue
                if history:  # the newer epoch begins where this one ends
                    history[-1] = (history[-1][0], max(0, end))
                if len(history) > 1 and history[-1][1] >= history[-2][1]:
                    history.pop()
                elif epoch >= 0 and (not history or end > log_starts[partition]):
                    history.append((epoch, 0))
                    if epoch > 0 and end > log_starts[partition]:
                        asked[partition] = epoch - 1
        return {partition: history[::-1] for partition, history in found.items()}

    # --- records ------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        topic_id: UUID,
        partition: Partition,
        offset: int,
        *,
        max_bytes: int = FETCH_BYTES,
        wait_ms: int = FETCH_WAIT_MS,
    ) -> Fetched:
        """The batches from the one that contains `offset` on, of which the last may be cut off; b"" if there are none
        within `wait_ms`. Storage errors of a slow tier are retried like all retriable errors.
        """
        topic, index = partition
        kind = self._kafka.FetchRequest.FetchTopic
        wanted = kind.FetchPartition(
            partition=index, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1, log_start_offset=-1,
            partition_max_bytes=max_bytes,
        )  # fmt: skip

        def look() -> Fetched | int:
            request = self._kafka.FetchRequest(
                replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, isolation_level=0,
                session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
                topics=[kind(topic=topic, topic_id=topic_id, partitions=[wanted])],
            )  # fmt: skip
            answer = self._ask(request, self._leader(partition))
            if answer.error_code:
                return int(answer.error_code)
            (each,) = answer.responses[0].partitions
            code = int(each.error_code)
            if code and code not in REFUSED | GONE:
                return code
            return Fetched(bytes(each.records or b""), code, each.high_watermark, each.log_start_offset)

        return self._until(look, f"the records of {topic}-{index} at offset {offset}", partition)

    # --- sending ------------------------------------------------------------------------------------------------------

    def _leader(self, partition: Partition) -> int:
        """The node id of the partition's leader; -1 if it is not known yet."""
        return self._leaders.get(partition, -1)

    def _ask(self, request: Any, node_id: int | None) -> Any:
        if node_id == -1:
            raise _NoLeader
        # How the client's own methods send requests.
        manager = self._client._manager
        return manager.run(manager.send, request, node_id)

    def _of_leaders(
        self,
        partitions: Iterable[Partition],
        request: Callable[[Sequence[Partition]], Any],
        read: Callable[[Any], Iterable[tuple[Partition, int, T]]],
        what: str,
    ) -> dict[Partition, T]:
        """Ask the leaders of the partitions, with one request to each leader."""
        found: dict[Partition, T] = {}
        missing = list(partitions)

        def look() -> dict[Partition, T] | int:
            nonlocal missing
            by_leader: dict[int, list[Partition]] = {}
            for partition in missing:
                by_leader.setdefault(self._leader(partition), []).append(partition)
            failed = 0
            for leader, wanted in by_leader.items():
                for partition, code, answer in read(self._ask(request(wanted), leader)):
                    if code:
                        failed = code
                        self._leaders.pop(partition, None)
                    else:
                        found[partition] = answer
            missing = [partition for partition in missing if partition not in found]
            return failed or found

        return self._until(look, what, *missing) if missing else found

    def _until(self, look: Callable[[], T | int], what: str, *partitions: Partition) -> T:
        """Retry `look` until it returns something other than a retriable error code."""
        timer, pause_s = self._kafka.Timer(self._wait_ms), 0.0
        while True:
            try:
                found = look()
            except _NoLeader:
                said = "the partition has no known leader"
            except self._kafka.KafkaError as error:
                said = str(error) or type(error).__name__
                if isinstance(error, self._kafka.UnknownBrokerIdError):
                    self._learn_brokers()
                elif not getattr(error, "retriable", False):
                    raise self._unavailable(error) from error
            else:
                if not isinstance(found, int):
                    return found
                said = explain(found)
                if found not in GONE and not getattr(self._kafka.for_code(found), "retriable", False) and found != -1:
                    raise BrokerUnavailable(
                        f"the broker at {self._servers} refuses {what}: {said}", remedy="check the broker's log"
                    )
            if timer.expired:
                raise BrokerUnavailable(
                    f"the broker at {self._servers} does not complete the request for {what}: {said}",
                    remedy="check that the broker runs, and start the job again",
                )
            # No pause the first time: maybe the leader was just never looked up.
            Event().wait(pause_s)
            pause_s = PAUSE_S
            self._refresh(partitions)

    def _refresh(self, partitions: Sequence[Partition]) -> None:
        """Update the known leaders. Errors: UnknownTopic for a partition that does not exist."""
        if not partitions:
            return
        names = sorted({topic for topic, _ in partitions})
        try:
            answer = self._ask(
                self._kafka.MetadataRequest(
                    topics=[self._kafka.MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                    allow_auto_topic_creation=False,
                ),
                None,
            )
        except self._kafka.KafkaError:
            return
        for topic in answer.topics:
            if topic.error_code in GONE:
                raise unknown_topic(topic.name)
            for each in topic.partitions:
                self._leaders[topic.name, each.partition_index] = each.leader_id
        for topic_name, index in partitions:
            if (topic_name, index) not in self._leaders:
                raise unknown_topic(topic_name, index)

    def _learn_brokers(self) -> None:
        """Refresh the list of brokers. The client itself does that only every few minutes."""
        manager = self._client._manager
        try:
            manager.run(manager.cluster.refresh_metadata)
        except self._kafka.KafkaError:
            return

    def _unavailable(self, error: Exception) -> KbrokerSourceError:
        said = str(error) or type(error).__name__
        return BrokerUnavailable(
            f"no broker answers at {self._servers}: {said}",
            remedy="check that the broker runs and that kafka.bootstrap.servers names it",
        )


class _NoLeader(Exception):
    """The partition has no known leader."""


def explain(code: int) -> str:
    """Kafka's name for an error code."""
    from kbroker.spark.kafka_python import for_code  # noqa: PLC0415  (imported already if there is a code)

    error = for_code(code)
    return f"{error.__name__} ({code})"


def _by_topic(partitions: Iterable[Partition], of_partition: Callable[[str, int], T]) -> list[tuple[str, list[T]]]:
    """The partitions of a request, grouped by topic."""
    found: dict[str, list[T]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(of_partition(topic, index))
    return list(found.items())


_OPEN: dict[tuple[object, ...], BrokerClient] = {}


@contextmanager
def kept_client(settings: Mapping[str, Any]) -> Iterator[BrokerClient]:
    """A client that stays connected for the life of the process, unless the caller's block raises."""
    key = tuple(sorted((name, repr(value)) for name, value in settings.items()))
    client = _OPEN.pop(key, None) or BrokerClient(settings)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _OPEN[key] = client
