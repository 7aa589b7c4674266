"""The Python that Spark starts needs the package too."""

from __future__ import annotations

import os
import re
import sys
import venv
from pathlib import Path

import pytest

from kbroker.spark.errors import KbrokerSourceError
from kbroker.spark.interpreter import check_interpreter


def test_the_programs_own_interpreter_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    check_interpreter(sys.executable)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    check_interpreter("python3")


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The interpreter of an empty environment, started in an empty directory."""
    venv.create(tmp_path, symlinks=True)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "bin" / "python")


def test_an_interpreter_without_the_package_is_named_with_a_remedy(other: str) -> None:
    said = (
        f"Spark starts its Python processes as {other}, which does not have the package kbroker. "
        f"Remedy: set PYSPARK_PYTHON={sys.executable} before the session starts, or install"
    )
    with pytest.raises(KbrokerSourceError, match=re.escape(said)):
        check_interpreter(other)


def test_another_interpreter_with_the_package_is_accepted(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    check_interpreter(other)


def test_an_invalid_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(KbrokerSourceError, match="is not found on this machine"):
        check_interpreter("no-such-python")
    broken = tmp_path / "python"
    broken.write_text("no program")
    broken.chmod(0o755)
    with pytest.raises(KbrokerSourceError, match="does not start"):
        check_interpreter(str(broken))
