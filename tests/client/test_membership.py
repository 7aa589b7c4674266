"""The assignments that the leader of a group makes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.client.membership import ASSIGNORS

BOTH = ["a", "b"]
Plan = dict[str, list[tuple[str, int]]]


@pytest.mark.parametrize(
    ("assignor", "subscriptions", "expected"),
    [
        ("range", {"x": BOTH, "y": BOTH}, {"x": ["a0", "a1", "b0"], "y": ["a2", "b1"]}),
        ("range", {"x": BOTH, "y": ["b"]}, {"x": ["a0", "a1", "a2", "b0"], "y": ["b1"]}),
        ("range", {"x": ["b"], "y": ["b"], "z": ["b"]}, {"x": ["b0"], "y": ["b1"], "z": []}),
        ("roundrobin", {"x": BOTH, "y": BOTH}, {"x": ["a0", "a2", "b1"], "y": ["a1", "b0"]}),
        ("roundrobin", {"x": BOTH, "y": ["b"]}, {"x": ["a0", "a1", "a2", "b1"], "y": ["b0"]}),
    ],
)
def test_partitions_are_assigned_as_by_kafka(
    assignor: str, subscriptions: dict[str, Sequence[str]], expected: dict[str, list[str]]
) -> None:
    """Topic a has three partitions, b has two."""
    names = {topic for topics in subscriptions.values() for topic in topics}
    counts = {topic: count for topic, count in (("a", 3), ("b", 2)) if topic in names}
    found: Plan = {member: [] for member in subscriptions}
    ASSIGNORS[assignor](found, subscriptions, counts)
    assert {member: [f"{topic}{index}" for topic, index in listed] for member, listed in found.items()} == expected
