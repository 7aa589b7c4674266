"""K6, K7, K8 and K11, the promises of a cluster, as functions from a history to findings.

    K6   hw-regressed         a leader shows a lower high watermark than before in the same epoch
         committed-lost       the leader of a later epoch shows a lower high watermark than an earlier one did
         committed-missing    a replica ends below a high watermark that a client has seen
         committed-differs    two replicas have different bytes below it
         committed-truncated  a replica truncates below the high watermark that it knows
    K7   two-leaders          two brokers answer as leaders of a partition in one epoch
         log-mismatch         two logs have a batch of one epoch at one offset, and differ at or before it
         epoch-decreases      a batch has a lower epoch than the batch before it
         epochs-differ        the leader-epoch checkpoint contradicts the batches
         truncated-otherwise  a replica truncates for another reason than a diverging epoch
    K8   two-controllers      two nodes are named as the active controller of one epoch
         commit-regressed     the committed end of the metadata log goes back
         metadata-differs     two nodes have different metadata at one offset
    K11  not-writable         a partition acknowledges nothing of what was sent within T after the faults ended
         isr-not-full         a replica is not in sync again within T, in the newest leader epoch
         unseen               an acknowledged record reaches no reader within T, although readers go on

A cluster shows its state by answers and files, so the checkers see less than a simulation does: a wrong high watermark
counts only if a client could have seen it. In the logs the property is Raft's log matching; nodes that replay equal
metadata logs have equal images. Histories are without unclean elections, which may lose records. A record of a
transaction counts as acknowledged when its transaction is committed.

Source: KIP-101, KIP-207, KIP-279, KIP-595; Raft (Ongaro and Ousterhout, log matching, election safety).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from kbroker.metadata.names import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.testing.checkers import Finding
from kbroker.testing.history import BadHistory, Event, Function, Type

METADATA = f"{CLUSTER_METADATA_TOPIC}-0"
COMPACTED = (f"{GROUP_METADATA_TOPIC}-", f"{TRANSACTION_STATE_TOPIC}-")
PATIENCE_MS = 30_000
BY_EPOCH = "epoch"
"""The reason of a truncation to the point where two histories of leader epochs diverge."""


@dataclass(slots=True)
class DiskLog:
    """One log as it is on the disk of a node.

    Shape   batches maps a base offset to the leader epoch and the digest of the batch; epochs are (epoch, first offset)
    """

    process: str
    key: str
    start: int = 0
    end: int = -1
    batches: dict[int, tuple[int, str]] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)

    def differs_at(self, other: DiskLog, end: int) -> int | None:
        """The first offset below `end` where the two have different batches, of those that both still have."""
        start, end = max(self.start, other.start), min(end, self.end, other.end)
        offsets = sorted(offset for offset in self.batches.keys() | other.batches.keys() if start <= offset < end)
        return next((each for each in offsets if self.batches.get(each) != other.batches.get(each)), None)

    def contradicts_at(self, other: DiskLog, end: int) -> int | None:
        """As `differs_at`, for logs that are compacted: the first offset where the leader epochs differ."""
        both = sorted(self.batches.keys() & other.batches.keys())
        return next((each for each in both if each < end and self.batches[each][0] != other.batches[each][0]), None)

    def matched_end(self, other: DiskLog) -> int:
        """The end up to which the two must be equal: after the last offset that has one epoch in both."""
        both = self.batches.keys() & other.batches.keys()
        return max((each + 1 for each in both if self.batches[each][0] == other.batches[each][0]), default=0)


@dataclass(slots=True)
class Observed:
    """A history, sorted for the checkers: the answers in their order, and the final logs of each partition.

    Shape   compacted has partitions of user topics; each replica is compacted by itself, so one may lack what another
            still has
    """

    answers: dict[Function, list[Event]]
    logs: dict[str, list[DiskLog]]
    compacted: set[str] = field(default_factory=set)

    def difference(self, one: DiskLog, other: DiskLog, end: int) -> int | None:
        """The first offset below `end` at which two logs of a partition must not differ, and do."""
        is_compacted = self.is_compacted(one.key)
        return one.contradicts_at(other, end) if is_compacted else one.differs_at(other, end)

    def is_compacted(self, key: str) -> bool:
        """Whether a partition is of an internal topic or a user's topic that is compacted."""
        return key in self.compacted or key.startswith(COMPACTED)

    def leaders(self) -> dict[str, list[tuple[int, int, str]]]:
        """Partition -> (epoch, high watermark, broker) in the order of the answers."""
        found = defaultdict(list)
        for event in self.answers[Function.LEADS]:
            found[event.key].append((_epoch(event), _offset(event), event.process))
        return found

    def committed(self, key: str) -> int:
        """The largest committed end of a partition, or of the metadata log, that a client has seen."""
        function = Function.CONTROLLER if key == METADATA else Function.LEADS
        return max((_offset(event) for event in self.answers[function] if event.key == key), default=0)


def check_cluster(history: Sequence[Event], *, patience_ms: int = PATIENCE_MS) -> list[Finding]:
    """All findings of K6, K7, K8 and K11. Errors: BadHistory if the recording cannot be judged."""
    observed = sort_observed(history)
    for function in (Function.LEADS, Function.CONTROLLER, Function.ISR, Function.HEAL):
        if not observed.answers[function]:
            raise BadHistory(f"there is no line of {function}")
    if unread := (observed.leaders().keys() | {METADATA}) - observed.logs.keys():
        raise BadHistory(f"the logs of {sorted(unread)} were not read")
    return [
        *high_watermarks_hold(observed),
        *logs_match(observed),
        *metadata_agrees(observed),
        *cluster_recovers(history, patience_ms=patience_ms),
    ]


def sort_observed(history: Iterable[Event]) -> Observed:
    """Group the lines. Errors: BadHistory if a line lacks a field, or a log has batches and no end."""
    observed = Observed(defaultdict(list), defaultdict(list))
    logs: dict[tuple[str, str], DiskLog] = {}
    for event in history:
        if event.function in (Function.BATCH, Function.EPOCH, Function.END):
            log = logs.setdefault((event.key, event.process), DiskLog(event.process, event.key))
            if event.function is Function.BATCH:
                log.batches[_offset(event)] = (_epoch(event), event.value or "")
            elif event.function is Function.EPOCH:
                log.epochs.append((_epoch(event), _offset(event)))
            else:
                log.start, log.end = int(event.value or 0), _offset(event)
        else:
            observed.answers[event.function].append(event)
            if event.record_key is not None:
                observed.compacted.add(event.key)
    for log in logs.values():
        if log.end < 0:
            raise BadHistory(f"the log of {log.key} on {log.process} has no end")
        observed.logs[log.key].append(log)
    return observed


def _offset(event: Event) -> int:
    if event.offset is None:
        raise BadHistory(f"a line of {event.function} without an offset at t={event.at_ms}")
    return event.offset


def _epoch(event: Event) -> int:
    if event.epoch is None:
        raise BadHistory(f"a line of {event.function} without an epoch at t={event.at_ms}")
    return event.epoch


def high_watermarks_hold(observed: Observed) -> Iterator[Finding]:
    """K6: high watermarks never go back, and every replica has what is below them."""
    for key, answers in observed.leaders().items():
        yield from _judge_high_watermarks(key, answers)
        committed, logs = observed.committed(key), observed.logs[key]
        for log in logs:
            if log.end < committed:
                text = f"clients have seen the high watermark {committed}, and the log of {log.process} ends before it"
                yield Finding("K6", "committed-missing", key, log.end, text)
        for one, other in combinations(logs, 2):
            if (offset := observed.difference(one, other, committed)) is not None:
                text = f"{one.process} and {other.process} differ below the high watermark {committed}"
                yield Finding("K6", "committed-differs", key, offset, text)
    for event in observed.answers[Function.TRUNCATE]:
        if _offset(event) < int(event.value or 0):
            text = f"{event.process} truncates below {event.value}, which it knows as high watermark"
            yield Finding("K6", "committed-truncated", event.key, _offset(event), text)


def _judge_high_watermarks(key: str, answers: Sequence[tuple[int, int, str]]) -> Iterator[Finding]:
    latest: dict[int, int] = {}
    lowest: dict[int, tuple[int, str]] = {}
    for epoch, high_watermark, broker in answers:
        if high_watermark < latest.get(epoch, 0):
            text = f"{broker} shows it as high watermark in epoch {epoch}, after {latest[epoch]}"
            yield Finding("K6", "hw-regressed", key, high_watermark, text)
        latest[epoch] = max(latest.get(epoch, 0), high_watermark)
        lowest[epoch] = min(lowest.get(epoch, (high_watermark, broker)), (high_watermark, broker))
    for earlier, later in pairwise(sorted(latest)):
        latest[later] = max(latest[later], latest[earlier])
        (high_watermark, broker) = lowest[later]
        if high_watermark < latest[earlier]:
            text = f"{broker} shows it as high watermark in epoch {later}, and an earlier leader {latest[earlier]}"
            yield Finding("K6", "committed-lost", key, high_watermark, text)


def logs_match(observed: Observed) -> Iterator[Finding]:
    """K7: one leader for each epoch; logs that share an epoch are equal before its last common offset."""
    for key, answers in observed.leaders().items():
        by_epoch: dict[int, str] = {}
        for epoch, _, broker in answers:
            if by_epoch.setdefault(epoch, broker) != broker:
                text = f"{by_epoch[epoch]} and {broker} both lead in epoch {epoch}"
                yield Finding("K7", "two-leaders", key, -1, text)
                break
    for key, logs in observed.logs.items():
        if key == METADATA:
            continue
        for log in logs:
            yield from _judge_epochs(log, is_compacted=observed.is_compacted(key))
        for one, other in combinations(logs, 2):
            if (offset := observed.difference(one, other, one.matched_end(other))) is not None:
                text = f"{one.process} and {other.process} differ, and have later batches of one epoch at one offset"
                yield Finding("K7", "log-mismatch", key, offset, text)
    for event in observed.answers[Function.TRUNCATE]:
        if event.error != BY_EPOCH:
            yield Finding("K7", "truncated-otherwise", event.key, _offset(event), f"{event.process}: {event.error}")


def _judge_epochs(log: DiskLog, *, is_compacted: bool) -> Iterator[Finding]:
    first: dict[int, int] = {}
    latest = -1
    for offset, (epoch, _) in sorted(log.batches.items()):
        if epoch < latest:
            text = f"{log.process} has a batch of epoch {epoch} after one of epoch {latest}"
            yield Finding("K7", "epoch-decreases", log.key, offset, text)
        latest = epoch
        if offset >= log.start:
            first.setdefault(epoch, offset)
    noted = dict(log.epochs)

    def may_begin_earlier(begins: int, epoch: int) -> bool:
        """Whether the log is compacted, and has no batch of an earlier epoch from `begins` on."""
        return is_compacted and all(at < begins or of >= epoch for at, (of, _) in log.batches.items())

    for number, (epoch, offset) in enumerate(first.items()):
        begins = noted.get(epoch)
        # The first epoch of the checkpoint begins at the log start offset, which may be inside a batch; if a tier has
        # the older records, it begins before the first record of the disk.
        # The cleaner may have removed the first batches of an epoch, so it may also begin after the last earlier batch.
        is_earlier = begins is not None and begins < offset and (number == 0 or may_begin_earlier(begins, epoch))
        if begins not in (offset, log.start) and not is_earlier:
            text = f"{log.process} begins epoch {epoch} here, and its checkpoint says {begins}"
            yield Finding("K7", "epochs-differ", log.key, offset, text)


def metadata_agrees(observed: Observed) -> Iterator[Finding]:
    """K8: one controller for each epoch, and the same committed metadata everywhere."""
    active: dict[int, str] = {}
    ends: dict[str, int] = {}
    for event in observed.answers[Function.CONTROLLER]:
        epoch, end, named = _epoch(event), _offset(event), event.value or ""
        if active.setdefault(epoch, named) != named:
            text = f"{event.process} names {named} as the controller of epoch {epoch}, which was {active[epoch]}"
            yield Finding("K8", "two-controllers", METADATA, -1, text)
        if 0 <= end < ends.get(event.process, 0):
            text = f"{event.process} shows it as the committed end, after {ends[event.process]}"
            yield Finding("K8", "commit-regressed", METADATA, end, text)
        ends[event.process] = max(end, ends.get(event.process, 0))
    committed = observed.committed(METADATA)
    for one, other in combinations(observed.logs[METADATA], 2):
        if (offset := one.differs_at(other, max(committed, one.matched_end(other)))) is not None:
            text = f"{one.process} and {other.process} have different records there"
            yield Finding("K8", "metadata-differs", METADATA, offset, text)


def cluster_recovers(history: Iterable[Event], *, patience_ms: int = PATIENCE_MS) -> Iterator[Finding]:
    """K11: after each end of the faults all partitions accept writes and have full ISRs within `patience_ms`."""
    heals: list[int] = []
    full: dict[str, list[int]] = defaultdict(list)
    latest: dict[str, int] = defaultdict(int)
    begun: dict[tuple[str, str | None], int] = {}
    ended: dict[tuple[str, str | None], int] = {}
    acked: list[tuple[Event, int]] = []
    committed: dict[str | None, int] = {None: -1}
    starts: dict[str, int] = defaultdict(int)
    polled: dict[str, set[int | None]] = defaultdict(set)
    last_poll: dict[str, int] = {}
    newest: dict[tuple[str, str], int] = {}
    for event in history:
        if event.function is Function.HEAL:
            heals.append(event.at_ms)
        elif event.function in (Function.ISR, Function.LEADS):
            # A deposed leader may still name the full ISR of its epoch.
            latest[event.key] = max(latest[event.key], _epoch(event))
            if event.function is Function.ISR:
                full[event.key] += [event.at_ms] if event.value == "" and event.epoch == latest[event.key] else []
        elif event.function is Function.SEND and event.type is Type.INVOKE:
            begun[event.key, event.value] = event.at_ms
        elif event.function is Function.SEND:
            ended[event.key, event.value] = event.at_ms
        if event.function is Function.SEND and event.type is Type.OK:
            acked.append((event, begun.get((event.key, event.value), -1)))
            if event.record_key is not None and event.offset is not None:
                place = event.key, event.record_key
                newest[place] = max(newest.get(place, 0), event.offset)
        elif event.function is Function.TXN and event.type is Type.OK:
            committed[event.value] = event.at_ms
        elif event.function is Function.POLL and event.type is Type.OK:
            polled[event.key].add(event.offset)
            last_poll[event.key] = event.at_ms
        elif event.function is Function.BOUNDS:
            starts[event.key] = max(starts[event.key], int(event.value or 0))
    for key, times in full.items():
        for heal_ms in heals:
            end_ms = heal_ms + patience_ms
            if not any(heal_ms <= at_ms <= end_ms for at_ms in times):
                yield Finding("K11", "isr-not-full", key, -1, f"not within {patience_ms} ms after t={heal_ms}")
            # If transactions are rare, a partition may get no records in that time.
            is_tried = any(
                sent[0] == key and at_ms <= end_ms and ended.get(sent, heal_ms) >= heal_ms
                for sent, at_ms in begun.items()
            )
            is_acked = any(e.key == key and heal_ms <= sent_ms and e.at_ms <= end_ms for e, sent_ms in acked)
            if is_tried and not is_acked:
                yield Finding("K11", "not-writable", key, -1, f"not within {patience_ms} ms after t={heal_ms}")
    for event, _ in acked:
        late_ms = max(event.at_ms, committed.get(event.transaction, event.at_ms)) + patience_ms
        if (
            event.transaction in committed
            and event.offset is not None  # a repetition that the leader no longer remembers is acknowledged without it
            and event.offset >= starts[event.key]
            and event.offset not in polled[event.key]
            and last_poll.get(event.key, -1) > late_ms
            # The cleaner may be faster than the readers.
            and event.tombstone_ms is None
            and event.offset >= newest.get((event.key, event.record_key or ""), 0)
        ):
            text = f"no reader has received {event.value!r}, which was acknowledged at t={event.at_ms}"
            yield Finding("K11", "unseen", event.key, event.offset, text)
