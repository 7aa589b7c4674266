"""How a follower copies partitions from one source broker: requests, sessions, and what each answer means.

Theory of operation: a follower fetches from its log end offset. The request acknowledges all earlier records, so there
is no other acknowledgement. It carries the leader epoch of the last record, and the leader answers a diverging epoch if
its own log ended that epoch earlier: the follower truncates to where both histories agree, and fetches again. Repeated,
this finds the last common record, one epoch of either side at a time (KIP-279).

One `ReplicaFetcher` holds the partitions that this broker copies from one source. It keeps a fetch session (KIP-227),
so a request names only partitions that have changed, and an idle fetcher costs the same with one partition as with
thousands. There is one request in flight. If a partition is removed, or gets another leader epoch, before the answer
arrives, its object is dropped, and the answer for a dropped object is ignored. A partition with an error leaves the
session for `replica.fetch.backoff.ms`, because the leader answers errors at once.

Everything here is pure; `kbroker/broker/fetchers.py` sends the requests, `kbroker/broker/follower_logs.py` changes the
logs.

Source: KIP-101, KIP-227, KIP-279, KIP-320, KIP-595, KIP-903; AbstractFetcherThread, ReplicaFetcherThread and
RemoteLeaderEndPoint of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from kbroker.replication.fetch_session import INITIAL_EPOCH, LAST_EPOCH, NO_SESSION
from kbroker.replication.partition import Partition
from kbroker.storage.leader_epoch import UNDEFINED_EPOCH, LeaderEpochs
from wire.errors import ErrorCode
from wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

PartitionId = tuple[UUID, int]
"""Topic id and index."""

# Followers send no ApiVersions: the finalized metadata.version decides which version every broker understands.
# (first metadata.version, version of the API)
_FETCH_VERSIONS: Final = ((0, 13), (9, 14), (10, 15), (19, 16), (21, 17), (27, 18))
_LIST_OFFSETS_VERSIONS: Final = ((0, 7), (9, 8), (21, 9), (25, 10), (29, 11))
FIRST_VERSION_WITH_REPLICA_STATE: Final = 15
OFFSET_FOR_LEADER_EPOCH_VERSION: Final = 4
FIRST_DELAY_MS: Final = 10


def fetch_version(metadata_version: int) -> int:
    """The version of Fetch that followers use at a metadata.version level."""
    return _at_level(_FETCH_VERSIONS, metadata_version)


def list_offsets_version(metadata_version: int) -> int:
    """The version of ListOffsets that followers use at a metadata.version level."""
    return _at_level(_LIST_OFFSETS_VERSIONS, metadata_version)


def _at_level(versions: tuple[tuple[int, int], ...], metadata_version: int) -> int:
    return versions[bisect_right(versions, metadata_version, key=lambda row: row[0]) - 1][1]


@dataclass(slots=True, eq=False)
class Followed:
    """One partition that this broker copies, at one leader epoch.

    Units  offsets count records; ready_ms is monotonic time: the partition is not fetched before it
    Note   is_stopped: the partition is not fetched until newer metadata replace this object
    Note   is_dropped: this object is no longer in use, and an answer that arrives for it is ignored
    Note   failures counts the errors since the last good answer
    Note   lag is the leader's high watermark minus the log end offset at the last answer, None before it
    """

    partition: Partition
    leader_epoch: int
    fetch_offset: int = field(default=-1, init=False)
    last_fetched_epoch: int = field(default=-1, init=False)
    log_start_offset: int = field(default=-1, init=False)
    ready_ms: int = field(default=0, init=False)
    is_stopped: bool = field(default=False, init=False)
    is_dropped: bool = field(default=False, init=False)
    lag: int | None = field(default=None, init=False)
    failures: int = field(default=0, init=False)
    id: PartitionId = field(init=False)

    def __post_init__(self) -> None:
        self.id = (self.partition.topic_id, self.partition.index)
        self.take_position()

    def take_position(self) -> bool:
        """Take the position to fetch from from the log; False if it is unchanged."""
        log = self.partition.log
        position = (log.log_end_offset, log.leader_epochs.latest, log.log_start_offset)
        if position == (self.fetch_offset, self.last_fetched_epoch, self.log_start_offset):
            return False
        self.fetch_offset, self.last_fetched_epoch, self.log_start_offset = position
        return True

    @property
    def is_current(self) -> bool:
        """Whether this object is in use, and the partition still follows its leader epoch."""
        partition = self.partition
        return not self.is_dropped and partition.is_follower and partition.leader_epoch == self.leader_epoch


class FetchLimits(NamedTuple):
    """The bounds of each request of a follower. Units: bytes, ms."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int


class Step(Enum):
    """What a follower does with the answer for one partition."""

    APPEND = "append the records and take the leader's offsets"
    TRUNCATE = "truncate to the point where the histories agree"
    LOOK_UP = "ask the leader for its offsets, because the fetch offset is out of range"
    BUILD_FROM_TIER = "only the tier has the offset: build the state before the leader's local log start from it"
    AWAIT_METADATA = "stop until newer metadata arrive"
    DELAY = "back off and retry"


_STEPS: Final[dict[int, Step]] = {
    ErrorCode.NONE: Step.APPEND,
    ErrorCode.OFFSET_OUT_OF_RANGE: Step.LOOK_UP,
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: Step.BUILD_FROM_TIER,
    ErrorCode.FENCED_LEADER_EPOCH: Step.AWAIT_METADATA,
}


def delay_ms(failures: int, backoff_ms: int) -> int:
    """The pause after so many failures in a row; backoff_ms is the longest."""
    return min(FIRST_DELAY_MS << min(failures - 1, 20), backoff_ms)


def step_for(data: PartitionData) -> Step:
    """What to do with the answer for a partition whose request had the current leader epoch."""
    if data.error_code == ErrorCode.NONE and data.diverging_epoch is not None and data.diverging_epoch.epoch >= 0:
        return Step.TRUNCATE
    return step_for_code(data.error_code)


def step_for_code(code: int) -> Step:
    """What to do after an error, or NONE."""
    return _STEPS.get(code, Step.DELAY)


def truncation_offset(leaders_epoch: int, leaders_end_offset: int, epochs: LeaderEpochs, *, log_end_offset: int) -> int:
    """The offset to which a follower truncates after a diverging epoch.

    The leader names the largest epoch that it has and that is not above the follower's, with its end. If the follower
    does not have that epoch, it truncates to the end of its own largest epoch below, and asks again (KIP-279).
    """
    known_epoch, own_end_offset = epochs.end_offset_for(leaders_epoch, log_end_offset)
    if known_epoch == UNDEFINED_EPOCH:
        return min(leaders_end_offset, log_end_offset)
    if known_epoch != leaders_epoch:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, leaders_end_offset, log_end_offset)


class LocalStart(NamedTuple):
    """Where a leader's local log starts, and the leader epoch of the record before it, which only the tier has; the
    leader's log start offset and high watermark.
    """

    offset: int
    epoch_before: int
    log_start_offset: int
    high_watermark: int


def epoch_before(offset: int, leader_epoch: int, earlier_epoch: int, earlier_end_offset: int) -> int:
    """The leader epoch of the record before `offset`, which is the first local one and has leader_epoch.

    The leader names the largest epoch below leader_epoch, with its end; epochs without records are left out. If that
    epoch ends before the record, the record has leader_epoch too.
    """
    return earlier_epoch if earlier_end_offset >= offset else leader_epoch


class ReplicaFetcher:
    """The partitions that this broker copies from one source, and their fetch session.

    Shape      partitions maps the topic id and index to a partition
    Invariant  each partition is in the session, or in _changed, or delayed, or stopped
    Note       one request is in flight at a time: `request`, then `take` or `start_again`
    """

    def __init__(self, broker_id: int) -> None:
        self.partitions: dict[PartitionId, Followed] = {}
        self._broker_id = broker_id
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        self._in_session: dict[PartitionId, Followed] = {}
        self._changed: dict[PartitionId, Followed] = {}
        self._delayed: dict[PartitionId, Followed] = {}
        self._left: set[PartitionId] = set()  # members of the session that the next request removes

    def follow(self, followed: Followed) -> None:
        """Begin to copy a partition, or replace it after a new leader epoch."""
        self.drop(followed.id)
        self.partitions[followed.id] = followed
        self._changed[followed.id] = followed

    def drop(self, partition_id: PartitionId) -> None:
        """Stop copying a partition, if it is copied."""
        self._leave(partition_id)
        followed = self.partitions.pop(partition_id, None)
        if followed is not None:
            followed.is_dropped = True

    def note_position(self, followed: Followed) -> None:
        """The log of a partition may have changed: the next request has its new position."""
        if self._copies(followed) and followed.take_position():
            self._changed[followed.id] = followed

    def delay(self, followed: Followed, until_ms: int) -> None:
        """Do not fetch a partition before `until_ms`."""
        if self._copies(followed):
            followed.ready_ms = until_ms
            self._leave(followed.id)
            self._delayed[followed.id] = followed

    def stop(self, followed: Followed) -> None:
        """Do not fetch a partition until `follow` replaces it."""
        if self._copies(followed):
            followed.is_stopped = True
            self._leave(followed.id)

    def _copies(self, followed: Followed) -> bool:
        return self.partitions.get(followed.id) is followed and not followed.is_stopped

    def _leave(self, partition_id: PartitionId) -> None:
        self._changed.pop(partition_id, None)
        self._delayed.pop(partition_id, None)
        if partition_id in self._in_session:
            self._left.add(partition_id)

    def next_ready_ms(self) -> int | None:
        """When the next delayed partition is ready; None if none is delayed."""
        return min((followed.ready_ms for followed in self._delayed.values()), default=None)

    def start_again(self) -> None:
        """An answer may be lost: the next request is a full one, and names the old session for the source to drop."""
        self._session_epoch = INITIAL_EPOCH
        self._in_session = {}
        self._left = set()
        self._changed = {
            partition_id: followed
            for partition_id, followed in self.partitions.items()
            if not followed.is_stopped and partition_id not in self._delayed
        }

    # Requests

    def request(self, now_ms: int, limits: FetchLimits, *, broker_epoch: int, version: int) -> FetchRequest | None:
        """The next request; None if there is no partition to fetch now."""
        for partition_id, followed in [*self._delayed.items()]:
            if followed.ready_ms <= now_ms:
                del self._delayed[partition_id]
                followed.take_position()
                self._changed[partition_id] = followed
        changed, self._changed = self._changed, {}
        forgotten = [partition_id for partition_id in self._left if partition_id not in changed]
        self._left = set()
        for partition_id in forgotten:
            del self._in_session[partition_id]
        self._in_session.update(changed)
        if not self._in_session:
            self._session_epoch = INITIAL_EPOCH  # the next request replaces the session that it names
            return None
        is_full = self._session_epoch == INITIAL_EPOCH
        request = FetchRequest(
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=[_asked(one, limits.partition_max_bytes) for one in asked])
                for topic_id, asked in _by_topic(changed.values())
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=[index])
                for topic_id, index in ([] if is_full else forgotten)
            ],
        )
        if version < FIRST_VERSION_WITH_REPLICA_STATE:
            request.replica_id = self._broker_id
        else:
            request.replica_state = ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch)
        return request

    # Answers

    def take(self, response: FetchResponse) -> list[tuple[Followed, PartitionData]]:
        """The answers for partitions that are still copied; empty after an error of the whole request."""
        code = response.error_code
        if code != ErrorCode.NONE:
            if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION
            self.start_again()
            return []
        found = []
        for topic in response.responses:
            for data in topic.partitions:
                followed = self._in_session.get((topic.topic_id, data.partition_index))
                if followed is not None and self._copies(followed):
                    found.append((followed, data))
        if self._session_epoch == INITIAL_EPOCH:
            self._session_id = response.session_id
        if response.session_id == NO_SESSION:
            # The source keeps no session for this follower. It answers in the order of the request.
            self._session_id = NO_SESSION
            for followed, data in found:
                if data.records:
                    self.partitions[followed.id] = self.partitions.pop(followed.id)
            self.start_again()
        else:
            self._session_epoch = 1 if self._session_epoch == LAST_EPOCH else self._session_epoch + 1
        return found


def _by_topic(asked: Iterable[Followed]) -> list[tuple[UUID, list[Followed]]]:
    topics: dict[UUID, list[Followed]] = {}
    for one in asked:
        topics.setdefault(one.id[0], []).append(one)
    return list(topics.items())


def _asked(followed: Followed, partition_max_bytes: int) -> FetchPartition:
    return FetchPartition(
        partition=followed.id[1],
        current_leader_epoch=followed.leader_epoch,
        fetch_offset=followed.fetch_offset,
        last_fetched_epoch=followed.last_fetched_epoch,
        log_start_offset=followed.log_start_offset,
        partition_max_bytes=partition_max_bytes,
    )
