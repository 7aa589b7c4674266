"""Damage for histories with transactions: each function plants one fault; None if there is no place for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kbroker.testing.draws import Draws
from kbroker.testing.history import Event, Function, Type
from kbroker.testing.transaction_checker import Transaction, sort_transactions
from tests.testing.perfect_transactions import ALLOWED, GROUP, JUDGE

Planted = list[Event] | None
Plant = Callable[[list[Event], Draws], Planted]


def chosen(history: list[Event], draws: Draws, fits: Callable[[Transaction], bool]) -> Transaction | None:
    candidates = [one for one in sort_transactions(history, ALLOWED).values() if fits(one)]
    return draws.choice(candidates) if candidates else None


def sends(history: list[Event], one: Transaction) -> list[Event]:
    """The acknowledged sends of a transaction."""
    return [e for e in history if e.function is Function.SEND and e.type is Type.OK and e.transaction == one.name]


def has_sends(history: list[Event], count: int = 1) -> Callable[[Transaction], bool]:
    return lambda one: len(sends(history, one)) >= count


def poll_of(event: Event, *, process: str = "late") -> Event:
    return Event(
        at_ms=0, process=process, function=Function.POLL, type=Type.OK, key=event.key, value=event.value,
        offset=event.offset,
    )  # fmt: skip


def without_polls(history: list[Event], victims: Iterable[Event]) -> list[Event]:
    """No read_committed reader gets these records."""
    gone = {(e.key, e.value) for e in victims}
    return [
        e
        for e in history
        if e.function is not Function.POLL or (e.key, e.value) not in gone or e.process in ALLOWED.uncommitted
    ]


def aborted_read(history: list[Event], draws: Draws) -> Planted:
    """A reader gets a record of an aborted transaction."""
    one = chosen(history, draws, lambda each: each.is_aborted and each.is_refused and has_sends(history)(each))
    return None if one is None else [*history, poll_of(draws.choice(sends(history, one)))]


def read_before_the_end(history: list[Event], draws: Draws) -> Planted:
    """A reader gets a record while its transaction is open."""
    one = chosen(history, draws, lambda each: each.asked is not None and has_sends(history)(each))
    if one is None or one.asked is None or one.type is Type.FAIL:
        return None
    return [*history[: one.asked], poll_of(draws.choice(sends(history, one))), *history[one.asked :]]


def is_whole(history: list[Event], *kinds: Type) -> Callable[[Transaction], bool]:
    """Whether a transaction of two records or more was committed and read."""
    return lambda one: one.type in kinds and one.is_committed and has_sends(history, 2)(one)


def torn_commit(history: list[Event], draws: Draws) -> Planted:
    """A record of a committed transaction is invisible, the others are not."""
    one = chosen(history, draws, is_whole(history, Type.OK, Type.INFO))
    return None if one is None else without_polls(history, [draws.choice(sends(history, one))])


def torn_by_one_reader(history: list[Event], draws: Draws) -> Planted:
    """One reader has lost the list of aborted transactions, or has one too many."""
    one = chosen(history, draws, is_whole(history, Type.OK, Type.INFO))
    if one is None:
        return None
    victim = draws.choice(sends(history, one))
    return [e for e in history if e.process != JUDGE or e.value != victim.value or e.function is not Function.POLL]


def lost_commit(history: list[Event], draws: Draws) -> Planted:
    """A commit was acknowledged, and no record of it is visible."""
    one = chosen(history, draws, lambda each: each.type is Type.OK and has_sends(history)(each))
    if one is None:
        return None
    all_sends = [e for e in history if e.function is Function.SEND and e.transaction == one.name]
    return without_polls(history, all_sends)


def circle(history: list[Event], draws: Draws) -> Planted:
    """Two committed transactions have read from each other."""
    one = chosen(history, draws, lambda each: each.is_committed and has_sends(history)(each))
    other = chosen(history, draws, lambda each: each.is_committed and has_sends(history)(each))
    if one is None or other is None or one.name == other.name:
        return None
    reads = [
        replace(poll_of(sends(history, source)[0], process=f"{by.process} again"), transaction=by.name)
        for by, source in ((one, other), (other, one))
    ]
    return [*history, *reads]


def processed_twice(history: list[Event], draws: Draws) -> Planted:
    """Two committed transactions of a group have consumed one input."""
    one = chosen(history, draws, lambda each: each.is_committed and bool(each.inputs))
    if one is None:
        return None
    key, offset = one.inputs[0]
    other = chosen(history, draws, lambda each: each.is_committed and each is not one and (GROUP, key) in each.commits)
    source = next(e for e in history if e.function is Function.POLL and e.key == key and e.offset == offset)
    if other is None or other.name == one.name:
        return None
    return [*history, replace(poll_of(source), transaction=other.name)]


def unprocessed_input(history: list[Event], draws: Draws) -> Planted:
    """The committed offset of a group is after an input that it never consumed."""
    one = chosen(history, draws, lambda each: each.is_committed and bool(each.inputs) and bool(each.commits))
    if one is None:
        return None
    key, offset = draws.choice(one.inputs)
    return [
        e for e in history if e.transaction is None or (e.function, e.key, e.offset) != (Function.POLL, key, offset)
    ]


def offset_line(kind: Type, key: str, offset: int | None = None) -> Event:
    return Event(at_ms=0, process="late", function=Function.COMMITTED, type=kind, key=key, value=GROUP, offset=offset)


def read_offset(history: list[Event], place: int, key: str, offset: int) -> list[Event]:
    return [
        *history[:place], offset_line(Type.INVOKE, key), offset_line(Type.OK, key, offset), *history[place:],
    ]  # fmt: skip


def lost_offset(history: list[Event], draws: Draws) -> Planted:
    """The records of a committed transaction are visible, its offsets are not."""
    one = chosen(history, draws, lambda each: each.is_committed and bool(each.commits))
    if one is None or one.committed_by is None:
        return None
    register = next(iter(one.commits))
    others = [each for each in sort_transactions(history, ALLOWED).values() if register in each.commits]
    if any(not each.is_committed and not each.is_aborted for each in others):
        return None
    earlier = [each for each in others if each.commits[register] < one.commits[register] and each.is_committed]
    before = [each.commits[register] for each in earlier]
    return read_offset(history, one.committed_by + 1, register[1], max(before, default=-1))


def aborted_offset(history: list[Event], draws: Draws) -> Planted:
    """The offsets of an aborted transaction are visible."""
    taken = {offset for one in sort_transactions(history, ALLOWED).values() if not one.is_aborted
             for offset in one.commits.items()}  # fmt: skip
    one = chosen(history, draws, lambda each: each.is_aborted and bool(each.commits.items() - taken))
    if one is None:
        return None
    (_, key), offset = next(iter(one.commits.items() - taken))
    return read_offset(history, len(history), key, offset)


def pending_offset(history: list[Event], draws: Draws) -> Planted:
    """The offsets of an open transaction are visible."""
    one = chosen(history, draws, lambda each: each.is_committed and bool(each.commits))
    if one is None or one.asked is None:
        return None
    (_, key), offset = next(iter(one.commits.items()))
    return read_offset(history, one.asked, key, offset)


def zombie_commit(history: list[Event], draws: Draws) -> Planted:
    """A fenced producer commits."""
    init = next((place for place, e in enumerate(history) if e.process == "p2" and e.function is Function.INIT), None)
    fenced = [
        e for e in history[init:] if e.function is Function.TXN and e.type is Type.FAIL and e.process == "p1"
    ] if init is not None else []  # fmt: skip
    return [replace(e, type=Type.OK) if e is fenced[0] else e for e in history] if fenced else None


def zombie_send(history: list[Event], draws: Draws) -> Planted:
    """The Produce of a fenced producer is acknowledged."""
    fenced = [e for e in history if e.function is Function.SEND and e.type is Type.FAIL]
    return [replace(e, type=Type.OK, offset=0) if e is fenced[0] else e for e in history] if fenced else None


def stable_lines(history: list[Event]) -> list[Event]:
    return [e for e in history if e.function is Function.STABLE and e.offset]


def stable_offset_too_high(history: list[Event], draws: Draws) -> Planted:
    """A last stable offset is above the high watermark."""
    lines = stable_lines(history)
    victim = draws.choice(lines) if lines else None
    return None if victim is None else [replace(e, offset=int(e.value or 0) + 1) if e is victim else e for e in history]


def stable_offset_goes_back(history: list[Event], draws: Draws) -> Planted:
    """A leader names a lower last stable offset than before."""
    lines = stable_lines(history)
    victim = draws.choice(lines) if lines else None
    return (
        None
        if victim is None
        else [again for e in history for again in (e, replace(e, offset=(e.offset or 0) - 1))[: 1 + (e is victim)]]
    )


def hanging_transaction(history: list[Event], draws: Draws) -> Planted:
    """The last stable offset of a partition never reaches its end."""
    lines = stable_lines(history)
    last = {e.key: e for e in lines}
    victim = draws.choice(list(last.values())) if lines else None
    return None if victim is None else [replace(e, offset=(e.offset or 0) - 1) if e is victim else e for e in history]


FAULTS: list[tuple[Plant, set[tuple[str, str]]]] = [
    (aborted_read, {("K5", "aborted-read")}),
    (read_before_the_end, {("K5", "precommitted-read")}),
    (torn_commit, {("K5", "torn-transaction")}),
    (torn_by_one_reader, {("K5", "torn-transaction")}),
    (lost_commit, {("K5", "lost-write")}),
    (circle, {("K5", "circular-flow")}),
    (processed_twice, {("K4", "processed-twice")}),
    (unprocessed_input, {("K4", "not-processed")}),
    (lost_offset, {("K10", "lost-commit")}),
    (aborted_offset, {("K10", "unsent-commit")}),
    (pending_offset, {("K10", "unsent-commit")}),
    (zombie_commit, {("K5", "zombie-commit")}),
    (zombie_send, {("K4", "zombie-send")}),
    (stable_offset_too_high, {("K5", "lso-beyond-hw")}),
    (stable_offset_goes_back, {("K5", "lso-regressed")}),
    (hanging_transaction, {("K11", "hanging")}),
]
"""Each fault with its required findings; others may accompany them."""
