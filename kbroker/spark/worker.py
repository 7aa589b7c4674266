"""What a Python worker of Spark does between two tasks, and need not.

Before each task PySpark invalidates the caches of all import finders. It has itself imported from a zip file, by a
finder for each of its packages, and each of these then reads the directory of that file anew: 1500 entries, seventeen
times. That is 0.2 s of processor time for every task, more than decoding 64 MiB of records of 1 KiB takes.

Behind each task it collects garbage, and looks for it among all objects of all modules, some 50,000: another 0.025 s,
a seventh of what those 64 MiB take to be read.

Source  setup_spark_files in worker_util.py and manager in daemon.py of PySpark 4.0.0; zipimporter.invalidate_caches and
        gc.freeze of CPython
"""

from __future__ import annotations

import gc
import sys
from functools import cache
from zipimport import zipimporter


def settle() -> None:
    """Spare the worker that this task runs in both from now on. Tasks call it when they have imported what they need;
    only the first call of a process does all of it.
    """
    forget_zip_finders()
    _freeze_once()


def forget_zip_finders() -> None:
    """Take the finders of zip files out of the cache of finders. Whoever imports from one gets a new one, which knows
    the file's directory already; what need not be there need not be invalidated.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            sys.path_importer_cache.pop(path, None)


@cache
def _freeze_once() -> None:
    """Have what is there now, modules above all, never looked through for garbage again. A second time would keep the
    garbage of the tasks in between for good.
    """
    gc.freeze()
