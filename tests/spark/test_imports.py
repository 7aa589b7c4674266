"""Imports that Spark's Python workers avoid: each worker is a new process, and short jobs wait for its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

class Refusing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {"pandas", "kafka", "trio", "numba", "kbroker.broker"}:
            sys.exit(f"{name} was imported")

sys.meta_path.insert(0, Refusing())
from pathlib import Path
import kbroker.spark.planning, kbroker.spark.reading
from tests.spark.segments import Tier
from wire.record_batch import Record, build_batch

tier = Tier(Path(sys.argv[1]))
log = build_batch([Record(-1, 0, b"k", b"v", (("n", b"w"),)), Record(-1, 0, None, None)], base_offset=7)
print(len(tier.rows(tier.piece(log))))
"""


def run(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", program, str(directory)], cwd=root, capture_output=True, text=True, check=False
    )


def test_reading_a_segment_imports_neither_pandas_nor_a_client(tmp_path: Path) -> None:
    done = run(PROGRAM, tmp_path)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("2", "", 0)


@pytest.mark.parametrize("module", ["pandas", "kafka"])
def test_the_import_check_detects_an_import(module: str, tmp_path: Path) -> None:
    assert (
        f"{module} was imported"
        in run(PROGRAM.replace("from pathlib", f"import {module}\nfrom pathlib"), tmp_path).stderr
    )


def test_compiled_modules_import_neither_numpy_nor_arrow(tmp_path: Path) -> None:
    modules = "import kbroker.spark.parts, kbroker.spark.segment_walk"
    check = "assert not sys.modules.keys() & {'numpy', 'pyarrow', 'pyspark'}"
    done = run(f"import sys\n{modules}\n{check}", tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
