"""K10, the promises of groups, as a function from a history to a list of findings.

    lost-commit     an acknowledged commit is not what a later read gives, and no later commit or deletion explains it
    lost-deletion   a read gives an offset from before an acknowledged deletion
    regressed       the second of two successive reads gives an offset, or none, that nothing between them can have set
    unsent-commit   a read gives an offset that was never committed, or whose commit was refused
    two-owners      two members own one partition in one generation of their group
    stale-commit    a commit of a generation was acknowledged that began after a later generation was in force

Each offset of a group is a register: a commit takes effect at one moment between its invocation and its completion, at
any later moment if its end is not known (`info`, or no completion), and never if it was refused. A commit in a
transaction takes effect after its producer has asked to commit the transaction, or never; see `transaction_checker`.
Reads must be of stable offsets, so a commit counts as soon as the outcome of the transaction is decided. Two requests
for it that overlap may have taken effect in either order. A deletion is a commit of -1, which each register also
contains before the first commit. A generation is in force once the first member knows its assignment. In groups of
KIP-848 the members have epochs of their own, so a newer epoch ends an older one only for the partitions that its member
owns. A group without offsets goes with its last member, and generations begin again; so there two members may own a
partition in one generation, if the session of the first can have ended before.

These histories do not cover expired offsets and deleted groups: leave out a group whose offsets may go by themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.testing.checkers import NOTHING_ALLOWED, Allowances, Finding
from kbroker.testing.history import BadHistory, Event, Function, Type
from kbroker.testing.transaction_checker import Transactions, sort_transactions

NONE_COMMITTED = -1
SESSION_MS: Final = 6_000
"""The session time-out of members."""


@dataclass(slots=True)
class Access:
    """A commit or a read of one register.

    Units  begin and end are places in the history; end is None if it is not known or never came; sent is the place of
           the request, before begin in a transaction
    """

    process: str
    offset: int | None
    begin: int
    epoch: int = -1
    end: int | None = None
    type: Type = Type.INFO
    sent: int = -1
    transaction: str | None = None


@dataclass(slots=True)
class Register:
    """All accesses to one offset of a group."""

    group: str
    key: str
    commits: list[Access]
    reads: list[Access]


def check_groups(history: Sequence[Event], allowances: Allowances = NOTHING_ALLOWED) -> list[Finding]:
    """All findings of K10. Errors: BadHistory if the recording contradicts itself."""
    transactions = sort_transactions(history, allowances)
    registers: dict[tuple[str, str], Register] = {}
    open_accesses: dict[tuple[Function, str, str, str], Access] = {}
    owners: dict[tuple[str, str, int], Event] = {}
    with_offsets: set[str] = set()
    in_force: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    owned_ms: dict[tuple[str, str], int] = {}

    def scope(group: str, key: str) -> tuple[str, str]:
        return group, key if group in allowances.consumer_groups else ""

    findings: list[Finding] = []
    for place, event in enumerate(history):
        if event.function is Function.OWN:
            findings.extend(_own(event, owners, lasts=_group(event) in with_offsets))
            of_key = scope(_group(event), event.key)
            generations = in_force[of_key]
            if _group(event) not in with_offsets and event.at_ms >= owned_ms.get(of_key, event.at_ms) + SESSION_MS:
                generations.clear()  # they may have begun again
            owned_ms[of_key] = event.at_ms
            if not generations or _epoch(event) > generations[-1][1]:
                generations.append((place, _epoch(event)))
        elif event.function in (Function.COMMIT, Function.COMMITTED):
            register = registers.setdefault(
                (_group(event), event.key), Register(_group(event), event.key, commits=[], reads=[])
            )
            _access(event, place, register, open_accesses)
            if event.function is Function.COMMIT and event.type is Type.OK:
                of = event.transaction
                with_offsets |= {register.group} if of is None or not transactions[of].is_aborted else set()
    for register in registers.values():
        _take_outcomes(register, transactions)
        findings.extend(_judge(register))
        findings.extend(_judge_generations(register, in_force[scope(register.group, register.key)]))
    return findings


def _take_outcomes(register: Register, transactions: Transactions) -> None:
    """The last commit in a transaction takes effect with it."""
    replaced_by: dict[str, Type] = {}
    for commit in reversed(register.commits):
        if commit.transaction is None or commit.type is Type.FAIL:
            continue
        transaction, later = transactions[commit.transaction], replaced_by.get(commit.transaction)
        if commit.type is Type.OK or later is None:
            replaced_by[commit.transaction] = commit.type
        if transaction.asked is None or transaction.is_aborted or later is Type.OK:
            commit.type = Type.FAIL
            continue
        is_known = commit.type is Type.OK and later is None and transaction.is_committed
        commit.begin, commit.end = transaction.asked, transaction.committed_by if is_known else None
        commit.type = Type.OK if is_known else Type.INFO


def _group(event: Event) -> str:
    if event.value is None:
        raise BadHistory(f"a {event.function} of {event.process} without its group at t={event.at_ms}")
    return event.value


def _epoch(event: Event) -> int:
    if event.epoch is None:
        raise BadHistory(f"a {event.function} of {event.process} without its generation at t={event.at_ms}")
    return event.epoch


def _own(event: Event, owners: dict[tuple[str, str, int], Event], *, lasts: bool) -> Iterator[Finding]:
    """`lasts`: the group has offsets, so it is not removed when it has no members."""
    group, epoch = _group(event), _epoch(event)
    place = group, event.key, epoch
    before = owners.setdefault(place, event)
    if before.process == event.process or (not lasts and event.at_ms >= before.at_ms + SESSION_MS):
        owners[place] = event
    else:
        text = f"{before.process} and {event.process} of {group} both own it in generation {epoch}"
        yield Finding("K10", "two-owners", event.key, -1, text)


def _access(
    event: Event, place: int, register: Register, open_accesses: dict[tuple[Function, str, str, str], Access]
) -> None:
    name = (event.function, event.process, register.group, event.key)
    if event.type is Type.INVOKE:
        if name in open_accesses:
            raise BadHistory(f"{event.process} has two {event.function}s of {event.key} in flight at t={event.at_ms}")
        if event.function is Function.COMMIT and event.offset is None:
            raise BadHistory(f"a commit of {event.process} without an offset at t={event.at_ms}")
        access = Access(
            event.process, event.offset, place, -1 if event.epoch is None else event.epoch, sent=place,
            transaction=event.transaction,
        )  # fmt: skip
        open_accesses[name] = access
        (register.commits if event.function is Function.COMMIT else register.reads).append(access)
        return
    known = open_accesses.pop(name, None)
    if known is None:
        raise BadHistory(f"{event.process} ends a {event.function} of {event.key} that it did not begin")
    known.type = event.type
    if event.type is Type.INFO:
        return
    known.end = place
    if event.function is Function.COMMITTED and event.type is Type.OK:
        if event.offset is None:
            raise BadHistory(f"{event.process} read no offset of {event.key} at t={event.at_ms}")
        known.offset = event.offset


def _judge(register: Register) -> Iterator[Finding]:
    """Check each read, and each read with the one that ended before it."""
    before: Access | None = None
    unset = Access("", NONE_COMMITTED, -1, end=-1, type=Type.OK)
    commits = [unset, *(commit for commit in register.commits if commit.type is not Type.FAIL)]
    reads = [read for read in register.reads if read.type is Type.OK]
    for read in reads:
        yield from _judge_read(register, read, commits)
        if before is not None and before.end is not None and before.end < read.begin:
            yield from _judge_pair(register, before, read, commits)
        if before is None or before.end is None or (read.end is not None and read.end > before.end):
            before = read


def _judge_read(register: Register, read: Access, commits: list[Access]) -> Iterator[Finding]:
    assert read.offset is not None, "the read ended well"
    assert read.end is not None, "the read ended"
    acked = [commit for commit in commits if commit.end is not None and commit.end < read.begin]
    candidates = [commit for commit in commits if commit.offset == read.offset and commit.begin < read.end]
    if not candidates:
        yield _finding(
            register, "unsent-commit", read.offset, f"{read.process} reads it, and no commit can be its source"
        )
        return
    for commit in reversed(candidates):  # the newest is the likely one
        if not any(_is_after(later, commit) for later in acked):
            return
    newer = [later for later in acked if all(_is_after(later, commit) for commit in candidates)] or acked
    is_deletion = newer[-1].offset == NONE_COMMITTED
    what = "deletion" if is_deletion else "commit"
    shown = "no offset" if read.offset == NONE_COMMITTED else f"{read.offset} from before it"
    text = f"{newer[-1].process} had its {what} acknowledged, {read.process} reads {shown}"
    yield _finding(register, f"lost-{what}", newer[-1].offset, text)


def _judge_pair(register: Register, first: Access, second: Access, commits: list[Access]) -> Iterator[Finding]:
    if second.offset == first.offset:
        return
    assert second.end is not None, "the read ended"
    for commit in reversed(commits):
        may_be_late = commit.end is None or commit.end > first.begin
        if commit.offset == second.offset and commit.begin < second.end and may_be_late:
            return
    text = f"{first.process} reads {first.offset}, then {second.process} reads this, and no commit between them set it"
    yield _finding(register, "regressed", second.offset, text)


def _is_after(later: Access, earlier: Access) -> bool:
    """Whether a commit began after the other took effect, which with an unknown end may be at any time."""
    return earlier.end is not None and later.begin > earlier.end


def _judge_generations(register: Register, in_force: list[tuple[int, int]]) -> Iterator[Finding]:
    for commit in register.commits:
        if commit.type is not Type.OK or commit.epoch < 0:
            continue
        newest = max((epoch for place, epoch in in_force if place < commit.sent), default=-1)
        if commit.epoch < newest:
            text = f"{commit.process} commits it in generation {commit.epoch}, when {newest} was in force"
            yield _finding(register, "stale-commit", commit.offset, text)


def _finding(register: Register, kind: str, offset: int | None, text: str) -> Finding:
    return Finding("K10", kind, register.key, -1 if offset is None else offset, f"{register.group}: {text}")
