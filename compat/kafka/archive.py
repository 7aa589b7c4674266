"""A class data sharing archive for Kafka's tools and node, which a JVM maps instead of loading the classes from jars.

With it, a tool that runs for a second takes half of its time and CPU. `compat.kafka.rehearsal` creates it for one JVM
and the installed jars, and keeps it in the cache. Without it everything works, but slower.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from compat.kafka.libraries import cache_directory, class_path, java


def archive_path() -> Path:
    """The path of the archive for this JVM and these jars. Errors: Unavailable if one of them is missing."""
    # The JVM itself refuses an archive for other jars, but prints a message on standard output.
    known = [Path(java()).resolve(), *map(Path, class_path().split(os.pathsep))]
    fingerprint = repr([(str(each), (found := each.stat()).st_size, found.st_mtime_ns) for each in known]).encode()
    fingerprint += Path(__file__).with_name("rehearsal.py").read_bytes()  # which determines its contents
    return cache_directory() / f"kafka-classes-{hashlib.sha256(fingerprint).hexdigest()[:16]}.jsa"


@functools.cache
def class_archive() -> Path | None:
    """The archive, if it exists."""
    return archive_path() if archive_path().exists() else None
