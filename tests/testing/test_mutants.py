"""Mutants: each patch fits the source of today, and a process can run with one."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kbroker.testing.mutants import MUTANTS
from kbroker.testing.mutants.patch import Mutant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    assert mutant.patches
    assert mutant.expected
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


def test_an_installed_mutant_replaces_code() -> None:
    program = (
        "from kbroker.testing import mutants; mutants.install('one-batch-remembered')\n"
        "from kbroker.storage import producer_state; print(producer_state.REMEMBERED_BATCHES, producer_state.__file__)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    count, file = result.stdout.split()
    assert count == "1"
    assert file.endswith("producer_state.py")


def test_a_mutant_cannot_be_installed_too_late() -> None:
    program = (
        "import kbroker.storage.producer_state; from kbroker.testing import mutants\n"
        "mutants.install('one-batch-remembered')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "before kbroker.storage.producer_state is imported" in result.stderr
