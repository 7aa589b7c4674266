"""K10 finds each planted fault, and accepts everything that is allowed."""

from __future__ import annotations

import pytest

from kbroker.testing.checkers import Allowances
from kbroker.testing.group_checker import SESSION_MS, check_groups
from kbroker.testing.history import BadHistory, Event, Function, Type

COMMIT, READ, OWN = Function.COMMIT, Function.COMMITTED, Function.OWN
GO, OK, FAIL, INFO = Type.INVOKE, Type.OK, Type.FAIL, Type.INFO
Line = tuple[str, Function, Type, int | None] | tuple[str, Function, Type, int | None, int]


def history(*lines: Line, key: str = "orders-0", group: str = "g") -> list[Event]:
    """Lines of process, function, type, offset, and the generation if it matters."""
    return [
        Event(
            at_ms=at_ms,
            process=line[0],
            function=line[1],
            type=line[2],
            key=key,
            value=group,
            offset=line[3],
            epoch=line[4] if len(line) == 5 else None,
        )
        for at_ms, line in enumerate(lines)
    ]


def commit(process: str, offset: int, end: Type = OK, generation: int = 1) -> tuple[Line, Line]:
    return (process, COMMIT, GO, offset, generation), (process, COMMIT, end, offset, generation)


def delete(process: str, end: Type = OK) -> tuple[Line, Line]:
    return commit(process, -1, end, generation=-1)


def read(offset: int, process: str = "admin") -> tuple[Line, Line]:
    return (process, READ, GO, None), (process, READ, OK, offset)


def own(process: str, generation: int) -> Line:
    return process, OWN, OK, None, generation


A_SESSION = [line for _ in range(SESSION_MS // 2) for line in read(-1)]
"""Each line takes a millisecond."""


PLANTED: dict[str, tuple[str, list[Line]]] = {
    "an acknowledged commit is gone": ("lost-commit", [*commit("a", 5), *read(-1)]),
    "an older offset is back": ("lost-commit", [*commit("a", 5), *commit("a", 9), *read(5)]),
    "an older offset is back, of two that had it": (
        "lost-commit",
        [*commit("a", 5), *commit("b", 5), *commit("a", 9), *read(5)],
    ),
    "an unfinished commit disappears again": (
        "regressed",
        [*commit("a", 5), *commit("b", 9, INFO), *read(9), *read(5)],
    ),
    "an unfinished commit is read and then undone": (
        "regressed",
        [*commit("a", 5), ("b", COMMIT, GO, 9, 1), *read(9), *read(5, "other")],
    ),
    "a refused commit is read": ("unsent-commit", [*commit("a", 5), *commit("b", 9, FAIL), *read(9)]),
    "an uncommitted offset is read": ("unsent-commit", [*commit("a", 5), *read(6)]),
    "a commit is read before it was sent": ("unsent-commit", [*read(5), *commit("a", 5)]),
    "a commit is back after its deletion": ("lost-deletion", [*commit("a", 5), *delete("b"), *read(5)]),
    "a deletion loses the commit after it": (
        "lost-commit",
        [*commit("a", 5), *delete("b"), *commit("a", 9), *read(-1)],
    ),
    "a commit is back that was read and deleted": (
        "lost-deletion",
        [*commit("a", 5), *read(5), *delete("b"), *read(5)],
    ),
    "an unfinished commit is read and then gone": ("regressed", [*commit("a", 5, INFO), *read(5), *read(-1)]),
    "an unfinished deletion is read and then undone": (
        "regressed",
        [*commit("a", 5), ("b", COMMIT, GO, -1), *read(-1), *read(5, "other")],
    ),
    "a refused deletion takes effect": ("lost-commit", [*commit("a", 5), *delete("b", FAIL), *read(-1)]),
    "a commit of an older generation, after one in the new": (
        "stale-commit",
        [own("a", 1), own("a", 2), *commit("a", 5, generation=2), *commit("a", 6, generation=1), *read(6)],
    ),
    "two members own it": ("two-owners", [own("a", 1), own("b", 1)]),
    "a group without offsets begins again within a session": (
        "two-owners",
        [own("a", 1), *A_SESSION[2:], own("b", 1)],
    ),
    "a group with offsets begins again": ("two-owners", [own("a", 1), *commit("a", -1), *A_SESSION, own("b", 1)]),
    "a member of an older generation commits": ("stale-commit", [own("a", 1), own("b", 2), *commit("a", 5)]),
}

ALLOWED: dict[str, list[Line]] = {
    "nothing": [],
    "no offset is read without an acknowledgement": [*commit("a", 5, INFO), *commit("a", 6, FAIL), *read(-1)],
    "a commit is read": [*commit("a", 5), *read(5), *commit("a", 9), *read(9)],
    "a commit moves an offset back": [*commit("a", 9), *read(9), *commit("a", 5), *read(5)],
    "an unfinished commit took effect": [*commit("a", 5), *commit("b", 9, INFO), *read(5), *read(9)],
    "an unfinished commit took effect after a later one": [*commit("b", 9, INFO), *commit("a", 5), *read(5), *read(9)],
    "overlapping commits in either order": [
        ("a", COMMIT, GO, 5, 1),
        ("b", COMMIT, GO, 9, 1),
        ("b", COMMIT, OK, 9, 1),
        ("a", COMMIT, OK, 5, 1),
        *read(9),
    ],
    "overlapping reads see before and after": [
        *commit("a", 5),
        ("x", READ, GO, None),
        ("y", READ, GO, None),
        ("a", COMMIT, GO, 9, 1),
        ("a", COMMIT, OK, 9, 1),
        ("x", READ, OK, 9),
        ("y", READ, OK, 5),
    ],
    "a commit is deleted": [*commit("a", 5), *read(5), *delete("b"), *read(-1), *commit("a", 9), *read(9)],
    "what was never committed is deleted": [*read(-1), *delete("a"), *read(-1)],
    "a deletion in flight is seen or not": [
        *commit("a", 5),
        ("b", COMMIT, GO, -1),
        *read(5),
        *read(-1),
        ("b", COMMIT, OK, -1),
        *read(-1),
    ],
    "an unfinished deletion takes effect after a later commit": [
        *commit("a", 5),
        *delete("b", INFO),
        *commit("a", 9),
        *read(9),
        *read(-1),
    ],
    "a deletion overlaps a commit": [
        *commit("a", 5),
        ("b", COMMIT, GO, -1),
        ("a", COMMIT, GO, 9, 1),
        ("a", COMMIT, OK, 9, 1),
        ("b", COMMIT, OK, -1),
        *read(-1),
    ],
    "a commit between two deletions": [*delete("b"), *commit("a", 5), *read(5), *delete("b"), *read(-1)],
    "a commit of a generation that ends before the next one is in force": [
        own("a", 1),
        *commit("a", 5),
        *read(5),
        own("b", 2),
        *commit("a", 6, FAIL),
        *read(5),
    ],
    "members own it in successive generations": [own("a", 1), own("b", 2), own("a", 3), own("a", 3)],
    "a group without offsets has lost its members, and begins again": [own("a", 1), *A_SESSION, own("b", 1)],
    "a commit of the previous generation in flight": [
        own("a", 1),
        ("a", COMMIT, GO, 5, 1),
        own("b", 2),
        ("a", COMMIT, OK, 5, 1),
    ],
    "a refused commit of an older generation": [own("a", 1), own("b", 2), *commit("a", 5, FAIL)],
    "a commit without a member": [own("a", 1), *commit("tool", 5, generation=-1)],
    "a read that failed": [*commit("a", 5), ("x", READ, GO, None), ("x", READ, FAIL, None)],
}


@pytest.mark.parametrize(("kind", "lines"), PLANTED.values(), ids=PLANTED)
def test_k10_finds_each_planted_fault(kind: str, lines: list[Line]) -> None:
    findings = check_groups(history(*lines))
    assert [(one.check, one.kind, one.key) for one in findings] == [("K10", kind, "orders-0")]
    assert str(findings[0]).startswith(f"K10 {kind} orders-0@")


@pytest.mark.parametrize("lines", ALLOWED.values(), ids=ALLOWED)
def test_k10_accepts_allowed_histories(lines: list[Line]) -> None:
    assert check_groups(history(*lines)) == []


def test_k10_epochs_of_kip_848_end_commits_of_their_partitions_only() -> None:
    allowed = Allowances(consumer_groups=frozenset({"g"}))
    other = history(own("b", 2), key="orders-1")
    events = [*history(own("a", 1)), *other, *history(*commit("a", 5))]
    assert check_groups(events, allowed) == []
    assert [one.kind for one in check_groups(events)] == ["stale-commit"]
    taken = [*history(own("a", 1)), *history(own("b", 2)), *history(*commit("a", 5))]
    assert [one.kind for one in check_groups(taken, allowed)] == ["stale-commit"]


def test_groups_and_partitions_are_judged_separately() -> None:
    lines = [*commit("a", 5), own("a", 1)]
    events = history(*lines) + history(*read(-1), own("b", 1), group="other") + history(*read(-1), key="orders-1")
    assert check_groups(events) == []


@pytest.mark.parametrize(
    "lines",
    [
        [("a", COMMIT, OK, 5, 1)],
        [("a", COMMIT, GO, 5, 1), ("a", COMMIT, GO, 6, 1)],
        [("a", COMMIT, GO, None, 1)],
        [("x", READ, GO, None), ("x", READ, OK, None)],
        [("a", OWN, OK, None)],
    ],
    ids=[
        "a completion without an invocation",
        "two in flight",
        "a commit without an offset",
        "a read without an offset",
        "no generation",
    ],
)
def test_k10_refuses_a_recording_that_contradicts_itself(lines: list[Line]) -> None:
    with pytest.raises(BadHistory):
        check_groups(history(*lines))


def test_k10_requires_the_group() -> None:
    with pytest.raises(BadHistory):
        check_groups([Event(at_ms=0, process="a", function=OWN, type=OK, key="orders-0", epoch=1)])
