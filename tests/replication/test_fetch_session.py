import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from uuid import UUID

from kbroker.replication.fetch_session import FetchContext, FetchedPartition, FetchSessions
from wire.errors import ErrorCode


@dataclass(frozen=True)
class Answered:
    """The answer for one partition."""

    error_code: ErrorCode
    high_watermark: int
    log_start_offset: int
    size: int
    must_be_sent: bool = False
    asked: FetchedPartition = field(default_factory=lambda: FetchedPartition("", None, 0, 0, 0))


def sessions(limit: int = 10, *, max_partitions: int = 1_000) -> FetchSessions:
    ids = itertools.count(1)
    return FetchSessions(limit, lambda: next(ids), max_partitions=max_partitions)


def asked(name: str, index: int = 0, *, offset: int = 0, topic_id: UUID | None = None) -> FetchedPartition:
    return FetchedPartition(name, topic_id, index, offset, 1000)


def begin(
    cache: FetchSessions,
    partitions: list[FetchedPartition],
    *,
    session_id: int = 0,
    epoch: int = 0,
    forgotten: tuple[Hashable, ...] = (),
    uses_topic_ids: bool = False,
    now_ms: int = 0,
    owner: str = "User:alice",
) -> FetchContext:
    return cache.begin(
        owner=owner,
        session_id=session_id,
        session_epoch=epoch,
        asked=partitions,
        forgotten=forgotten,
        uses_topic_ids=uses_topic_ids,
        now_ms=now_ms,
    )


def answer(
    context: FetchContext, answered: list[Answered], *, follower: bool = False, now_ms: int = 0
) -> tuple[int, list[str]]:
    answers = [replace(one, asked=asked) for one, asked in zip(answered, context.partitions, strict=True)]
    session_id, selected = context.select(answers, is_follower=follower, uses_topic_ids=False, now_ms=now_ms)
    return session_id, [str(one.asked.name) for one in selected]


def partition_answer(
    high_watermark: int = 0,
    size: int = 0,
    *,
    error: ErrorCode = ErrorCode.NONE,
    log_start: int = 0,
    diverges: bool = False,
) -> Answered:
    return Answered(error, high_watermark, log_start, size, must_be_sent=diverges)


def open_session(cache: FetchSessions, *names: str, follower: bool = False, now_ms: int = 0) -> int:
    context = begin(cache, [asked(name) for name in names], now_ms=now_ms)
    session_id, _ = answer(context, [partition_answer() for _ in names], follower=follower, now_ms=now_ms)
    return session_id


def test_a_session_is_of_no_use_to_others() -> None:
    cache = sessions()
    session_id = open_session(cache, "a")
    for epoch in (1, 2):
        other = begin(cache, [], session_id=session_id, epoch=epoch, owner="User:mallory")
        assert (other.error, other.partitions) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    for epoch in (0, -1):  # these end the session that they name
        begin(cache, [asked("b")], session_id=session_id, epoch=epoch, owner="User:mallory")
    context = begin(cache, [], session_id=session_id, epoch=1)
    assert [partition.name for partition in context.partitions] == ["a"]


def test_an_incremental_fetch_gets_only_changes() -> None:
    cache = sessions()
    session_id = open_session(cache, "a", "b")
    assert session_id == 1
    context = begin(cache, [], session_id=1, epoch=1)
    assert [partition.name for partition in context.partitions] == ["a", "b"]
    assert answer(context, [partition_answer(), partition_answer(high_watermark=3)]) == (1, ["b"])
    context = begin(cache, [], session_id=1, epoch=2)
    assert answer(context, [partition_answer(), partition_answer(high_watermark=3)]) == (1, [])


def test_epoch_minus_one_closes_the_session_and_creates_none() -> None:
    cache = sessions()
    session_id = open_session(cache, "a")
    context = begin(cache, [asked("a")], session_id=session_id, epoch=-1)
    assert answer(context, [partition_answer()]) == (0, ["a"])
    assert len(cache) == 0


def test_an_unknown_session_and_a_wrong_epoch_are_refused() -> None:
    cache = sessions()
    assert begin(cache, [], session_id=9, epoch=1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session_id = open_session(cache, "a")
    assert begin(cache, [], session_id=session_id, epoch=2).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert begin(cache, [], session_id=session_id, epoch=1).error is ErrorCode.NONE
    assert begin(cache, [], session_id=session_id, epoch=1).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_does_not_change_between_names_and_ids() -> None:
    cache = sessions()
    session_id = open_session(cache, "a")
    context = begin(cache, [], session_id=session_id, epoch=1, uses_topic_ids=True)
    assert context.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_epoch_wraps_to_one() -> None:
    cache = sessions()
    session_id = open_session(cache, "a")
    session = begin(cache, [], session_id=session_id, epoch=1).session
    assert session is not None
    session.epoch = 2**31 - 1
    begin(cache, [], session_id=session_id, epoch=2**31 - 1)
    assert session.epoch == 1


def test_partitions_are_added_changed_and_forgotten() -> None:
    cache = sessions()
    session_id = open_session(cache, "a", "b")
    context = begin(cache, [asked("c"), asked("a", offset=7)], session_id=session_id, epoch=1, forgotten=(("b", 0),))
    assert [(partition.name, partition.fetch_offset) for partition in context.partitions] == [("a", 7), ("c", 0)]


def test_forgetting_everything_closes_the_session() -> None:
    cache = sessions()
    session_id = open_session(cache, "a")
    context = begin(cache, [], session_id=session_id, epoch=1, forgotten=(("a", 0),))
    assert context.partitions == []
    assert answer(context, []) == (0, [])
    assert len(cache) == 0


def test_a_partition_with_records_moves_to_the_end() -> None:
    cache = sessions()
    session_id = open_session(cache, "a", "b", "c")
    context = begin(cache, [], session_id=session_id, epoch=1)
    assert answer(context, [partition_answer(size=10), partition_answer(), partition_answer()]) == (session_id, ["a"])
    assert [partition.name for partition in begin(cache, [], session_id=session_id, epoch=2).partitions] == [
        "b",
        "c",
        "a",
    ]


def test_the_answer_after_an_error_is_always_sent() -> None:
    cache = sessions()
    session_id = open_session(cache, "a")
    failed = begin(cache, [], session_id=session_id, epoch=1)
    assert answer(failed, [partition_answer(-1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)]) == (session_id, ["a"])
    healed = begin(cache, [], session_id=session_id, epoch=2)
    assert answer(healed, [partition_answer()]) == (session_id, ["a"])


def test_a_newer_request_supersedes_a_waiting_one() -> None:
    cache = sessions()
    session_id = open_session(cache, "a")
    waiting = begin(cache, [], session_id=session_id, epoch=1)
    assert not waiting.is_superseded
    begin(cache, [], session_id=session_id, epoch=2)
    assert waiting.is_superseded


def test_a_full_cache_evicts_only_sessions_idle_for_two_minutes() -> None:
    cache = sessions(limit=1)
    first = open_session(cache, "a")
    assert open_session(cache, "b", now_ms=60_000) == 0
    second = open_session(cache, "b", now_ms=120_001)
    assert second not in (0, first)
    assert begin(cache, [], session_id=first, epoch=1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_may_replace_a_consumer_but_not_vice_versa() -> None:
    cache = sessions(limit=1)
    assert open_session(cache, "a") == 1
    follower = open_session(cache, "a", follower=True, now_ms=1)
    assert follower == 2
    assert open_session(cache, "a", "b", "c", now_ms=2) == 0


def test_w12_sessions_beyond_the_limit_get_id_zero() -> None:
    cache = sessions(limit=1000)
    granted = [open_session(cache, "a") for _ in range(5000)]
    assert len(cache) == 1000
    assert granted.count(0) == 4000


def test_a_diverging_epoch_is_always_sent() -> None:
    cache = sessions()
    session_id = open_session(cache, "a", "b")
    context = begin(cache, [], session_id=session_id, epoch=1)
    assert answer(context, [partition_answer(diverges=True), partition_answer()]) == (session_id, ["a"])


def test_a_changed_log_start_offset_is_sent() -> None:
    cache = sessions()
    session_id = open_session(cache, "a", "b")
    context = begin(cache, [], session_id=session_id, epoch=1)
    assert answer(context, [partition_answer(), partition_answer(log_start=3)]) == (session_id, ["b"])


def test_only_a_larger_session_may_replace_another() -> None:
    cache = sessions(limit=1)
    first = open_session(cache, "a")
    begin(cache, [], session_id=first, epoch=1, now_ms=119_000)
    assert open_session(cache, "b", now_ms=121_000) == 0
    assert open_session(cache, "b", "c", now_ms=121_500) == 0, "the full cache is not searched again within a second"
    assert open_session(cache, "b", "c", now_ms=122_001) != 0
    assert cache.evictions == 1


def test_sessions_with_topic_ids_distinguish_partitions_by_id() -> None:
    cache = sessions()
    ids = UUID(int=1), UUID(int=2)
    context = begin(cache, [asked("", topic_id=one) for one in (*ids, ids[0])], uses_topic_ids=True)
    assert [partition.topic_id for partition in context.partitions] == list(ids)


def open_wide(cache: FetchSessions, name: str, partitions: int, *, now_ms: int = 0) -> int:
    """Open a session with `partitions` partitions; returns its id, or 0."""
    wanted = [asked(name, index) for index in range(partitions)]
    context = begin(cache, wanted, now_ms=now_ms)
    return answer(context, [partition_answer()] * partitions, now_ms=now_ms)[0]


def test_w12_all_sessions_together_stay_within_the_partition_limit() -> None:
    cache = sessions(max_partitions=10)
    assert [open_wide(cache, "a", 4), open_wide(cache, "b", 4)] == [1, 2]
    assert open_wide(cache, "c", 4) == 0
    assert open_wide(cache, "d", 2) == 3
    assert open_wide(cache, "e", 11, now_ms=1_000_000) == 0
    assert (cache.partition_count, len(cache)) == (10, 3)
    # As many idle sessions as necessary are evicted.
    assert open_wide(cache, "f", 10, now_ms=1_000_000) == 4
    assert (cache.partition_count, len(cache)) == (10, 1)


def test_w12_a_session_that_grows_too_large_is_dropped() -> None:
    cache = sessions(max_partitions=10)
    small, grown = open_wide(cache, "a", 4), open_wide(cache, "b", 4)
    more = [asked("b", index) for index in range(4, 9)]
    context = begin(cache, more, session_id=grown, epoch=1)
    assert context.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (cache.partition_count, len(cache)) == (4, 1)
    assert begin(cache, [], session_id=small, epoch=1).error is ErrorCode.NONE
    assert begin(cache, [], session_id=small, epoch=2, forgotten=tuple(("a", index) for index in range(4)))
    assert (cache.partition_count, len(cache)) == (0, 0)


def test_a_session_does_not_store_illegal_topic_names() -> None:
    cache = sessions()
    assert open_wide(cache, "n" * 250, 1) == 0
    assert open_wide(cache, "n" * 249, 1) == 1
    context = begin(cache, [asked("x" * 30_000)], session_id=1, epoch=1)
    assert context.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.partition_count == 0
