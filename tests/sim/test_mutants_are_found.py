"""The simulator finds planted defects; `make soak` hunts all of them."""

from __future__ import annotations

import pytest

from kbroker.testing.mutants.__main__ import hunt

FEW_SEEDS = "0..12"


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("truncate-by-hw", "K7"),
        ("offsets-lost-on-load", "K10"),
        ("two-owners", "K10"),
    ],
)
def test_a_planted_defect_is_found(name: str, check: str) -> None:
    found = hunt(name, seeds=FEW_SEEDS)
    assert found is not None, f"no seed of {FEW_SEEDS} finds {name}"
    assert f"| {check} " in found
