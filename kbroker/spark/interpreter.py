"""Checks that the Python which Spark starts has this package: it may differ from the program's own Python.

To discover data sources and to plan, Spark starts Python as PYSPARK_PYTHON, or as `python3`, also on the driver. If the
program's virtual environment is not activated, `python3` is another interpreter without kbroker, and Spark reports
DATA_SOURCE_NOT_FOUND for `format("kbroker")`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from typing import Final

from kbroker.spark.errors import KbrokerSourceError

SECONDS_TO_START: Final = 60
_HAS_KBROKER: Final = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('kbroker') else 9)"


@lru_cache
def check_interpreter(python: str) -> None:
    """Check that the interpreter which Spark starts by this name has kbroker. Errors: KbrokerSourceError.

    Starts the interpreter once, unless it is the running one.
    """
    found = shutil.which(python)
    if found is None:
        raise _cannot_run(python, "is not found on this machine")
    if os.path.dirname(os.path.abspath(found)) == os.path.dirname(os.path.abspath(sys.executable)):
        return
    try:
        done = subprocess.run([found, "-c", _HAS_KBROKER], timeout=SECONDS_TO_START, check=False)  # noqa: S603  (Spark runs it too)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _cannot_run(found, f"does not start ({error})") from error
    if done.returncode:
        raise _cannot_run(found, "does not have the package kbroker")


def _cannot_run(python: str, why: str) -> KbrokerSourceError:
    return KbrokerSourceError(
        f"Spark starts its Python processes as {python}, which {why}",
        remedy=f"set PYSPARK_PYTHON={sys.executable} before the session starts, or install kbroker for that Python",
    )
