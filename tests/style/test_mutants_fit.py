"""The patches of mutants fit the source of today, and docs/simulation.md describes the mutants of today."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from kbroker.testing.mutants import Mutant
from tests.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
TEST_FILE = re.compile(r"tests/[\w/]+\.py")
CHECK = re.compile(r"\bK\d+\b")


def rows() -> list[list[str]]:
    """The rows of docs/simulation.md about mutants: the name, the defect, and what finds it."""
    section = (ROOT / "docs" / "simulation.md").read_text().partition("\n## Mutants\n")[2].partition("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row for row in found if row[0] != "mutant"]


def test_the_manual_describes_every_mutant_once() -> None:
    assert sorted(row[:2] for row in rows()) == sorted([each.name, each.why] for each in MUTANTS.values())


def test_the_manual_names_checks_that_a_mutant_expects() -> None:
    for name, _, *found in rows():
        assert set(CHECK.findall(" ".join(found))) <= set(MUTANTS[name].expected), name


def test_tests_that_the_manual_names_exist() -> None:
    files = {file for row in rows() for file in TEST_FILE.findall(row[-1])}
    assert sorted(file for file in files if not (ROOT / file).is_file()) == []


def test_every_mutant_expects_a_check() -> None:
    for each in MUTANTS.values():
        assert each.expected, each.name
        assert all(CHECK.fullmatch(check) for check in each.expected), each.name


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    assert mutant.patches
    sources: dict[str, str] = {}
    for patch in mutant.patches:
        source = sources.get(patch.module) or source_of(patch.module)
        sources[patch.module] = patch.apply(source)
    for module, source in sources.items():
        assert source != source_of(module)
        compile(source, module, "exec")


def source_of(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    return path.with_name(path.name.partition(".")[0] + ".py").read_text()  # also of a compiled module
