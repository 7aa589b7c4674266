"""The judge of the killed streams reports lost, repeated and changed records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.torture.spark import CODECS, STEP_MS, complaints_of_copies, complaints_of_files
from compat.torture.tier_reads import Contents

COUNT, START_MS = 5, 1_000
CONTENTS = Contents(3)
Row = dict[str, object]
Copy = tuple[int, int, bytes | None]


def rows() -> list[Row]:
    return [
        {
            "partition": partition,
            "offset": offset,
            "time": START_MS + STEP_MS * offset,
            "key": b"%d" % offset,
            "value": CONTENTS.value(partition, offset),
        }
        for partition in range(len(CODECS))
        for offset in range(COUNT)
    ]


def copies() -> list[Copy]:
    return [(partition, at, CONTENTS.value(partition, at)) for partition in range(len(CODECS)) for at in range(COUNT)]


def test_files_with_each_record_once_are_correct() -> None:
    assert complaints_of_files(CONTENTS, COUNT, rows(), start_ms=START_MS) == []


@pytest.mark.parametrize(
    ("spoil", "reported"),
    [
        (lambda whole: whole[:-1], ["1 records are not in the files, [(3, 4)]"]),
        (lambda whole: [*whole, whole[7]], ["1 records are in the files more than once, [(1, 2)]"]),
        (lambda whole: [*whole[1:], whole[0] | {"value": b"other"}], ["0:0 is in the files with other contents"]),
        (lambda whole: [*whole[1:], whole[0] | {"time": 7}], ["0:0 is in the files with other contents"]),
        (lambda whole: [*whole[1:], whole[0] | {"key": None}], ["0:0 is in the files with other contents"]),
        (
            lambda whole: [
                *whole,
                rows()[0] | {"offset": 5, "time": START_MS + STEP_MS * 5, "key": b"5", "value": CONTENTS.value(0, 5)},
            ],
            ["1 places that were never written are in the files, [(0, 5)]"],
        ),
    ],
    ids=["lost", "twice", "value", "time", "key", "alien"],
)
def test_wrong_files_are_reported(spoil: Callable[[list[Row]], list[Row]], reported: list[str]) -> None:
    assert complaints_of_files(CONTENTS, COUNT, spoil(rows()), start_ms=START_MS) == reported


def test_copies_may_be_repeated() -> None:
    assert complaints_of_copies(CONTENTS, COUNT, copies()) == ([], 0)
    assert complaints_of_copies(CONTENTS, COUNT, [*copies(), *copies()[2:5]]) == ([], 3)


@pytest.mark.parametrize(
    ("spoil", "reported"),
    [
        (lambda whole: whole[1:], ["1 records are not in the copy, [(0, 0)]"]),
        (lambda whole: [*whole, (2, 9, b"other")], ["the copy has a record that is not of the topic at 2:9"]),
        (lambda whole: [*whole, (2, 9, None)], ["the copy has a record that is not of the topic at 2:9"]),
        (
            lambda whole: [(3, 9, whole[0][2]), *whole[1:]],
            ["the copy has a record that is not of the topic at 3:9", "1 records are not in the copy, [(0, 0)]"],
        ),
    ],
    ids=["lost", "alien", "none", "elsewhere"],
)
def test_wrong_copies_are_reported(spoil: Callable[[list[Copy]], list[Copy]], reported: list[str]) -> None:
    assert complaints_of_copies(CONTENTS, COUNT, spoil(copies()))[0] == reported
