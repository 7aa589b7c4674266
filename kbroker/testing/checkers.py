"""Checkers: pure functions from a history to a list of findings.

The same functions judge simulated runs, kbroker under `kill -9`, and Apache Kafka. Each checks one promise:

    K1 acked_is_durable   an acknowledged record is readable at its offset with its bytes, until retention or
                          DeleteRecords; a refused one is never seen
    K2 offsets_agree      one value for each offset, over all acknowledgements, polls and logs; readers see only
                          values that were sent
    K3 order_is_kept      a producer's records are in the order of its sends; a reader's offsets rise, and it skips
                          no record
    K4 sent_once          each value has one offset, and the offsets of a log have no unexplained gap

A compacted log may lack a record if it has a later one of its key, or if a tombstone that came after the record is
older than delete.retention.ms. A reader may skip a record if a later one of its key had been sent.

Values are unique within each partition, so the checkers recognize a record that was lost, changed, moved or repeated.
`Allowances` names what a run was permitted to do; everything else is a finding. The checkers do not check liveness: a
history without a single acknowledgement passes, so the harness also asserts that work was done.

Source: Jepsen's Kafka workload (lost-write, inconsistent-offsets, nonmonotonic-send, poll-skip, nonmonotonic-poll,
duplicate), with its allowances: records of other producers between two sends of one are no int-send-skip, and under
`subscribe` a rebalance may move a reader in both directions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kbroker.testing.history import BadHistory, Event, Function, Type


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise.

    Shape   check is the checker's id; kind is one word for the sort of damage; text is a sentence with the evidence
    """

    check: str
    kind: str
    key: str
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.check} {self.kind} {self.key}@{self.offset}: {self.text}"


@dataclass(frozen=True, slots=True)
class Allowances:
    """What a run was permitted to do.

    Shape   unordered: processes whose sends may be repeated and reordered (not idempotent, with retries);
            leader_lost: partitions whose leader was lost for good, so that acks=1 promises nothing there;
            uncommitted: processes that read with isolation level read_uncommitted; consumer_groups: groups of KIP-848,
            whose members have epochs of their own
    """

    unordered: frozenset[str] = frozenset()
    leader_lost: frozenset[str] = frozenset()
    uncommitted: frozenset[str] = frozenset()
    consumer_groups: frozenset[str] = frozenset()


NOTHING_ALLOWED = Allowances()
CLOCK_ERROR_MS = 10_000
"""A broker with a wrong clock may remove a tombstone this long before the end of its delete.retention.ms."""
NO_BOUNDS = -1


@dataclass(slots=True)
class Send:
    """One send and its outcome."""

    process: str
    key: str
    value: str
    type: Type = Type.INFO
    offset: int | None = None
    acks: int = -1
    transaction: str | None = None
    record_key: str | None = None
    tombstone_ms: int | None = None
    sent_ms: int = 0

    def is_expired(self, at_ms: int) -> bool:
        """Whether it is a tombstone that the cleaner may have removed."""
        return self.tombstone_ms is not None and self.sent_ms + self.tombstone_ms <= at_ms + CLOCK_ERROR_MS


@dataclass(slots=True)
class FinalLog:
    """One log as it was read after the faults.

    Shape   records in the order in which they were read; explained maps offsets without a record to the reason
    Units   read_ms is when its end was read
    """

    source: str
    log_start_offset: int
    log_end_offset: int
    read_ms: int = 0
    records: list[tuple[int, str]] = field(default_factory=list)
    explained: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Evidence:
    """A history, sorted for the checkers.

    Shape   sends maps (partition, value) -> the send; seen maps partition -> offset -> value -> the first witness;
            places maps partition -> value -> its offsets; logs maps partition -> the final logs, one for each source;
            committed are the transactions whose commit was acknowledged; keyed maps (partition, record key) -> the
            offsets and sends of the records of a compacted topic that were seen
    """

    sends: dict[tuple[str, str], Send]
    reads: list[Event]
    seen: dict[str, dict[int, dict[str, str]]]
    places: dict[str, dict[str, set[int]]]
    logs: dict[str, list[FinalLog]]
    committed: set[str | None]
    keyed: dict[tuple[str, str], list[tuple[int, Send]]] = field(default_factory=lambda: defaultdict(list))

    def may_be_skipped(self, key: str, offset: int, at_ms: int) -> bool:
        """Whether the cleaner may have removed what was at an offset before a reader came there."""
        return any(
            (at > offset and later.sent_ms <= at_ms) or (at >= offset and later.is_expired(at_ms))
            for value in self.seen[key][offset]
            if (send := self.sends.get((key, value))) is not None and send.record_key is not None
            for at, later in self.keyed[key, send.record_key]
        )

    def is_cleaned(self, send: Send, log: FinalLog, by_value: dict[str, int]) -> bool:
        """Whether the cleaner may have removed a record from a log."""
        if send.record_key is None:
            return False
        offset = -1 if send.offset is None else send.offset
        return send.is_expired(log.read_ms) or any(
            at > offset and (later.value in by_value or later.is_expired(log.read_ms))
            for at, later in self.keyed[send.key, send.record_key]
        )

    def log_start_offset(self, key: str) -> int:
        """The lowest start among a partition's final logs, 0 without any."""
        return min((log.log_start_offset for log in self.logs.get(key, [])), default=0)

    def known(self, key: str, *, only_committed: bool) -> list[int]:
        """The offsets that have a record; only those that every reader must see, or also those of open and aborted
        transactions.
        """
        return sorted(
            offset
            for offset, values in self.seen[key].items()
            if not only_committed or any(self._is_visible(key, value) for value in values)
        )

    def _is_visible(self, key: str, value: str) -> bool:
        send = self.sends.get((key, value))
        return send is None or send.transaction is None or send.transaction in self.committed


def sort_evidence(history: Iterable[Event]) -> Evidence:
    """Match invocations with completions. Errors: BadHistory if the recorder contradicts itself."""
    evidence = Evidence(
        {}, [], defaultdict(lambda: defaultdict(dict)), defaultdict(lambda: defaultdict(set)), {}, set()
    )
    logs: dict[tuple[str, str], FinalLog] = {}
    for event in history:
        if event.function is Function.SEND:
            _match_send(event, evidence.sends)
            if event.type is Type.OK and event.offset is not None and event.offset >= 0:
                _note(evidence, event, f"the acknowledgement to {event.process}")
        elif event.function is Function.POLL and event.type is Type.OK:
            evidence.reads.append(event)
            _note(evidence, event, f"a poll of {event.process}")
        elif event.function is Function.TXN and event.type is Type.OK:
            evidence.committed.add(event.value)
        elif event.function in {Function.ASSIGN, Function.SUBSCRIBE} and event.type is not Type.INVOKE:
            evidence.reads.append(event)
        elif event.function in {Function.FINAL, Function.BOUNDS}:
            _read_final(event, logs.setdefault((event.key, event.process), FinalLog(event.process, 0, NO_BOUNDS)))
            if event.function is Function.FINAL and event.type is Type.OK:
                _note(evidence, event, f"the final log of {event.process}")
    for (key, value), send in evidence.sends.items():
        if send.record_key is not None:
            evidence.keyed[key, send.record_key] += [(at, send) for at in evidence.places[key].get(value, ())]
    for (key, source), log in logs.items():
        if log.log_end_offset == NO_BOUNDS:
            raise BadHistory(f"the final log of {key} on {source} has records but no bounds")
        evidence.logs.setdefault(key, []).append(log)
    return evidence


def _match_send(event: Event, sends: dict[tuple[str, str], Send]) -> None:
    if event.value is None:
        raise BadHistory(f"a send of {event.process} to {event.key} without a value at t={event.at_ms}")
    send = sends.get((event.key, event.value))
    if event.type is Type.INVOKE:
        if send is not None:
            raise BadHistory(f"{event.value!r} is sent twice to {event.key}; the checkers need unique values")
        sends[event.key, event.value] = Send(
            event.process, event.key, event.value, acks=event.acks, transaction=event.transaction,
            record_key=event.record_key, tombstone_ms=event.tombstone_ms, sent_ms=event.at_ms,
        )  # fmt: skip
        return
    if send is None or send.process != event.process:
        raise BadHistory(f"{event.process} completes a send of {event.value!r} to {event.key} that it did not invoke")
    if send.type is not Type.INFO:
        raise BadHistory(f"the send of {event.value!r} to {event.key} is completed twice")
    send.type, send.offset = event.type, event.offset


def _read_final(event: Event, log: FinalLog) -> None:
    """Add a line to the final log."""
    if event.offset is None:
        raise BadHistory(f"a {event.function} line of {event.key} without an offset at t={event.at_ms}")
    if event.function is Function.BOUNDS:
        log.log_start_offset, log.log_end_offset, log.read_ms = int(event.value or 0), event.offset, event.at_ms
    elif event.type is Type.INFO:
        log.explained[event.offset] = event.error or "unknown"
    elif event.value is not None:
        log.records.append((event.offset, event.value))


def _note(evidence: Evidence, event: Event, witness: str) -> None:
    if event.offset is None or event.value is None:
        raise BadHistory(f"a {event.function} of {event.key} without offset or value at t={event.at_ms}")
    evidence.seen[event.key][event.offset].setdefault(event.value, witness)
    evidence.places[event.key][event.value].add(event.offset)


def acked_is_durable(evidence: Evidence, allowances: Allowances = NOTHING_ALLOWED) -> Iterator[Finding]:
    """K1: every acknowledged send is in every final log at its offset with its value; a refused send is in none."""
    logs = {
        key: [(log, dict(log.records), {value: offset for offset, value in log.records}) for log in of_key]
        for key, of_key in evidence.logs.items()
    }
    for send in evidence.sends.values():
        if send.type is Type.FAIL:
            for offset in sorted(evidence.places[send.key].get(send.value, ())):
                witness = evidence.seen[send.key][offset][send.value]
                yield Finding(
                    "K1", "failed-but-seen", send.key, offset,
                    f"{send.process} was refused {send.value!r}, but {witness} shows it",
                )  # fmt: skip
        if send.type is not Type.OK or send.acks == 0 or (send.acks == 1 and send.key in allowances.leader_lost):
            continue
        if send.key not in logs:
            raise BadHistory(f"{send.key} was written but not read to its end, so it cannot be judged")
        for log, by_offset, by_value in logs[send.key]:
            if send.value in by_value or not evidence.is_cleaned(send, log, by_value):
                yield from _judge_acked(send, log, by_offset, by_value)


def _judge_acked(send: Send, log: FinalLog, by_offset: dict[int, str], by_value: dict[str, int]) -> Iterator[Finding]:
    moved = by_value.get(send.value)
    if send.offset is None or send.offset < 0:
        # The acknowledgement had no offset (a duplicate older than the broker remembers). Then the value must be
        # somewhere, unless the start of the log has risen, because the value may have been below it.
        if moved is None and log.log_start_offset == 0:
            yield Finding("K1", "lost", send.key, -1, f"{send.value!r} is acknowledged but missing on {log.source}")
        return
    if send.offset < log.log_start_offset:
        return
    found = by_offset.get(send.offset)
    if found == send.value:
        return
    acked = f"{send.value!r} of {send.process} is acknowledged at {send.offset}; {log.source} has"
    if found is None and moved is None:
        text = f"{acked} no record there (its log is [{log.log_start_offset}, {log.log_end_offset}))"
        yield Finding("K1", "lost", send.key, send.offset, text)
    elif moved is not None:
        yield Finding("K1", "moved", send.key, send.offset, f"{acked} it at {moved}")
    else:
        yield Finding("K1", "changed", send.key, send.offset, f"{acked} {found!r} there")


def offsets_agree(evidence: Evidence) -> Iterator[Finding]:
    """K2: each offset has one value, and each value was sent to its partition."""
    for key, offsets in evidence.seen.items():
        for offset, values in sorted(offsets.items()):
            if len(values) > 1:
                reported = ", ".join(f"{value!r} by {witness}" for value, witness in values.items())
                yield Finding("K2", "inconsistent-offset", key, offset, f"one offset, {len(values)} values: {reported}")
            for value, witness in values.items():
                if (key, value) not in evidence.sends:
                    yield Finding("K2", "unsent", key, offset, f"{witness} shows {value!r}, which was never sent there")


def order_is_kept(evidence: Evidence, allowances: Allowances = NOTHING_ALLOWED) -> Iterator[Finding]:
    """K3: sends of one process are in their order; readers move forward and skip no known record."""
    yield from _judge_sends(evidence, allowances)
    yield from _judge_reads(evidence, allowances)
    for key, logs in evidence.logs.items():
        for log in logs:
            for (before, _), (offset, value) in zip(log.records, log.records[1:], strict=False):
                if offset <= before:
                    text = f"{log.source} gives {value!r} at {offset} after offset {before}"
                    yield Finding("K3", "nonmonotonic-log", key, offset, text)


def _judge_sends(evidence: Evidence, allowances: Allowances) -> Iterator[Finding]:
    latest: dict[tuple[str, str], tuple[int, str]] = {}
    for send in evidence.sends.values():
        if send.process in allowances.unordered or send.type is Type.FAIL:
            continue
        places = evidence.places[send.key].get(send.value, set())
        if len(places) != 1:
            continue  # its offset is unknown, or it has several, which is K4's finding
        (offset,) = places
        before = latest.get((send.process, send.key))
        if before is not None and offset <= before[0]:
            text = f"{send.process} sent {before[1]!r} and then {send.value!r}, which are at {before[0]} and {offset}"
            yield Finding("K3", "nonmonotonic-send", send.key, offset, text)
        else:
            latest[send.process, send.key] = (offset, send.value)


def _judge_reads(evidence: Evidence, allowances: Allowances) -> Iterator[Finding]:
    known: dict[tuple[str, bool], list[int]] = {}
    next_offset: dict[tuple[str, str], int | None] = {}
    for event in evidence.reads:
        if event.function is not Function.POLL:
            # A rebalance of a subscription may move the reader anywhere; an assignment says where it reads next.
            for reader in [reader for reader in next_offset if reader[0] == event.process]:
                if event.function is Function.SUBSCRIBE or reader[1] == event.key:
                    next_offset[reader] = None
            if event.function is Function.ASSIGN:
                next_offset[event.process, event.key] = event.offset
            continue
        assert event.offset is not None, "sort_evidence refuses a poll without an offset"
        expected = next_offset.get((event.process, event.key))
        if expected is not None and event.offset < expected:
            text = f"{event.process} polled {event.value!r} instead of {expected} or a later offset"
            yield Finding("K3", "nonmonotonic-poll", event.key, event.offset, text)
        elif expected is not None:
            expected = max(expected, evidence.log_start_offset(event.key))
            level = event.key, event.process not in allowances.uncommitted
            if level not in known:
                known[level] = evidence.known(event.key, only_committed=level[1])
            yield from _judge_skip(evidence, event, known[level], expected)
        next_offset[event.process, event.key] = event.offset + 1


def _judge_skip(evidence: Evidence, event: Event, known: Sequence[int], expected: int) -> Iterator[Finding]:
    offset = event.offset or 0
    skipped = known[bisect_left(known, expected) : bisect_right(known, offset - 1)]
    skipped = [each for each in skipped if not evidence.may_be_skipped(event.key, each, event.at_ms)]
    if skipped:
        text = f"{event.process} polled {offset} instead of {expected}, and missed {len(skipped)} known records"
        yield Finding("K3", "poll-skip", event.key, skipped[0], text)


def sent_once(evidence: Evidence, allowances: Allowances = NOTHING_ALLOWED) -> Iterator[Finding]:
    """K4: each value is at one offset; the final logs are contiguous except for explained offsets."""
    for send in evidence.sends.values():
        places = sorted(evidence.places[send.key].get(send.value, ()))
        if len(places) > 1 and send.process not in allowances.unordered:
            text = f"{send.value!r} of {send.process} is at {', '.join(map(str, places))}"
            yield Finding("K4", "duplicate", send.key, places[1], text)
    for key, logs in evidence.logs.items():
        for log in logs:
            yield from _judge_gaps(key, log)


def _judge_gaps(key: str, log: FinalLog) -> Iterator[Finding]:
    expected = log.log_start_offset
    for offset in sorted({offset for offset, _ in log.records} | log.explained.keys()):
        if offset > expected:
            yield _gap(key, log, expected, offset)
        expected = max(expected, offset + 1)
    if log.log_end_offset > expected:
        yield _gap(key, log, expected, log.log_end_offset)
    elif log.log_end_offset < expected and (log.records or log.explained):
        text = f"{log.source} has a record at {expected - 1}, after its end {log.log_end_offset}"
        yield Finding("K4", "behind-end", key, expected - 1, text)


def _gap(key: str, log: FinalLog, first: int, end: int) -> Finding:
    text = f"{log.source} has no record from {first} to {end - 1}, and no reason for it"
    return Finding("K4", "gap", key, first, text)


def check_history(history: Iterable[Event], allowances: Allowances = NOTHING_ALLOWED) -> list[Finding]:
    """All of K1 to K4. Errors: BadHistory if the recording contradicts itself."""
    evidence = sort_evidence(history)
    return [
        *acked_is_durable(evidence, allowances),
        *offsets_agree(evidence),
        *order_is_kept(evidence, allowances),
        *sent_once(evidence, allowances),
    ]
