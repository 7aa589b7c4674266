"""Avoids two costs that PySpark adds to each task in a Python worker.

Before each task PySpark invalidates the caches of all import finders. PySpark itself is imported from a zip file, with
one finder for each of its packages, and each finder then reads the file's directory again: 1500 entries, seventeen
times. That takes 0.2 s of processor time for each task, more than decoding 64 MiB of records of 1 KiB.

After each task PySpark runs the garbage collector, which visits all objects of all modules, about 50,000. That takes
another 0.025 s, a seventh of the time to read those 64 MiB.

Source  setup_spark_files in worker_util.py and manager in daemon.py of PySpark 4.0.0; zipimporter.invalidate_caches and
        gc.freeze of CPython
"""

from __future__ import annotations

import gc
import sys
from functools import cache
from zipimport import zipimporter


def settle() -> None:
    """Avoid both costs in this worker from now on. Tasks call this after their imports; only the first call in a
    process freezes objects.
    """
    forget_zip_finders()
    _freeze_once()


def forget_zip_finders() -> None:
    """Remove the finders of zip files from the cache of finders, so that there is nothing to invalidate. The next
    import from a zip file creates a new finder, which reuses the known directory of the file.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            sys.path_importer_cache.pop(path, None)


@cache
def _freeze_once() -> None:
    """Exclude all current objects, mostly modules, from garbage collection. A second call would also keep the garbage
    of the tasks in between forever.
    """
    gc.freeze()
