"""What is asked of a broker, and waited for: topics, offsets, epochs, and batches as they lie.

The client is kafka-python, so it reaches every broker that others reach, with TLS and SASL. Its requests are sent as
they are and what comes of a Fetch is left as bytes: the same code decodes a batch wherever it was read.

Errors that pass by themselves (another leader, a broker that is being started) are waited out for a while; then it is
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
# Of these one knows what to do; all that pass by themselves are asked again.
REFUSED: Final = frozenset({OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE})
GONE: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID})


class Topic(NamedTuple):
    """A topic. Shape: leaders maps its partitions to node ids, -1 where there is none; id is zero of an old broker."""

    name: str
    id: UUID
    is_internal: bool
    leaders: Mapping[int, int]


class OffsetAt(NamedTuple):
    """An answer of ListOffsets; offset -1 where there is none."""

    offset: int
    timestamp_ms: int


class EpochEnd(NamedTuple):
    """The newest epoch that is not newer than the one asked for, and where it ends; -1 and -1 where there is none."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a Fetch brought for one partition. Shape: error_code is 0, one of REFUSED, or of GONE."""

    records: bytes
    error_code: int
    high_watermark: int
    log_start_offset: int


class BrokerClient:
    """A connected client. Errors: BrokerUnavailable, InvalidOption when made."""

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
        """Let go of the connections."""
        self._client.close()

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- questions ----------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """The topics of these names that there are, or all."""
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
        """ListOffsets: for each partition the offset of a time, or of one of the ends above.

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

        return self._of_leaders(timestamps, request, read, "where the partitions begin and end")

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
        """The leader epochs that partitions have from these log_start_offsets on, (leader_epoch, start_offset)
        ascending. The first may be told to begin at 0, which is nowhere above its records.

        A broker tells one epoch's end at a time: so the history is followed from the leader's own on downwards, to the
        one that the log begins in. Of an epoch in which nothing was written it may know nothing, as of one that is
        newer than all: then the one before is asked for. Of those that are older than all that it knows it says that
        each ends where the oldest begins; none of them is part of the log.
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
                if history:  # where this epoch ends, the one that was found before it begins
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
        """The batches from the one that holds `offset` on, the last of them perhaps cut off; b"" if there is nothing
        for `wait_ms`. Storage errors, of a tier that is slow, are asked again like all that pass.
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
        """The node that leads a partition as far as is known; -1 where it has to be asked for first."""
        return self._leaders.get(partition, -1)

    def _ask(self, request: Any, node_id: int | None) -> Any:
        if node_id == -1:
            raise _NoLeader
        # The client's own way for requests that its methods do not make.
        manager = self._client._manager
        return manager.run(manager.send, request, node_id)

    def _of_leaders(
        self,
        partitions: Iterable[Partition],
        request: Callable[[Sequence[Partition]], Any],
        read: Callable[[Any], Iterable[tuple[Partition, int, T]]],
        what: str,
    ) -> dict[Partition, T]:
        """Ask the leader of each partition, all of one leader at once."""
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
        """What `look` finds, as soon as it is not an error's code that passes by itself."""
        timer, pause_s = self._kafka.Timer(self._wait_ms), 0.0
        while True:
            try:
                found = look()
            except _NoLeader:
                said = "no leader of the partition is known"
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
                        f"the broker at {self._servers} refuses {what}: {said}", remedy="see the broker's log"
                    )
            if timer.expired:
                raise BrokerUnavailable(
                    f"the broker at {self._servers} does not tell {what}: {said}",
                    remedy="see that the broker runs, and start the job again",
                )
            # A leader that was only never asked for is known at once.
            Event().wait(pause_s)
            pause_s = PAUSE_S
            self._refresh(partitions)

    def _refresh(self, partitions: Sequence[Partition]) -> None:
        """Learn the leaders anew. Errors: UnknownTopic for a partition that there is not."""
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
        """Of a broker that joined, or left, the client itself takes note every few minutes; one is wanted now."""
        manager = self._client._manager
        try:
            manager.run(manager.cluster.refresh_metadata)
        except self._kafka.KafkaError:
            return

    def _unavailable(self, error: Exception) -> KbrokerSourceError:
        said = str(error) or type(error).__name__
        return BrokerUnavailable(
            f"no broker answers at {self._servers}: {said}",
            remedy="see that the broker runs and that kafka.bootstrap.servers names it",
        )


class _NoLeader(Exception):
    """Nobody leads the partition, as far as is known."""


def explain(code: int) -> str:
    """What Kafka says of an error's code."""
    from kbroker.spark.kafka_python import for_code  # noqa: PLC0415  (whoever has a code has imported it already)

    error = for_code(code)
    return f"{error.__name__} ({code})"


def _by_topic(partitions: Iterable[Partition], of_partition: Callable[[str, int], T]) -> list[tuple[str, list[T]]]:
    """By topic what a request says of each of its partitions."""
    found: dict[str, list[T]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(of_partition(topic, index))
    return list(found.items())


_OPEN: dict[tuple[object, ...], BrokerClient] = {}


@contextmanager
def kept_client(settings: Mapping[str, Any]) -> Iterator[BrokerClient]:
    """A client that stays connected as long as the process lives, unless something goes wrong with it."""
    key = tuple(sorted((name, repr(value)) for name, value in settings.items()))
    client = _OPEN.pop(key, None) or BrokerClient(settings)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _OPEN[key] = client
