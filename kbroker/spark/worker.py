"""What a Python worker of Spark does between two tasks, and need not.

Before each task PySpark invalidates the caches of all import finders. It has itself imported from a zip file, by a
finder for each of its packages, and each of these then reads the directory of that file anew: 1500 entries, seventeen
times. That is 0.2 s of processor time for every task, more than decoding 64 MiB of records of 1 KiB takes.

Source  setup_spark_files in worker_util.py of PySpark 4.0.0; zipimporter.invalidate_caches of CPython
"""

from __future__ import annotations

import sys
from zipimport import zipimporter


def forget_zip_finders() -> None:
    """Take the finders of zip files out of the cache of finders. Whoever imports from one gets a new one, which knows
    the file's directory already; what need not be there need not be invalidated.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            sys.path_importer_cache.pop(path, None)
