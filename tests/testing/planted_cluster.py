"""Damage for the history of a cluster: each function plants one fault that a broker or a controller could cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from kbroker.testing.cluster_checker import METADATA, PATIENCE_MS
from kbroker.testing.draws import Draws
from kbroker.testing.history import Event, Function, Type

History = list[Event]


def of(history: History, function: Function, *, metadata: bool = False) -> History:
    """The `ok` lines of a function, about topics or about the metadata log."""
    found = [e for e in history if e.function is function and e.type is Type.OK]
    return [e for e in found if (e.key == METADATA) is metadata]


def swap(history: History, victim: Event, *instead: Event) -> History:
    """The history with other lines in the place of one."""
    return [each for e in history for each in (instead if e is victim else (e,))]


def again(history: History, draws: Draws, function: Function) -> tuple[Event, Event]:
    """Two successive answers about one epoch, with different offsets."""
    answers = of(history, function, metadata=function is Function.CONTROLLER)
    pairs = [
        (one, next(each for each in answers[index + 1 :] if each.process == one.process))
        for index, one in enumerate(answers)
        if any(each.process == one.process for each in answers[index + 1 :])
    ]
    return draws.choice([(a, b) for a, b in pairs if a.epoch == b.epoch and (a.offset or 0) < (b.offset or 0)])


def high_watermark_goes_back(history: History, draws: Draws) -> History:
    """A leader shows a high watermark, and then the one before it."""
    before, victim = again(history, draws, Function.LEADS)
    return swap(history, victim, victim, replace(before, at_ms=victim.at_ms))


def new_leader_lacks_records(history: History, draws: Draws) -> History:
    """A new leader serves a high watermark below the one that clients have seen."""
    answers = of(history, Function.LEADS)
    latest = max(e.epoch or 0 for e in answers)
    victim = next(e for e in answers if e.epoch == latest)
    earlier = [e for e in answers if e.epoch == latest - 1 and e.offset]
    shown = max(e.offset or 0 for e in earlier)
    return swap(history, victim, replace(victim, offset=draws.below(shown)), victim)


def replica_lacks_its_tail(history: History, draws: Draws) -> History:
    """The log of one replica ends before the high watermark."""
    victim = draws.choice([e for e in of(history, Function.END) if e.process != "node-1"])
    end = max(e.offset or 0 for e in of(history, Function.LEADS)) - 1
    return swap(history, victim, replace(victim, offset=end))


def changed_batch(history: History, draws: Draws) -> History:
    """One replica has other bytes in a committed batch, and equal batches after it."""
    batches = of(history, Function.BATCH)
    victim = draws.choice(batches[: len(batches) // 3 - 1])
    return swap(history, victim, replace(victim, value="garbage"))


def missing_batch(history: History, draws: Draws) -> History:
    """One replica lacks a batch in the middle of its log."""
    batches = of(history, Function.BATCH)
    victim = draws.choice(batches[: len(batches) // 3 - 1])
    return swap(history, victim)


def diverged_tail(history: History, draws: Draws) -> History:
    """One replica keeps the last batch that a deposed leader gave it."""
    own = [e for e in of(history, Function.BATCH) if e.process == draws.choice(["node-1", "node-2", "node-3"])]
    victim = own[-1]
    return swap(history, victim, replace(victim, value="other", epoch=(victim.epoch or 0) + 1))


def truncated_by_high_watermark(history: History, draws: Draws) -> History:
    """A follower truncates to its high watermark without asking the leader."""
    at = draws.choice(of(history, Function.LEADS))
    line = replace(at, function=Function.TRUNCATE, value=str(at.offset), error="high watermark")
    return swap(history, at, at, line)


def truncated_committed_records(history: History, draws: Draws) -> History:
    """A follower truncates below its high watermark."""
    at = draws.choice([e for e in of(history, Function.LEADS) if e.offset])
    line = replace(at, function=Function.TRUNCATE, offset=draws.below(at.offset or 0), value=str(at.offset))
    return swap(history, at, at, replace(line, error="epoch"))


def two_leaders(history: History, draws: Draws) -> History:
    """A deposed leader still answers, in the epoch of its successor."""
    victim = draws.choice(of(history, Function.LEADS))
    return swap(history, victim, victim, replace(victim, process="broker-9"))


def decreasing_epoch(history: History, draws: Draws) -> History:
    """All replicas have a batch of an old epoch after one of a new epoch."""
    batches = of(history, Function.BATCH)
    victim = draws.choice([b for a, b in pairwise(batches) if a.epoch == b.epoch and b.epoch])
    later = [e for e in batches if e.offset == victim.offset]
    return [replace(e, epoch=0) if any(e is each for each in later) else e for e in history]


def wrong_checkpoint(history: History, draws: Draws) -> History:
    """The checkpoint has another first offset for an epoch than the log."""
    victim = draws.choice([e for e in of(history, Function.EPOCH) if has_batches(history, e)])
    return swap(history, victim, replace(victim, offset=(victim.offset or 0) + 1))


def lost_checkpoint(history: History, draws: Draws) -> History:
    """The checkpoint lacks an epoch that the log has."""
    victim = draws.choice([e for e in of(history, Function.EPOCH) if has_batches(history, e)])
    return swap(history, victim)


def has_batches(history: History, line: Event) -> bool:
    return any(e.process == line.process and e.epoch == line.epoch for e in of(history, Function.BATCH))


def two_controllers(history: History, draws: Draws) -> History:
    """Two controllers are active in one epoch."""
    victim = draws.choice(of(history, Function.CONTROLLER, metadata=True))
    return swap(history, victim, victim, replace(victim, value="199"))


def committed_metadata_goes_back(history: History, draws: Draws) -> History:
    """The committed end of the metadata log goes back."""
    before, victim = again(history, draws, Function.CONTROLLER)
    return swap(history, victim, victim, replace(before, at_ms=victim.at_ms))


def different_metadata(history: History, draws: Draws) -> History:
    """A node has stored another metadata record than the others."""
    batches = of(history, Function.BATCH, metadata=True)
    victim = draws.choice(batches[: len(batches) // 2])
    return swap(history, victim, replace(victim, value="garbage"))


def replica_stays_out(history: History, draws: Draws) -> History:
    """A replica does not come back into the ISR after the faults."""
    heal = draws.choice([e for e in history if e.function is Function.HEAL])
    return [
        replace(e, value="2") if e.function is Function.ISR and heal.at_ms <= e.at_ms <= heal.at_ms + PATIENCE_MS else e
        for e in history
    ]


def stale_full_isr(history: History, draws: Draws) -> History:
    """A replica does not come back, but the deposed leader still shows the full ISR of its epoch."""
    stale = replace(of(history, Function.ISR)[0], value="", epoch=0)
    return [
        each
        for e in replica_stays_out(history, draws)
        for each in ((e, replace(stale, at_ms=e.at_ms)) if e.function is Function.HEAL else (e,))
    ]


def refused_writes(history: History, draws: Draws) -> History:
    """A partition acknowledges nothing any more after the faults."""
    heal = draws.choice([e for e in history if e.function is Function.HEAL])
    return [
        replace(e, type=Type.INFO, offset=None)
        if e.function is Function.SEND and e.type is Type.OK and e.at_ms >= heal.at_ms
        else e
        for e in history
    ]


def stuck_readers(history: History, draws: Draws) -> History:
    """Readers never get one of the records, and still work much later."""
    polls = of(history, Function.POLL)
    victim = draws.choice(polls[:-10])
    kept = [e for e in history if e.function is not Function.POLL or e.offset != victim.offset]
    return [*kept, replace(polls[-1], at_ms=polls[-1].at_ms + 2 * PATIENCE_MS)]


FAULTS: list[tuple[Callable[[History, Draws], History], set[tuple[str, str]]]] = [
    (high_watermark_goes_back, {("K6", "hw-regressed")}),
    (new_leader_lacks_records, {("K6", "committed-lost")}),
    (replica_lacks_its_tail, {("K6", "committed-missing")}),
    (changed_batch, {("K6", "committed-differs"), ("K7", "log-mismatch")}),
    (missing_batch, {("K6", "committed-differs"), ("K7", "log-mismatch")}),
    (diverged_tail, {("K6", "committed-differs")}),
    (truncated_by_high_watermark, {("K7", "truncated-otherwise")}),
    (truncated_committed_records, {("K6", "committed-truncated")}),
    (two_leaders, {("K7", "two-leaders")}),
    (decreasing_epoch, {("K7", "epoch-decreases")}),
    (wrong_checkpoint, {("K7", "epochs-differ")}),
    (lost_checkpoint, {("K7", "epochs-differ")}),
    (two_controllers, {("K8", "two-controllers")}),
    (committed_metadata_goes_back, {("K8", "commit-regressed")}),
    (different_metadata, {("K8", "metadata-differs")}),
    (replica_stays_out, {("K11", "isr-not-full")}),
    (stale_full_isr, {("K11", "isr-not-full")}),
    (refused_writes, {("K11", "not-writable")}),
    (stuck_readers, {("K11", "unseen")}),
]
"""Each fault with its required findings; others may accompany them."""
