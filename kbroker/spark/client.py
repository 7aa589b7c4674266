"""A blocking client for topics, offsets, epochs and raw batches.

It leaves the records of a Fetch as bytes, so that one decoder serves records from the broker and from the store.

Retriable errors (a leader change, a broker that is starting) are retried for a while; then they become
BrokerUnavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from kbroker.client.cluster import Cluster, UnknownPartition
from kbroker.client.operations import EARLIEST, EARLIEST_LOCAL, LATEST, OffsetAt, by_topic, list_offsets
from kbroker.spark.errors import BrokerUnavailable, InvalidOption, unknown_topic
from kbroker.spark.positions import Partition
from wire.errors import ErrorCode, KafkaError, check, code_of
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.types import ZERO_UUID

__all__ = ["EARLIEST", "EARLIEST_LOCAL", "LATEST", "BrokerClient", "EpochEnd", "Fetched", "OffsetAt", "Topic"]

T = TypeVar("T")

WAIT_MS: Final = 15_000
FETCH_WAIT_MS: Final = 500
FETCH_BYTES: Final = 8 << 20

# The callers of `fetch` handle these errors; retriable ones are retried here.
REFUSED: Final = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE})
GONE: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)
ALSO_RETRIED: Final = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR})
FETCH_BY_NAME: Final = 12
"""The last version of Fetch with the names of topics."""


class Topic(NamedTuple):
    """A topic. Shape: leaders maps partitions to node ids, -1 for no leader; id is zero if the broker is too old."""

    name: str
    id: UUID
    is_internal: bool
    leaders: Mapping[int, int]


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
    aborted: tuple[tuple[int, int], ...] = ()
    """(first_offset, producer_id) of the aborted transactions among the records, if only committed ones are read."""


class BrokerClient:
    """A connected client. Errors: BrokerUnavailable and InvalidOption from the constructor."""

    def __init__(self, settings: Mapping[str, Any], *, wait_ms: int = WAIT_MS) -> None:
        self._wait_ms = wait_ms
        servers = ",".join(settings["bootstrap_servers"])
        try:
            self.cluster = Cluster(settings)
        except (KafkaError, OSError) as error:
            said = error.message if isinstance(error, KafkaError) else str(error)
            raise BrokerUnavailable(
                said if said.startswith("no broker answers") else f"no broker answers at {servers}: {said}",
                remedy="check that the broker runs and that kafka.bootstrap.servers names it",
            ) from error
        except ValueError as error:
            raise InvalidOption(f"kafka.*: {error}", remedy="correct the option") from error

    def close(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- questions ----------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """The existing topics among these names, or all topics."""
        wanted = None if names is None else list(names)
        if wanted == []:
            return {}

        def look() -> dict[str, Topic]:
            found: dict[str, Topic] = {}
            for topic in self.cluster.metadata(wanted).topics:
                if topic.error_code in GONE or topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
                    continue
                check(topic.error_code)
                leaders = {each.partition_index: each.leader_id for each in topic.partitions}
                found[str(topic.name)] = Topic(str(topic.name), topic.topic_id, topic.is_internal, leaders)
            return found

        return self._until(look, "the topics")

    def offsets(
        self, timestamps: Mapping[Partition, int], *, is_committed_only: bool = False
    ) -> dict[Partition, OffsetAt]:
        """ListOffsets: for each partition the offset of a timestamp, or of EARLIEST, LATEST or EARLIEST_LOCAL.

        Errors  UnknownTopic
        """
        with self._errors("the offsets of the partitions"):
            return list_offsets(
                self.cluster,
                timestamps,
                isolation_level=int(is_committed_only),
                timeout_ms=self._wait_ms,
                also=ALSO_RETRIED,
            )

    def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, EpochEnd]:
        """OffsetForLeaderEpoch. Errors: UnknownTopic."""

        def request(wanted: Sequence[Partition]) -> object:
            def of_partition(topic: str, index: int) -> OffsetForLeaderPartition:
                return OffsetForLeaderPartition(partition=index, leader_epoch=epochs[topic, index])

            topics = [
                OffsetForLeaderTopic(topic=topic, partitions=parts) for topic, parts in by_topic(wanted, of_partition)
            ]
            return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

        def read(answer: Any) -> Iterator[tuple[Partition, int, EpochEnd]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    yield (topic.topic, each.partition), each.error_code, EpochEnd(each.leader_epoch, each.end_offset)

        with self._errors("the leader epochs"):
            return self.cluster.ask_leaders(epochs, request, read, timeout_ms=self._wait_ms, also=ALSO_RETRIED)

    def epochs(self, log_starts: Mapping[Partition, int]) -> dict[Partition, list[tuple[int, int]]]:
        """The leader epochs of partitions from these log start offsets on, (leader_epoch, start_offset) ascending. The
        first epoch may be reported to begin at 0, which is never above its first record.

        A broker returns the end of one epoch for each request. So this follows the history downwards from the leader's
        epoch to the epoch that contains the log start offset. For an epoch without records the broker may return
        nothing, as for an epoch that is newer than all; then the previous epoch is requested. For epochs older than all
        that the broker knows, it returns the start of the oldest known epoch; these are not part of the log.
        """
        found: dict[Partition, list[tuple[int, int]]] = {partition: [] for partition in log_starts}
        known = self.cluster.leader_epochs
        if unknown := {topic for topic, index in found if (topic, index) not in known}:
            self.topics(unknown)
        asked = {partition: max(0, known.get(partition, 0)) for partition in found}
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
        is_committed_only: bool = False,
    ) -> Fetched:
        """The batches from the one that contains `offset` on, of which the last may be cut off; b"" if there are none
        within `wait_ms`. Storage errors of a slow tier are retried like all retriable errors.
        """
        topic, index = partition
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(is_committed_only),
            topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])],
        )
        at_most = FETCH_BY_NAME if topic_id == ZERO_UUID else None

        def look() -> Fetched:
            answer = self.cluster.ask(request, self.cluster.leader(partition), at_most=at_most)
            check(answer.error_code)
            (each,) = answer.responses[0].partitions
            if each.error_code not in REFUSED | GONE:
                check(each.error_code)
            return Fetched(
                bytes(each.records or b""),
                each.error_code,
                each.high_watermark,
                each.log_start_offset,
                tuple((one.first_offset, one.producer_id) for one in each.aborted_transactions or ()),
            )

        return self._until(look, f"the records of {topic}-{index} at offset {offset}", partition)

    # --- errors -------------------------------------------------------------------------------------------------------

    def _until(self, look: Callable[[], T], what: str, *partitions: Partition) -> T:
        """Retry `look` while it raises a retriable error."""
        with self._errors(what):
            return self.cluster.retry(look, partitions, timeout_ms=self._wait_ms, also=ALSO_RETRIED)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        servers = self.cluster.servers
        try:
            yield
        except UnknownPartition as error:
            raise unknown_topic(error.topic, error.index) from error
        except KafkaError as error:
            said = error.message or explain(error.code)
            does, remedy = "refuses", "check the broker's log"
            if error.code.retriable or error.code in ALSO_RETRIED:
                does = "does not complete the request for"
                remedy = "check that the broker runs, and start the job again"
            raise BrokerUnavailable(f"the broker at {servers} {does} {what}: {said}", remedy=remedy) from error


def explain(code: int) -> str:
    """Kafka's name for an error code."""
    return f"{code_of(code).name} ({int(code)})"


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
