"""Mutants: a process can run with one."""

from __future__ import annotations

import subprocess
import sys

INSTALL = "from kbroker.testing.mutants import install; from tests.mutants import MUTANTS\ninstall(MUTANTS['{}'])\n"


def test_an_installed_mutant_replaces_code() -> None:
    program = INSTALL.format("one-batch-remembered") + (
        "from kbroker.storage import producer_state; print(producer_state.REMEMBERED_BATCHES, producer_state.__file__)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    count, file = result.stdout.split()
    assert count == "1"
    assert file.endswith("producer_state.py")


def test_a_mutant_cannot_be_installed_too_late() -> None:
    program = "import kbroker.storage.producer_state\n" + INSTALL.format("one-batch-remembered")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "before kbroker.storage.producer_state is imported" in result.stderr
