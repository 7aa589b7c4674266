"""The parameters of rows: the amount of work of a round, and the rule for a figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Figures = dict[str, float]


@dataclass(frozen=True)
class Size:
    """The amount of work of a round."""

    latency: int
    small: int
    batches: tuple[int, int, int]
    fetch_gigabytes: float
    end_to_end: int
    performance_records: int


FULL = Size(
    latency=10_000,
    small=100_000,
    batches=(300, 6_000, 15_000),
    fetch_gigabytes=4,
    end_to_end=2_000,
    performance_records=400_000,
)
QUICK = Size(
    latency=1_000,
    small=5_000,
    batches=(30, 500, 1_000),
    fetch_gigabytes=0.5,
    end_to_end=200,
    performance_records=30_000,
)


@dataclass(frozen=True)
class Row:
    """One figure. `goal` states it in words; `reached` judges kbroker's figure with Kafka's and all of kbroker's."""

    key: str
    title: str
    unit: str
    goal: str
    reached: Callable[[float, float, Figures], bool]


def at_most_times(factor: float) -> Callable[[float, float, Figures], bool]:
    return lambda ours, theirs, _: ours <= factor * theirs


def at_least_times(factor: float) -> Callable[[float, float, Figures], bool]:
    return lambda ours, theirs, _: ours >= factor * theirs


def at_most(bound: float) -> Callable[[float, float, Figures], bool]:
    return lambda ours, _, __: ours <= bound


def at_least_or(bound: float, factor: float) -> Callable[[float, float, Figures], bool]:
    """At least the bound, or this multiple of the rival's figure if that is lower."""
    return lambda ours, theirs, _: ours >= min(bound, factor * theirs)
