"""Damage for histories: each function plants one fault that a broker could cause; None if there is no place for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kbroker.testing.draws import Draws
from kbroker.testing.history import Event, Function, Type
from tests.testing.perfect_run import SOURCES

Planted = list[Event] | None


def finals(history: list[Event], *, source: str = SOURCES[0]) -> list[Event]:
    return [e for e in history if e.function is Function.FINAL and e.type is Type.OK and e.process == source]


def acked(history: list[Event]) -> list[Event]:
    """The final records (as the first source has them) that were acknowledged."""
    sends = {(e.key, e.value) for e in history if e.function is Function.SEND and e.type is Type.OK}
    return [e for e in finals(history) if (e.key, e.value) in sends]


def is_final(event: Event, key: str, offset: int | None) -> bool:
    return event.function in {Function.FINAL, Function.BOUNDS} and event.key == key and event.offset == offset


def observed(event: Event) -> bool:
    return event.function in {Function.POLL, Function.FINAL} or (
        event.function is Function.SEND and event.type is Type.OK
    )


def end_of(history: list[Event], key: str) -> int:
    return next(e.offset or 0 for e in history if e.function is Function.BOUNDS and e.key == key)


def lost_record(history: list[Event], draws: Draws) -> Planted:
    """An acknowledged record is no longer in any log."""
    candidates = acked(history)
    if not candidates:
        return None
    victim = draws.choice(candidates)
    return [e for e in history if not is_final(e, victim.key, victim.offset)]


def lost_tail(history: list[Event], draws: Draws) -> Planted:
    """The logs end too early, as after a recovery that cuts too much."""
    candidates = acked(history)
    if not candidates:
        return None
    victim = draws.choice(candidates)
    assert victim.offset is not None
    kept = [
        e
        for e in history
        if not (e.key == victim.key and e.function is Function.FINAL and (e.offset or 0) >= victim.offset)
    ]
    return [
        replace(e, offset=victim.offset) if e.function is Function.BOUNDS and e.key == victim.key else e for e in kept
    ]


def changed_record(history: list[Event], draws: Draws) -> Planted:
    """An acknowledged record has other bytes, in every log."""
    candidates = acked(history)
    if not candidates:
        return None
    victim = draws.choice(candidates)
    return [replace(e, value="garbage") if is_final(e, victim.key, victim.offset) else e for e in history]


def diverged_replica(history: list[Event], draws: Draws) -> Planted:
    """One replica has the value of another send at an offset."""
    candidates = finals(history, source=SOURCES[1])
    if len(candidates) < 2:
        return None
    victim, other = draws.choice(candidates), draws.choice(candidates)
    if victim.value == other.value:
        return None
    return [replace(e, value=other.value) if e == victim else e for e in history]


def duplicated_record(history: list[Event], draws: Draws) -> Planted:
    """A retry was appended again at the end of the log."""
    candidates = finals(history)
    if not candidates:
        return None
    victim = draws.choice(candidates)
    end = end_of(history, victim.key)
    return append(history, victim.key, end, victim.value)


def failed_but_appended(history: list[Event], draws: Draws) -> Planted:
    """A send that was refused is in the log."""
    refused = [e for e in history if e.function is Function.SEND and e.type is Type.FAIL]
    if not refused:
        return None
    victim = draws.choice(refused)
    return append(history, victim.key, end_of(history, victim.key), victim.value)


def unsent_record(history: list[Event], draws: Draws) -> Planted:
    """A record that was never sent."""
    key = draws.choice(sorted({e.key for e in history}))
    return append(history, key, end_of(history, key), "from nowhere")


def append(history: list[Event], key: str, end: int, value: str | None) -> list[Event]:
    damaged = []
    for event in history:
        if event.function is Function.BOUNDS and event.key == key:
            damaged.append(replace(event, function=Function.FINAL, type=Type.OK, offset=end, value=value))
            damaged.append(replace(event, offset=end + 1))
        else:
            damaged.append(event)
    return damaged


def neighbours(history: list[Event], draws: Draws) -> tuple[Event, Event] | None:
    """Two successive records of one producer in one log."""
    pairs = [
        (one, other)
        for one, other in zip(finals(history), finals(history)[1:], strict=False)
        if one.key == other.key and str(one.value).split("-")[0] == str(other.value).split("-")[0]
    ]
    return draws.choice(pairs) if pairs else None


def reordered_sends(history: list[Event], draws: Draws) -> Planted:
    """Two records of one producer were appended in the wrong order; all observers agree about their offsets."""
    pair = neighbours(history, draws)
    if pair is None:
        return None
    one, other = pair
    values = {one.offset: other.value, other.offset: one.value}
    offsets = {one.value: other.offset, other.value: one.offset}

    def damage(event: Event) -> Event:
        if event.key != one.key or not observed(event):
            return event
        if event.function is Function.SEND:
            return replace(event, offset=offsets.get(event.value, event.offset))
        return replace(event, value=values.get(event.offset, event.value))

    return [damage(event) for event in history]


def swapped_records(history: list[Event], draws: Draws) -> Planted:
    """Two acknowledged records changed places after they were acknowledged."""
    pair = neighbours(history, draws)
    if pair is None or pair[0] not in acked(history):
        return None
    one, other = pair
    swapped = {one.offset: other.value, other.offset: one.value}
    return [
        replace(e, value=swapped[e.offset])
        if e.key == one.key and e.function is Function.FINAL and e.offset in swapped
        else e
        for e in history
    ]


def skipped_offset(history: list[Event], draws: Draws) -> Planted:
    """The broker skipped an offset; all observers agree about the offsets of the records."""
    candidates = finals(history)
    if not candidates:
        return None
    victim = draws.choice(candidates)
    assert victim.offset is not None
    return [
        replace(e, offset=e.offset + 1)
        if e.key == victim.key and e.offset is not None and e.offset >= victim.offset
        else e
        for e in history
    ]


def unexplained_offset(history: list[Event], draws: Draws) -> Planted:
    """A control batch that does not exist: an offset without a record and without a reason."""
    controls = [e for e in history if e.function is Function.FINAL and e.type is Type.INFO]
    if not controls:
        return None
    victim = draws.choice(controls)
    return [e for e in history if e != victim]


def polls_in_a_row(history: list[Event]) -> list[tuple[Event, Event]]:
    """Pairs of successive polls of one reader, without an assignment in between."""
    pairs, latest = [], dict[tuple[str, str], Event]()
    for event in history:
        if event.function is Function.POLL:
            before = latest.get((event.process, event.key))
            if before is not None:
                pairs.append((before, event))
            latest[event.process, event.key] = event
        elif event.function in {Function.ASSIGN, Function.SUBSCRIBE}:
            latest = {reader: e for reader, e in latest.items() if reader[0] != event.process}
    return pairs


def missed_poll(history: list[Event], draws: Draws) -> Planted:
    """A reader does not get a record that stays in the log."""
    in_log = {(e.key, e.offset) for e in finals(history)}
    pairs = polls_in_a_row(history)
    followed = {id(before) for before, _ in pairs}
    candidates = [e for _, e in pairs if id(e) in followed and (e.key, e.offset) in in_log]
    if not candidates:
        return None
    victim = draws.choice(candidates)
    return [e for e in history if e is not victim]


def repeated_poll(history: list[Event], draws: Draws) -> Planted:
    """A reader gets a record again."""
    pairs = polls_in_a_row(history)
    if not pairs:
        return None
    before, victim = draws.choice(pairs)
    return [again for e in history for again in ((e, before) if e is victim else (e,))]


def changed_poll(history: list[Event], draws: Draws) -> Planted:
    """A reader gets another record than the one at the offset."""
    in_log = {(e.key, e.offset) for e in finals(history)}
    polls = [e for e in history if e.function is Function.POLL and (e.key, e.offset) in in_log]
    if not polls:
        return None
    victim = draws.choice(polls)
    return [replace(e, value=f"{e.value}!") if e is victim else e for e in history]


def wrong_offset_in_ack(history: list[Event], draws: Draws) -> Planted:
    """The acknowledgement has an offset at which the record is not."""
    candidates = acked(history)
    if not candidates:
        return None
    victim = draws.choice(candidates)
    assert victim.offset is not None
    offset = victim.offset + 1
    return [
        replace(e, offset=offset)
        if e.function is Function.SEND and e.type is Type.OK and e.value == victim.value
        else e
        for e in history
    ]


FAULTS: list[tuple[Callable[[list[Event], Draws], Planted], set[tuple[str, str]]]] = [
    (lost_record, {("K1", "lost"), ("K4", "gap")}),
    (lost_tail, {("K1", "lost")}),
    (changed_record, {("K1", "changed"), ("K2", "unsent")}),
    (diverged_replica, {("K2", "inconsistent-offset")}),
    (duplicated_record, {("K4", "duplicate")}),
    (failed_but_appended, {("K1", "failed-but-seen")}),
    (unsent_record, {("K2", "unsent")}),
    (reordered_sends, {("K3", "nonmonotonic-send")}),
    (swapped_records, {("K1", "moved"), ("K4", "duplicate")}),
    (skipped_offset, {("K4", "gap")}),
    (unexplained_offset, {("K4", "gap")}),
    (missed_poll, {("K3", "poll-skip")}),
    (repeated_poll, {("K3", "nonmonotonic-poll")}),
    (changed_poll, {("K2", "inconsistent-offset"), ("K2", "unsent")}),
    (wrong_offset_in_ack, {("K1", "moved")}),
]
"""Each fault with its required findings; others may accompany them."""
