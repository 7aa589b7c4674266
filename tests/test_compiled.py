"""Which build runs: pure Python, or with the hot modules compiled by `make compiled`. CI runs this test on both."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from kbroker import build

ROOT = Path(__file__).parents[1]
IS_COMPILED = any(ROOT.glob("kbroker__mypyc*.so"))
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
MODULES: list[str] = HOOK["custom"]["modules"]


@pytest.mark.parametrize("path", MODULES)
def test_a_compiled_checkout_runs_every_compiled_module(path: str) -> None:
    file = import_module(path.removesuffix(".py").replace("/", ".")).__file__
    assert file is not None
    assert file.endswith(".so") == IS_COMPILED, file


def test_the_version_tells_which_build_runs() -> None:
    said = subprocess.check_output([sys.executable, "-m", "kbroker", "--version"], text=True, cwd=ROOT)
    assert said.rstrip().endswith(f"({build()})")
    assert build() == ("compiled" if IS_COMPILED else "pure Python")
