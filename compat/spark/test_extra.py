"""`pip install 'kbroker[spark]'` installs everything that the source and the jobs import.

The tests hide all other packages that are installed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, pkgutil, sys
from importlib import import_module
from importlib.abc import MetaPathFinder

strange = set(json.loads(sys.argv[1]))

class Refusing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in strange:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Refusing())
import kbroker.spark
for module in pkgutil.walk_packages(kbroker.spark.__path__, "kbroker.spark."):
    if not module.name.startswith("kbroker.spark.lookup."):
        import_module(module.name)
import fastavro
# What DataFrame.mapInArrow does first.
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import IntegerType, StructField, StructType
from pyspark.util import PythonEvalType

kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
pandas_udf(lambda batches: batches, StructType([StructField("a", IntegerType())]), kind)
print("all there")
"""


def brought(requirements: list[str]) -> set[str]:
    """The distributions that requirements install, with their own requirements."""
    found: set[str] = set()
    waiting, seen = [Requirement(each) for each in requirements], set()
    while waiting:
        wanted = waiting.pop()
        found.add(canonicalize_name(wanted.name))
        extras = wanted.extras or {""}
        if (wanted.name, *sorted(extras)) in seen:
            continue
        seen.add((wanted.name, *sorted(extras)))
        for text in distribution(wanted.name).requires or ():
            each = Requirement(text)
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in {*extras, ""}):
                waiting.append(each)
    return found


def run(requirements: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the program without access to other installed packages."""
    there = brought(requirements)
    own = {"kbroker", "wire"}
    strange = [
        module
        for module, names in packages_distributions().items()
        if module not in own and not {canonicalize_name(name) for name in names} & there
    ]
    command = [sys.executable, "-c", PROGRAM, json.dumps(strange)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def declared() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["spark"]]


def test_the_extra_brings_all_that_is_imported(declared: list[str]) -> None:
    done = run(declared)
    assert (done.stdout, done.returncode) == ("all there\n", 0), done.stderr


def test_a_missing_requirement_is_detected(declared: list[str]) -> None:
    done = run([each for each in declared if not each.startswith("fastavro")])
    assert "fastavro is not installed" in done.stderr


LOOKING = """
import sys
from pyspark.sql import datasource

known = set(sys.modules)
sys.path.insert(0, "kbroker/spark/lookup")
from pyspark_kbroker import DefaultSource
from pyspark_kbroker_segments import DefaultSource as Segments

print(DefaultSource.name(), Segments.name(), *sorted(set(sys.modules) - known))
"""


def test_discovering_data_sources_imports_no_reader() -> None:
    """Spark imports them for every job that uses any data source in Python."""
    command = [sys.executable, "-c", LOOKING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "kbroker", "kbroker-segments", "kbroker", "kbroker.spark", "kbroker.spark.data_sources", "pyspark_kbroker",
        "pyspark_kbroker_segments",
    ]  # fmt: skip
