"""The simulator finds planted defects; these need only a few seeds. `make soak` takes the others in turn."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS
from tests.mutants.hunting import hunt

FEW_SEEDS = range(12)


@pytest.fixture(autouse=True)
def _same_runs_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["truncate-by-hw", "offsets-lost-on-load", "two-owners", "aborted-transactions-not-listed"]
)
def test_a_planted_defect_is_found(name: str) -> None:
    found = hunt(MUTANTS[name], FEW_SEEDS)
    assert found is not None, f"none of the first {len(FEW_SEEDS)} seeds finds it"


@pytest.mark.long
def test_an_unexpected_finding_does_not_count() -> None:
    mutant = MUTANTS["always-fails"]
    assert hunt(mutant, range(1, 2)) is not None
    assert hunt(mutant._replace(expected=("K12",)), range(1, 2)) is None
