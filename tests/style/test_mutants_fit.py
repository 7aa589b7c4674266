"""The patches of mutants fit the source of today, so that a refactoring cannot lose a mutant."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from kbroker.testing.mutants import MUTANTS
from kbroker.testing.mutants.patch import Mutant


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
