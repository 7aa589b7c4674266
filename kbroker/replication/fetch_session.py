"""Incremental fetch sessions (KIP-227).

Theory of operation: the broker may grant a session to a full Fetch (session epoch 0). The session remembers its
partitions in order and the last answer for each. An incremental Fetch names only the partitions that changed and gets
only the answers that changed. A partition that returned records moves to the end of the order, so that a busy partition
cannot starve the others when the byte budget is small. Sessions are a bounded cache: a fetcher that gets session id 0
continues with full requests. Only the owner of a session can use it, or end it: its answers name topics.

Source: KIP-227, KIP-516 (topic ids), and the answers of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar
from uuid import UUID

from kbroker.metadata.names import MAX_TOPIC_NAME_LENGTH
from wire.errors import ErrorCode

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
LAST_EPOCH: Final = 2**31 - 1
EVICTION_MS: Final = 120_000
RETRY_MS: Final = 1_000
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """One partition as the fetcher requested it, with the last answer that it got.

    Units      offsets count records, partition_max_bytes bytes
    Shape      topic_id is None if the request used names; name is None while this broker does not know the id
    """

    name: str | None
    topic_id: UUID | None
    index: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1

    @property
    def key(self) -> Hashable:
        """The partition's key within a session: its topic id if the request used ids, else the name."""
        return (self.topic_id or self.name, self.index)

    def asks_like(self, asked: FetchedPartition) -> None:
        """Copy what the fetcher requests now; keep the last answer."""
        self.fetch_offset = asked.fetch_offset
        self.partition_max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset


class SessionAnswer(Protocol):
    """The part of a partition's answer that a session needs; offsets are -1 with an error."""

    @property
    def asked(self) -> FetchedPartition: ...
    @property
    def error_code(self) -> ErrorCode: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes of records."""
        ...

    @property
    def must_be_sent(self) -> bool:
        """Whether the answer has a diverging epoch or a preferred read replica, which are always sent."""
        ...


Answer = TypeVar("Answer", bound=SessionAnswer)


@dataclass(slots=True, eq=False)
class FetchSession:
    """The session of one fetcher. `partitions` are in the order in which the next answer is filled."""

    id: int
    owner: Hashable
    is_follower: bool
    uses_topic_ids: bool
    created_ms: int
    last_used_ms: int
    partitions: dict[Hashable, FetchedPartition]
    epoch: int = 1

    def takes_note(self, answer: SessionAnswer) -> bool:
        """Record an answer; False if it has nothing that the fetcher does not know yet, and need not be sent."""
        partition, size = answer.asked, answer.size
        failed = answer.error_code is not ErrorCode.NONE
        changed = (
            size > 0
            or failed
            or answer.high_watermark != partition.sent_high_watermark
            or answer.log_start_offset != partition.sent_log_start_offset
            or answer.must_be_sent
        )
        if changed:
            partition.sent_log_start_offset = answer.log_start_offset
            # After an error the next good answer must be sent, even if the high watermark is unchanged.
            partition.sent_high_watermark = -1 if failed else answer.high_watermark
        if size > 0:
            key = partition.key
            if self.partitions.get(key) is partition:
                self.partitions[key] = self.partitions.pop(key)
        return changed


@dataclass(slots=True, eq=False)
class FetchContext:
    """One Fetch in progress: what to read, and how its answer is filtered.

    partitions are in the order in which the byte budget is spent. error is a top-level error; then nothing is read.
    """

    partitions: list[FetchedPartition]
    error: ErrorCode = ErrorCode.NONE
    session: FetchSession | None = None
    _owner: Hashable = None
    _expected_epoch: int = 0
    _sessions: FetchSessions | None = field(default=None, repr=False)
    """Where the answer to a full request may start a session."""

    def select(
        self, answers: list[Answer], *, is_follower: bool, uses_topic_ids: bool, now_ms: int
    ) -> tuple[int, list[Answer]]:
        """Choose what to answer: (session id, those of `answers` that are sent).

        The answer to a full request is complete and may start a session, with partitions in the order of `answers`. The
        answer to an incremental request has only what changed since the last answer.
        """
        if self.session is not None:
            return self.session.id, [answer for answer in answers if self.session.takes_note(answer)]
        if self._sessions is None:
            return NO_SESSION, answers
        created = self._sessions.create(
            answers, owner=self._owner, is_follower=is_follower, uses_topic_ids=uses_topic_ids, now_ms=now_ms
        )
        return created, answers

    @property
    def is_superseded(self) -> bool:
        """Whether another request of the same session was accepted while this one waited."""
        return self.session is not None and self.session.epoch != self._expected_epoch


class FetchSessions:
    """The sessions of one broker.

    Bound  max_sessions (`max.incremental.fetch.session.cache.slots`), and max_partitions in all sessions together
           (`kbroker.max.fetch.session.partitions`); a session that grows beyond these limits is dropped

    When the cache is full, a new session replaces one that has been idle for more than two minutes. Otherwise followers
    may replace consumers, and larger sessions may replace smaller ones that are more than two minutes old. All other
    requests get no session.
    """

    def __init__(self, max_sessions: int, new_id: Callable[[], int], *, max_partitions: int) -> None:
        self.max_sessions = max_sessions
        self.max_partitions = max_partitions
        self.partition_count = 0  # of all sessions together
        self.evictions = 0
        self._full_until_ms = 0
        self._new_id = new_id
        # Least recently used first: a session that is used is reinserted at the end.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        *,
        owner: Hashable,
        session_id: int,
        session_epoch: int,
        asked: list[FetchedPartition],
        forgotten: Iterable[Hashable],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext:
        """Start a request. A full one (epoch 0 or -1) drops the session that it names; an incremental one updates it.

        Errors (in the context): FETCH_SESSION_ID_NOT_FOUND, also for the session of another owner,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR
        """
        session = self._sessions.get(session_id)
        if session is not None and session.owner != owner:
            session = None
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._forget(session)
            distinct = list({partition.key: partition for partition in asked}.values())
            return FetchContext(distinct, _owner=owner, _sessions=self if session_epoch == INITIAL_EPOCH else None)
        if session is None:
            return FetchContext([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != session_epoch:
            return FetchContext([], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext([], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(session.partitions)
        for partition in asked:
            known = session.partitions.get(partition.key)
            if known is None:
                session.partitions[partition.key] = partition
            else:
                known.asks_like(partition)
        for key in forgotten:
            session.partitions.pop(key, None)
        self.partition_count += len(session.partitions) - before
        if not session.partitions:
            self._forget(session)
            return FetchContext(asked)
        if self.partition_count > self.max_partitions or not all(map(_may_exist, asked)):
            # The fetcher continues with a full request, which may get no session.
            self._drop(session)
            return FetchContext([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._touch(session, now_ms)
        # The epoch advances when the request is accepted, not when it is answered, so a repeated request is refused.
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        return FetchContext(list(session.partitions.values()), session=session, _expected_epoch=session.epoch)

    def create(
        self,
        answers: Sequence[SessionAnswer],
        *,
        owner: Hashable,
        is_follower: bool,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> int:
        """Create a session for these answers; returns its id, or 0 if there is no room for it."""
        if self.max_sessions <= 0 or len(answers) > self.max_partitions:
            return NO_SESSION
        if not all(_may_exist(answer.asked) for answer in answers):
            return NO_SESSION
        while len(self._sessions) >= self.max_sessions or self.partition_count + len(answers) > self.max_partitions:
            if not self._evict(is_follower, len(answers), now_ms):
                return NO_SESSION
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        partitions = {}
        for answer in answers:
            partition = partitions[answer.asked.key] = answer.asked
            partition.sent_high_watermark = answer.high_watermark
            partition.sent_log_start_offset = answer.log_start_offset
        self._sessions[session_id] = FetchSession(
            session_id,
            owner,
            is_follower,
            uses_topic_ids,
            created_ms=now_ms,
            last_used_ms=now_ms,
            partitions=partitions,
        )
        self.partition_count += len(partitions)
        return session_id

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _evict(self, for_follower: bool, size: int, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms > EVICTION_MS:
            return self._drop(oldest)
        if now_ms < self._full_until_ms and not for_follower:
            return False
        candidates = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS or (for_follower and not session.is_follower)
        ]
        if candidates:
            least = min(candidates, key=lambda session: (session.is_follower, len(session.partitions), session.id))
            if (for_follower, size) > (least.is_follower, len(least.partitions)):
                return self._drop(least)
        # Fetchers without a session ask for one with each request, which must not search all sessions each time.
        self._full_until_ms = now_ms + RETRY_MS
        return False

    def _drop(self, session: FetchSession) -> bool:
        self._forget(session)
        self.evictions += 1
        return True

    def _forget(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.partition_count -= len(session.partitions)


def _may_exist(partition: FetchedPartition) -> bool:
    """Whether a topic can have that name. Longer names would take up more memory per partition."""
    return partition.name is None or len(partition.name) <= MAX_TOPIC_NAME_LENGTH
