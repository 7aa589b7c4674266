"""K14: hostile frames of every API, sent to Apache Kafka and to the broker, get the same class of answer.

A class is: the connection is closed, silence, or a reply, by the error codes in it. ACCEPTED lists the differences that
are intended, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from compat.oracle.conftest import Pair
from compat.oracle.hostile import Hostile, hostile_frames
from compat.oracle.raw import Answer, Closed, RawConnection, Reply, Silent
from compat.oracle.schema import api_names, decode_response, schema
from compat.waiting import until

LEAST_FRAMES = 500
PATIENCE_S = 2.0


@dataclass(frozen=True)
class Difference:
    """Where the classes may differ, and why; an empty set stands for everything."""

    why: str
    what: frozenset[str] = frozenset()
    apis: frozenset[str] = frozenset()
    theirs: str = "reply"
    ours: str = "close"

    def covers(self, one: Hostile, theirs: str, ours: str) -> bool:
        """Whether it explains these two classes."""
        return (
            (not self.what or one.what in self.what)
            and (not self.apis or one.api in self.apis)
            and theirs.startswith(self.theirs)
            and ours.startswith(self.ours)
        )


ACCEPTED: tuple[Difference, ...] = (
    Difference(
        "Kafka replaces bytes that are not UTF-8 by U+FFFD, so two names become one; kbroker refuses",
        what=frozenset({"text that is not UTF-8"}),
    ),
    Difference(
        "Kafka takes any negative length as null; in its clients only -1 is",
        what=frozenset({"a client id of -2 bytes", "a length of -2"}),
    ),
    Difference(
        "a compact length of 2^32-1 is a negative number in Java, and counts as null",
        what=frozenset({"a huge length"}),
    ),
    Difference(
        "Kafka ignores the size of a tagged field that it knows, and reads on behind the field's own end",
        what=frozenset({"a length of two bytes for one", "an unknown tag"}),
        apis=frozenset({"Fetch"}),
    ),
    Difference(
        "the string then ends in a byte of the epoch, which is not UTF-8",
        what=frozenset({"a length of one more"}),
        apis=frozenset({"OffsetFetch"}),
    ),
    Difference(
        "the time-out is then one of the bytes behind, and Kafka's controller has no time at all",
        what=frozenset({"null"}),
        apis=frozenset({"DeleteTopics"}),
        theirs="reply [7]",
        ours="reply",
    ),
    Difference(
        "tags have to ascend (KIP-482), and 2^32-1 of them are not none; Kafka does not check either",
        what=frozenset({"a tag twice", "tags in descending order", "2^32-1 tags"}),
    ),
)


def codes(value: Any) -> set[int]:
    """The error codes in a decoded answer, at any level."""
    if isinstance(value, list):
        return set().union(*map(codes, value))
    if isinstance(value, dict):
        own = {value[key] for key in ("ErrorCode", "PartitionErrorCode") if key in value}
        return own.union(*map(codes, value.values()))
    return set()


def class_of(answer: Answer, one: Hostile) -> str:
    """close, silence, or reply and the codes."""
    if isinstance(answer, Closed):
        return "close"
    if isinstance(answer, Silent):
        return "silence"
    version = 0 if one.api == "ApiVersions" and one.what == "version" else one.version
    found = codes(decode_response(one.api, version, answer.payload))
    return f"reply {sorted(found - {0}) or [0]}"


@contextlib.contextmanager
def fresh(pair: Pair) -> Iterator[list[RawConnection]]:
    """New connections to both."""
    connections = pair.connect()
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def ask_both(pair: Pair, one: Hostile) -> tuple[str, str]:
    """The classes of Kafka's and of the broker's answer."""
    with fresh(pair) as connections:
        for connection in connections:
            connection.send(one.frame)
        theirs, ours = (connection.answer(timeout_s=PATIENCE_S) for connection in connections)
        return class_of(theirs, one), class_of(ours, one)


def prepare(pair: Pair) -> None:
    """Wait until both have coordinators and producer ids: Kafka creates the topics for them at the first question."""
    for key_type in (0, 1):
        question = {"CoordinatorKeys": ["hostile"], "KeyType": key_type}
        until(lambda question=question: all(codes(one) == {0} for one in pair.call("FindCoordinator", 4, question)))
    describe = {"TransactionalIds": ["hostile"]}
    until(lambda: all(codes(one) == {105} for one in pair.call("DescribeTransactions", 0, describe)))
    until(lambda: all(codes(one) == {69} for one in pair.call("DescribeGroups", 6, {"Groups": ["hostile"]})))
    pair.producer_ids()


def common_versions(pair: Pair) -> dict[str, tuple[int, int]]:
    """The APIs that both serve, with the lowest and the highest version that both serve."""
    theirs, ours = (
        {one["ApiKey"]: (one["MinVersion"], one["MaxVersion"]) for one in answer["ApiKeys"]}
        for answer in pair.call("ApiVersions", 0, {})
    )
    names = api_names()
    found = {}
    for key in sorted(theirs.keys() & ours.keys() & names.keys()):
        low, high = max(theirs[key][0], ours[key][0]), min(theirs[key][1], ours[key][1])
        if low <= high:
            found[names[key]] = (max(low, schema(f"{names[key]}Request").valid.low), high)
    return found


def test_w1_w4_k14_hostile_frames_get_kafkas_class_of_answer(pair: Pair) -> None:
    prepare(pair)
    asked, differing, explained = 0, [], dict.fromkeys(ACCEPTED, 0)
    for api, versions in common_versions(pair).items():
        for version in sorted(set(versions)):
            for one in hostile_frames(api, version):
                theirs, ours = ask_both(pair, one)
                asked += 1
                if theirs == ours:
                    continue
                why = next((each for each in ACCEPTED if each.covers(one, theirs, ours)), None)
                if why is None:
                    differing.append(f"{one}: Kafka {theirs}, broker {ours}")
                else:
                    explained[why] += 1
    assert not differing, f"{len(differing)} of {asked} differ:\n" + "\n".join(differing[:150])
    assert asked >= LEAST_FRAMES
    assert all(explained.values()), "an accepted difference does not exist any more"


@pytest.mark.usefixtures("pair")
def test_both_still_serve_after_the_hostile_frames(pair: Pair) -> None:
    assert [isinstance(answer, Reply) for answer in pair.ask(bytes.fromhex("0000000a 0012 0000 00000000 ffff"))] == [
        True
    ] * 2
