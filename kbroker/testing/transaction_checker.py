"""K5 and the transactional part of K4, as functions from a history to findings.

    K4  processed-twice    two committed transactions of a group have consumed the same input
        not-processed      the committed offset of a group is after an input that no committed transaction has consumed
        zombie-send        a send is acknowledged that began after another producer had got a newer epoch
    K5  aborted-read       a reader gets a record of a transaction that was aborted, or never asked to commit (G1a)
        precommitted-read  a reader gets a record before its producer asked to commit
        torn-transaction   readers get one record of a transaction and miss another
        lost-write         a commit was acknowledged, and a reader passes a record of it without getting it
        circular-flow      committed transactions have read from each other in a circle (G1c, edges wr)
        zombie-commit      a transaction is committed whose producer asked after another had got a newer epoch
        lso-beyond-hw      a broker names a last stable offset above its high watermark
        lso-regressed      a leader names a lower last stable offset than before in the same epoch
    K11 hanging            the last answer about a partition has a last stable offset below the high watermark

A transaction is committed if its commit was acknowledged or a reader has got one of its records; it is aborted if its
commit was refused or never asked for, or if a reader has passed all its records without getting one. Readers with
isolation level read_uncommitted show nothing about that. So a commit without a known outcome may end in both ways, but
as a whole. The offsets of transactions are judged by K10, which uses these outcomes. Kafka allows G0: the writes of
open transactions interleave.

Source: Adya, "Weak Consistency" (1999); Jepsen's Kafka, Redpanda and Bufstream reports; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kbroker.testing.checkers import NOTHING_ALLOWED, Allowances, Evidence, Finding, sort_evidence
from kbroker.testing.history import BadHistory, Event, Function, Type


@dataclass(frozen=True, slots=True)
class Sight:
    """A reader gets a record, or passes it. Units: place is the index of the line in the history."""

    place: int
    process: str
    key: str
    offset: int


@dataclass(slots=True)
class Transaction:
    """One transaction and what is known about it.

    Shape   seen and missed are its records that read_committed readers got and passed; inputs are (partition, offset)
            and sources the transactions that wrote them; commits maps (group, partition) -> the offset
    Units   begun, asked and ended are places of lines: its first acknowledged write, the request to commit it, and the
            outcome; decided is where the producer's next committed transaction begun, before which this one had ended
    """

    name: str
    process: str
    begun: int | None = None
    asked: int | None = None
    ended: int | None = None
    decided: int | None = None
    type: Type = Type.INFO
    seen: list[Sight] = field(default_factory=list)
    missed: list[Sight] = field(default_factory=list)
    inputs: list[tuple[str, int]] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    commits: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def is_committed(self) -> bool:
        """Whether it has certainly taken effect."""
        return self.type is Type.OK or (bool(self.seen) and not self.is_refused)

    @property
    def is_refused(self) -> bool:
        """Whether its producer knows that it has no effect."""
        return self.type is Type.FAIL or self.asked is None

    @property
    def is_aborted(self) -> bool:
        """Whether it has certainly no effect."""
        return not self.is_committed and (self.is_refused or bool(self.missed))

    @property
    def committed_by(self) -> int | None:
        """A place at which it was committed, or was going to be; None if there is no evidence."""
        if not self.is_committed:
            return None
        known = [place for place in (self.decided, self.ended if self.type is Type.OK else None) if place is not None]
        return min([*known, *(sight.place for sight in self.seen)], default=None)


Transactions = dict[str, Transaction]


def sort_transactions(history: Sequence[Event], allowances: Allowances = NOTHING_ALLOWED) -> Transactions:
    """Collect what a history says about each transaction. Errors: BadHistory if the recording contradicts itself."""
    return _Sorting(sort_evidence(history), allowances).run(history)


class _Sorting:
    """Follows the positions of readers through a history."""

    def __init__(self, evidence: Evidence, allowances: Allowances) -> None:
        self._evidence = evidence
        self._allowances = allowances
        self._found: Transactions = {}
        self._positions: dict[tuple[str, str], int | None] = {}
        self._records = _places(evidence)

    def run(self, history: Sequence[Event]) -> Transactions:
        for place, event in enumerate(history):
            name = event.value if event.function is Function.TXN else event.transaction
            if name is not None and name not in self._found:
                self._found[name] = Transaction(name, event.process)
            if name is not None and event.type is Type.OK and event.function in (Function.SEND, Function.COMMIT):
                self._found[name].begun = self._found[name].begun or place
            if event.function is Function.TXN:
                self._end(event, place)
            elif event.function is Function.COMMIT and name is not None and event.type is Type.OK:
                self._found[name].commits[event.value or "", event.key] = event.offset or 0
            elif event.function in (Function.ASSIGN, Function.SUBSCRIBE) and event.type is not Type.INVOKE:
                self._assign(event)
            elif event.function is Function.POLL and event.offset is not None:
                if event.process not in self._allowances.uncommitted:
                    self._look(event, event.offset, place)
                if name is not None and event.type is Type.OK:
                    self._consume(self._found[name], event, event.offset)
        latest: dict[str, int | None] = {}
        for one in reversed(self._found.values()):
            one.decided = latest.get(one.process)
            if one.is_committed:
                latest[one.process] = one.begun
        return self._found

    def _end(self, event: Event, place: int) -> None:
        if event.value is None:
            raise BadHistory(f"a line of a transaction of {event.process} without its name at t={event.at_ms}")
        known = self._found[event.value]
        if known.process != event.process:
            raise BadHistory(f"{event.process} ends the transaction {event.value!r} of {known.process}")
        if event.type is Type.INVOKE:
            if known.asked is not None:
                raise BadHistory(f"{event.process} asks twice to commit {event.value!r}")
            known.asked = place
        elif known.asked is None or known.ended is not None:
            raise BadHistory(f"{event.process} has an outcome of {event.value!r} that it did not ask for")
        else:
            known.type, known.ended = event.type, place

    def _assign(self, event: Event) -> None:
        for reader in [reader for reader in self._positions if reader[0] == event.process]:
            if event.function is Function.SUBSCRIBE or reader[1] == event.key:
                self._positions[reader] = None
        if event.function is Function.ASSIGN:
            self._positions[event.process, event.key] = event.offset

    def _look(self, event: Event, offset: int, place: int) -> None:
        """A read_committed reader has moved to an offset, perhaps with a record."""
        position = self._positions.get((event.process, event.key))
        if position is not None:
            records = self._records.get(event.key, [])
            first = max(position, self._evidence.log_start_offset(event.key))
            for passed, name in records[bisect_left(records, (first, "")) : bisect_left(records, (offset, ""))]:
                if name in self._found:
                    self._found[name].missed.append(Sight(place, event.process, event.key, passed))
        self._positions[event.process, event.key] = offset + (event.type is Type.OK)
        send = self._evidence.sends.get((event.key, event.value or ""))
        if event.type is Type.OK and send is not None and send.transaction in self._found:
            self._found[send.transaction].seen.append(Sight(place, event.process, event.key, offset))

    def _consume(self, by: Transaction, event: Event, offset: int) -> None:
        by.inputs.append((event.key, offset))
        source = self._evidence.sends.get((event.key, event.value or ""))
        if source is not None and source.transaction is not None and source.transaction != by.name:
            by.sources.add(source.transaction)


def _places(evidence: Evidence) -> dict[str, list[tuple[int, str]]]:
    """Partition -> (offset, transaction) of each record of a transaction that is in the final logs."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    records = {key: [set(log.records) for log in logs] for key, logs in evidence.logs.items()}
    for (key, value), send in evidence.sends.items():
        if send.transaction is not None:
            found[key] += [
                (offset, send.transaction)
                for offset in evidence.places[key].get(value, ())
                if all((offset, value) in log for log in records.get(key, []))
            ]
    return {key: sorted(of_key) for key, of_key in found.items()}


def reads_are_committed(transactions: Transactions) -> Iterator[Finding]:
    """K5: no reader gets what is not committed, or a part of a transaction."""
    for one in transactions.values():
        for sight in one.seen[:1]:
            if one.is_refused:
                why = "never asked to commit" if one.asked is None else "was refused the commit"
                text = f"{sight.process} gets a record of {one.name!r}, whose producer {why}"
                yield Finding("K5", "aborted-read", sight.key, sight.offset, text)
            elif one.asked is not None and sight.place < one.asked:
                text = f"{sight.process} gets a record of {one.name!r} before {one.process} asked to commit it"
                yield Finding("K5", "precommitted-read", sight.key, sight.offset, text)
        for sight in one.missed[:1]:
            if one.seen:
                other = one.seen[0]
                text = (
                    f"{sight.process} passes a record of {one.name!r}, and {other.process} gets one at"
                    f" {other.key}@{other.offset}"
                )
                yield Finding("K5", "torn-transaction", sight.key, sight.offset, text)
            elif one.type is Type.OK:
                text = f"{sight.process} passes a record of {one.name!r}, whose commit was acknowledged"
                yield Finding("K5", "lost-write", sight.key, sight.offset, text)


def flow_is_not_circular(transactions: Transactions) -> Iterator[Finding]:
    """K5: no committed transactions that have read from each other in a circle."""
    left = {name: one.sources & transactions.keys() for name, one in transactions.items() if one.is_committed}
    while left:
        if free := [name for name, sources in left.items() if not sources & left.keys()]:
            left = {name: sources for name, sources in left.items() if name not in free}
            continue
        path = [next(iter(left))]
        while (source := min(left[path[-1]] & left.keys())) not in path:
            path.append(source)
        circle = path[path.index(source) :]
        key, offset = transactions[source].inputs[0]
        text = f"transactions have read from each other: {' from '.join([*circle, source])}"
        yield Finding("K5", "circular-flow", key, offset, text)
        left = {name: sources for name, sources in left.items() if name not in circle}


def inputs_are_processed_once(evidence: Evidence, transactions: Transactions) -> Iterator[Finding]:
    """K4: each input below the committed offset of a group belongs to one committed transaction."""
    by: dict[tuple[str, str, int], Transaction] = {}
    maybe: set[tuple[str, str, int]] = set()
    ends: dict[tuple[str, str], tuple[int, str]] = {}
    for one in transactions.values():
        for group in sorted({group for group, _ in one.commits}):
            places = [(group, key, offset) for key, offset in one.inputs if (group, key) in one.commits]
            if not one.is_committed:
                maybe.update(() if one.is_aborted else places)
                continue
            for place in places:
                other = by.setdefault(place, one)
                if other is not one:
                    text = f"{other.name!r} and {one.name!r} of {group} have both consumed it"
                    yield Finding("K4", "processed-twice", place[1], place[2], text)
        if one.is_committed:
            for register, offset in one.commits.items():
                ends[register] = max(ends.get(register, (0, "")), (offset, one.name))
    for (group, key), (end, name) in ends.items():
        first = evidence.log_start_offset(key)
        for offset in sorted(evidence.seen[key]):
            known = (group, key, offset) in by or (group, key, offset) in maybe
            if first <= offset < end and not known and _is_visible(evidence, transactions, key, offset):
                text = f"{name!r} commits {end} for {group}, and no committed transaction has consumed this"
                yield Finding("K4", "not-processed", key, offset, text)
                break


def _is_visible(evidence: Evidence, transactions: Transactions, key: str, offset: int) -> bool:
    """Whether an offset has a record that is not part of a transaction, or of a committed one."""
    sends = [evidence.sends[key, value] for value in evidence.seen[key][offset] if (key, value) in evidence.sends]
    return any(send.transaction is None or transactions[send.transaction].is_committed for send in sends)


def zombies_are_fenced(history: Sequence[Event], transactions: Transactions) -> Iterator[Finding]:
    """A producer has no effect once another one has got a newer epoch for its transactional id."""
    ids: dict[str, str] = {}
    newest: dict[str, str] = {}
    epochs: dict[str, int] = {}
    fenced: dict[tuple[str, str | None], str] = {}
    for place, event in enumerate(history):
        if event.function is Function.INIT:
            ids[event.process] = name = event.value or ""
            epoch = -1 if event.epoch is None else event.epoch
            if epoch >= epochs.get(name, -1):  # the answer with the older epoch may arrive last
                epochs[name], newest[name] = epoch, event.process
        elif event.function in (Function.TXN, Function.SEND) and event.process in ids:
            by = newest[ids[event.process]]
            one = transactions.get(event.transaction or event.value or "")
            if one is None:
                continue
            text = f"{event.process} began this after {by} had got a newer epoch of {ids[event.process]!r}"
            if event.function is Function.TXN and one.asked == place and by != event.process and one.is_committed:
                yield Finding("K5", "zombie-commit", "", -1, f"{one.name!r} is committed; {text}")
            elif event.function is Function.SEND and event.type is Type.INVOKE and by != event.process:
                fenced[event.key, event.value] = text
            elif event.type is Type.OK and (event.key, event.value) in fenced:
                text = f"{event.value!r} is acknowledged; {fenced[event.key, event.value]}"
                yield Finding("K4", "zombie-send", event.key, event.offset or 0, text)


def stable_offsets_hold(history: Sequence[Event]) -> Iterator[Finding]:
    """K5 and K11: last stable offsets are not above high watermarks, never go back, and reach them in the end."""
    latest: dict[tuple[str, str, int | None], int] = {}
    last: dict[str, Event] = {}
    for event in history:
        if event.function is not Function.STABLE:
            continue
        if event.offset is None or event.value is None:
            raise BadHistory(f"a line of {event.function} without an offset or a high watermark at t={event.at_ms}")
        if event.offset > int(event.value):
            text = f"{event.process} names it as the last stable offset, and the high watermark {event.value}"
            yield Finding("K5", "lso-beyond-hw", event.key, event.offset, text)
        leader = event.key, event.process, event.epoch
        if event.offset < latest.get(leader, 0):
            text = f"{event.process} names it as the last stable offset in epoch {event.epoch}, after {latest[leader]}"
            yield Finding("K5", "lso-regressed", event.key, event.offset, text)
        latest[leader] = max(event.offset, latest.get(leader, 0))
        last[event.key] = event
    for key, event in last.items():
        if event.offset is not None and event.offset < int(event.value or 0):
            text = f"{event.process} names it as the last stable offset to the end, below {event.value}"
            yield Finding("K11", "hanging", key, event.offset, text)


def check_transactions(history: Sequence[Event], allowances: Allowances = NOTHING_ALLOWED) -> list[Finding]:
    """All findings about transactions. Errors: BadHistory if the recording contradicts itself."""
    transactions = sort_transactions(history, allowances)
    return [
        *reads_are_committed(transactions),
        *flow_is_not_circular(transactions),
        *inputs_are_processed_once(sort_evidence(history), transactions),
        *zombies_are_fenced(history, transactions),
        *stable_offsets_hold(history),
    ]
