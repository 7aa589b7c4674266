"""Fetch sessions: what a fetcher asked for before and need not say again (KIP-227).

Theory of operation: a full Fetch (session epoch 0) may be granted a session, which remembers its partitions in order
and what was last answered for each. An incremental Fetch names only what changed and is answered only what changed. A
partition that returned records moves to the end of the order, so that one busy partition cannot starve the others when
the byte budget is small. Sessions are a bounded cache: a fetcher that gets id 0 back just goes on with full requests.

Source: KIP-227, KIP-516 (topic ids), and the answers of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from kbroker.metadata.names import MAX_TOPIC_NAME_LENGTH
from wire.errors import ErrorCode

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
LAST_EPOCH = 2**31 - 1
EVICTION_MS = 120_000
RETRY_MS = 1_000
FIRST_VERSION_WITH_TOPIC_IDS = 13


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a Fetch as the fetcher asked for it, with what it was last told.

    Units      offsets count records, partition_max_bytes bytes
    Shape      topic_id is None where the request used names; name is None while an id is unknown to this broker
    """

    name: str | None
    topic_id: UUID | None
    index: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    told_high_watermark: int = -1
    told_log_start_offset: int = -1

    @property
    def key(self) -> Hashable:
        """What identifies the partition within a session: its topic's id where the request used ids, else the name."""
        return (self.topic_id or self.name, self.index)

    def asks_like(self, asked: FetchedPartition) -> None:
        """Take over what the fetcher asks now; what it was told stays."""
        self.fetch_offset = asked.fetch_offset
        self.partition_max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset


class Told(Protocol):
    """What an answer says of one partition, as far as a session must know it; offsets are -1 with an error."""

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
    def must_be_told(self) -> bool:
        """True where the answer has a diverging epoch or a preferred read replica."""
        ...


Answer = TypeVar("Answer", bound=Told)


@dataclass(slots=True)
class FetchSession:
    """A session of one fetcher. `partitions` keeps the order in which the next answer is filled."""

    id: int
    is_follower: bool
    uses_topic_ids: bool
    created_ms: int
    last_used_ms: int
    partitions: dict[Hashable, FetchedPartition]
    epoch: int = 1

    def takes_note(self, answer: Told) -> bool:
        """Note what the fetcher will know of a partition; False if it knows that already and need not be told."""
        partition, size = answer.asked, answer.size
        failed = answer.error_code is not ErrorCode.NONE
        changed = (
            size > 0
            or failed
            or answer.high_watermark != partition.told_high_watermark
            or answer.log_start_offset != partition.told_log_start_offset
            or answer.must_be_told
        )
        if changed:
            partition.told_log_start_offset = answer.log_start_offset
            # After an error the next good answer has to be told, even if the high watermark is where it was.
            partition.told_high_watermark = -1 if failed else answer.high_watermark
        if size > 0:
            key = partition.key
            if self.partitions.get(key) is partition:
                self.partitions[key] = self.partitions.pop(key)
        return changed


@dataclass(slots=True)
class FetchContext:
    """One Fetch on its way through the broker: what to read, and how its answer is filtered.

    partitions is in the order in which the byte budget is spent. error is a top-level error: then nothing is read.
    """

    partitions: list[FetchedPartition]
    error: ErrorCode = ErrorCode.NONE
    session: FetchSession | None = None
    grants: bool = False
    _expected_epoch: int = 0
    _sessions: FetchSessions | None = field(default=None, repr=False)

    def select(
        self, answers: list[Answer], *, is_follower: bool, uses_topic_ids: bool, now_ms: int
    ) -> tuple[int, list[Answer]]:
        """What to answer: (session id, those of `answers` that are sent).

        A full request is answered whole and may be granted a session here, in the order of `answers`; an incremental
        one is answered with what changed since the fetcher was told last.
        """
        if self.session is not None:
            return self.session.id, [answer for answer in answers if self.session.takes_note(answer)]
        if not self.grants or self._sessions is None:
            return NO_SESSION, answers
        created = self._sessions.create(answers, is_follower=is_follower, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        return created, answers

    @property
    def is_superseded(self) -> bool:
        """True when another request of the same session was accepted while this one waited."""
        return self.session is not None and self.session.epoch != self._expected_epoch


class FetchSessions:
    """The sessions of one broker.

    Bound  max_sessions (`max.incremental.fetch.session.cache.slots`), and max_partitions in all of them together
           (`kbroker.max.fetch.session.partitions`); a session that outgrows these is dropped

    When the cache is full, one session idle for more than two minutes makes place; else followers may take the place of
    consumers, and larger sessions that of smaller ones, once these have had two minutes. Nobody else is granted one.
    """

    def __init__(self, max_sessions: int, new_id: Callable[[], int], *, max_partitions: int) -> None:
        self.max_sessions = max_sessions
        self.max_partitions = max_partitions
        self.partition_count = 0  # of all sessions
        self.evictions = 0
        self._full_until_ms = 0
        self._new_id = new_id
        # In the order of last use, oldest first: a touched session is put in again at the end.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        *,
        session_id: int,
        session_epoch: int,
        asked: list[FetchedPartition],
        forgotten: Iterable[Hashable],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext:
        """Take a request in. A full one (epoch 0 or -1) drops the session that it names; an incremental one updates it.

        Errors (in the context): FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR
        """
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if (named := self._sessions.get(session_id)) is not None:
                self._forget(named)
            distinct = list({partition.key: partition for partition in asked}.values())
            return FetchContext(distinct, grants=session_epoch == INITIAL_EPOCH, _sessions=self)
        session = self._sessions.get(session_id)
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
            # The fetcher goes on with a full request, for which there may be no session.
            self._drop(session)
            return FetchContext([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._touch(session, now_ms)
        # The epoch advances when the request is accepted, not when it is answered: its repetition is then refused.
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        return FetchContext(list(session.partitions.values()), session=session, _expected_epoch=session.epoch)

    def create(self, answers: Sequence[Told], *, is_follower: bool, uses_topic_ids: bool, now_ms: int) -> int:
        """Grant a session over what was answered; its id, or 0 when there is no place for it."""
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
            partition.told_high_watermark = answer.high_watermark
            partition.told_log_start_offset = answer.log_start_offset
        self._sessions[session_id] = FetchSession(
            session_id,
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
        # Fetchers without a session ask for one with each request: they must not have all sessions looked at each time.
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
    """Whether a topic can have that name: longer ones would make a partition's share of the memory larger."""
    return partition.name is None or len(partition.name) <= MAX_TOPIC_NAME_LENGTH
