"""Avoids three costs that Spark adds to each task in a Python worker, and to each use of a planning process.

Spark sends a task to its worker in two small parts: the command, then the input. Its TCP socket holds the second part
back until the worker's kernel has acknowledged the first one (Nagle's algorithm), and that kernel waits 40 ms for data
with which to send the acknowledgement. So the worker acknowledges the command while it unpickles it.

Before each task PySpark invalidates the caches of all import finders. PySpark itself is imported from a zip file, with
one finder for each of its packages, and each finder then reads the file's directory again: 1500 entries, seventeen
times. That takes 0.2 s of processor time for each task, more than decoding 64 MiB of records of 1 KiB. The processes
that create a source and plan its tasks do the same before each query, one after the other.

After each task PySpark runs the garbage collector, which visits all objects of all modules, about 50,000. That takes
another 0.025 s, a seventh of the time to read those 64 MiB.

Source  setup_spark_files in worker_util.py and manager in daemon.py of PySpark 4.0.0; zipimporter.invalidate_caches and
        gc.freeze of CPython; RFC 1122 4.2.3.2 and 4.2.3.4; tcp(7)
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from zipimport import zipimporter


def settle() -> None:
    """Avoid these costs in this process. Each task and each planning calls this after its imports; only the first call
    in a process freezes objects.
    """
    acknowledge()
    forget_zip_finders()
    _freeze_once()


def acknowledge() -> None:
    """Acknowledge at once what was received on the sockets of this process. Only Linux has this option."""
    option = getattr(socket, "TCP_QUICKACK", None)
    descriptors = Path("/proc/self/fd")
    if option is None or not descriptors.exists():
        return
    for name in os.listdir(descriptors):
        with suppress(OSError):  # it is closed by now, or it is not a TCP socket
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    found.setsockopt(socket.IPPROTO_TCP, option, 1)


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
