"""Whether the Python that Spark starts has this package: it need not be the one that the program runs in.

Spark starts Python by the name in PYSPARK_PYTHON, or `python3`, on the driver's machine too, to look for data sources
and to plan. In a virtual environment that was not activated `python3` is another interpreter, without kbroker, and
Spark then says DATA_SOURCE_NOT_FOUND for `format("kbroker")`.
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
    """Check that the interpreter which Spark starts by this name can run kbroker's data source.

    It is started, once, if it is not this one. Errors: KbrokerSourceError.
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
