"""Finds PySpark: in this interpreter, or in the environment that `make test-spark` creates."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from compat.kafka.libraries import Unavailable

ROOT = Path(__file__).parents[2]
# The line on standard input that makes `stream_job` finish.
FINISH = b"finish\n"


def spark_python() -> str:
    """An interpreter with PySpark. Errors: Unavailable."""
    if importlib.util.find_spec("pyspark"):
        return sys.executable
    python = ROOT / ".venv-spark" / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"there is no PySpark: `make {python.parents[1].name}/spark.stamp` fetches it")
    return str(python)
