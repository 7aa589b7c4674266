"""The checkers allow what the cleaner does to a compacted topic, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from kbroker.testing.checkers import CLOCK_ERROR_MS, check_history
from kbroker.testing.cluster_checker import cluster_recovers, sort_observed
from kbroker.testing.history import Event, Function, Type

DAY_MS = 86_400_000
KEY = "c-0"


def sent(value: str, offset: int, record_key: str, *, tombstone_ms: int | None = None, at_ms: int = 0) -> list[Event]:
    invoked = Event(
        at_ms=at_ms, process="p", function=Function.SEND, type=Type.INVOKE, key=KEY, value=value,
        record_key=record_key, tombstone_ms=tombstone_ms,
    )  # fmt: skip
    return [invoked, replace(invoked, type=Type.OK, offset=offset)]


def log_of(end: int, values: dict[int, str], *, source: str = "1", at_ms: int = 100) -> list[Event]:
    """A final log that has these values, and holes elsewhere."""
    line = Event(at_ms=at_ms, process=source, function=Function.FINAL, type=Type.OK, key=KEY)
    records = [
        replace(line, offset=offset, value=values[offset])
        if offset in values
        else replace(line, type=Type.INFO, offset=offset, error="compacted")
        for offset in range(end)
    ]
    return [*records, replace(line, function=Function.BOUNDS, offset=end, value="0")]


def polled(*offsets_and_values: tuple[int, str], at_ms: int = 50) -> list[Event]:
    line = Event(at_ms=at_ms, process="r", function=Function.POLL, type=Type.OK, key=KEY)
    assigned = replace(line, function=Function.ASSIGN, offset=0)
    return [assigned, *(replace(line, offset=offset, value=value) for offset, value in offsets_and_values)]


def kinds(history: list[Event]) -> list[tuple[str, str, int]]:
    return [(finding.check, finding.kind, finding.offset) for finding in check_history(history)]


WRITES = [*sent("a1", 0, "a"), *sent("b1", 1, "b"), *sent("a2", 2, "a")]


def test_k1_replicas_may_lack_different_older_values() -> None:
    whole = log_of(3, {0: "a1", 1: "b1", 2: "a2"}, source="2")
    assert kinds([*WRITES, *log_of(3, {1: "b1", 2: "a2"}), *whole]) == []


def test_k1_the_newest_value_of_each_key_stays_in_each_log() -> None:
    assert kinds([*WRITES, *log_of(3, {0: "a1", 1: "b1"})]) == [("K1", "lost", 2)]
    assert kinds([*WRITES, *log_of(3, {2: "a2"})]) == [("K1", "lost", 1)]
    other = log_of(3, {0: "a1", 1: "b1", 2: "a2"}, source="2")
    assert kinds([*WRITES, *log_of(3, {2: "a2"}), *other]) == [("K1", "lost", 1)]


def test_k1_a_log_without_keys_may_lack_nothing() -> None:
    history = [replace(event, record_key=None) for event in WRITES]
    assert kinds([*history, *log_of(3, {1: "b1", 2: "a2"})]) == [("K1", "lost", 0)]


def test_k1_a_tombstone_stays_for_its_time() -> None:
    late_ms = DAY_MS + 100
    for read_ms, found in ((late_ms, []), (late_ms - 2 * CLOCK_ERROR_MS, [("K1", "lost", 0), ("K1", "lost", 1)])):
        history = [*sent("a1", 0, "a"), *sent("a2", 1, "a", tombstone_ms=DAY_MS), *sent("b1", 2, "b")]
        assert kinds([*history, *log_of(3, {2: "b1"}, at_ms=read_ms)]) == found


def test_k3_a_reader_may_skip_what_a_later_record_of_the_key_has_replaced() -> None:
    whole = log_of(3, {0: "a1", 1: "b1", 2: "a2"})
    assert kinds([*WRITES, *polled((1, "b1"), (2, "a2")), *whole]) == []
    assert kinds([*WRITES, *polled((0, "a1"), (2, "a2")), *whole]) == [("K3", "poll-skip", 1)]


def test_k3_a_reader_may_skip_nothing_before_it_was_replaced() -> None:
    later = [*sent("a1", 0, "a"), *sent("b1", 1, "b"), *sent("a2", 2, "a", at_ms=60)]
    history = [*later, *polled((1, "b1")), *log_of(3, {0: "a1", 1: "b1", 2: "a2"})]
    assert kinds(history) == [("K3", "poll-skip", 0)]


def test_k7_the_sends_tell_that_a_topic_is_compacted() -> None:
    assert sort_observed(WRITES).is_compacted(KEY)
    assert not sort_observed([replace(event, record_key=None) for event in WRITES]).is_compacted(KEY)


def test_k11_readers_must_see_the_newest_values_only() -> None:
    def unseen(*offsets_and_values: tuple[int, str]) -> list[int]:
        history = [*WRITES, *polled(*offsets_and_values), *polled((2, "a2"), at_ms=DAY_MS)]
        return [finding.offset for finding in cluster_recovers(history) if finding.kind == "unseen"]

    assert unseen((1, "b1")) == []
    assert unseen((0, "a1")) == [1]
