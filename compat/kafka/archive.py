"""An archive of the classes that Kafka's tools and its node load, which a JVM maps instead of reading them from jars.

A tool that lives for a second takes half of its time and of its processor seconds with it. `compat.kafka.rehearsal`
makes it, for one JVM and the jars as they are, and keeps it in the cache; without it everything runs, only slower.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from compat.kafka.libraries import cache_directory, class_path, java


def archive_path() -> Path:
    """Where the archive for this JVM and these jars is, or goes. Errors: Unavailable without one of them."""
    # The JVM refuses an archive of others by itself, but not without a word on standard output.
    known = [Path(java()).resolve(), *map(Path, class_path().split(os.pathsep))]
    told = repr([(str(each), (found := each.stat()).st_size, found.st_mtime_ns) for each in known]).encode()
    told += Path(__file__).with_name("rehearsal.py").read_bytes()  # which decides about what is in it
    return cache_directory() / f"kafka-classes-{hashlib.sha256(told).hexdigest()[:16]}.jsa"


@functools.cache
def class_archive() -> Path | None:
    """The archive, if it was made."""
    return archive_path() if archive_path().exists() else None
