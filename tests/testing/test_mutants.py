"""Mutants: a process can run with one."""

from __future__ import annotations

import subprocess
import sys


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
