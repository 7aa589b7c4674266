"""A run of a scenario, as its program prints it."""

from __future__ import annotations

from functools import cache
from typing import Any

from kbroker.cli._story import lines

Step = dict[str, Any]


class Told:
    """The lines of one run. Shape: steps begin with index 0."""

    def __init__(self, name: str, rule: str) -> None:
        self.lines = list(lines(name, "--rule", rule))
        beginning, *steps, end = self.lines
        self.beginning, self.end = beginning, end
        self.steps: list[Step] = steps
        self.facts: dict[str, Any] = end["facts"]

    def replica(self, step: int, name: str) -> dict[str, Any]:
        """A replica after a step; steps count from 1, as the story shows them."""
        return next(one for one in self.steps[step - 1]["replicas"] if one["name"] == name)

    def has(self, step: int, name: str, **expected: object) -> None:
        """Assert fields of a replica after a step; `values` are those of its records."""
        found = self.replica(step, name)
        known = {**found, "values": [one["value"] for one in found["records"]]}
        assert {key: known[key] for key in expected} == expected

    def answer(self, step: int, *values: str) -> int | None:
        """The error code that a producer got by the end of a step for these values; None without an answer."""
        code: int | None = next(one for one in self.steps[step - 1]["writes"] if one["values"] == list(values))["code"]
        return code

    def segments(self, step: int, *, finished: bool = True) -> list[tuple[int, int]]:
        """The offsets of the segments in the tier after a step."""
        return [
            (one["start_offset"], one["end_offset"])
            for one in self.steps[step - 1]["tier"]
            if one["is_finished"] is finished
        ]


@cache
def told(name: str, rule: str = "new") -> Told:
    """Run a scenario, once for all tests."""
    return Told(name, rule)
