"""franz-go, a client in Go, in a small program for tests: built once, started for each job.

The program is in `${KBROKER_CACHE:-~/.cache/kbroker}`, where `python -m compat.clients.franz` builds it, which needs Go
and takes half a minute; `.ci/run` does. Tests do not build it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from compat import golang
from compat.kafka.libraries import Unavailable, cache_directory

_HERE = Path(__file__).parent
TIMEOUT_S = 120.0


@functools.cache
def cached_binary() -> Path:
    """The path of the build of these sources."""
    sources = sorted([*_HERE.glob("*.go"), *_HERE.glob("go.*")])
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()
    return cache_directory() / f"franz-{digest[:16]}" / "franz"


def binary() -> Path:
    """The program. Errors: Unavailable, with how to get it."""
    if not os.access(cached_binary(), os.X_OK):
        raise Unavailable(f"{cached_binary()} is not a program (install Go and run `python -m compat.clients.franz`)")
    return cached_binary()


def build() -> Path:
    """Build the program if it is missing. Errors: Unavailable without Go, or if Go cannot build it."""
    with contextlib.suppress(Unavailable):
        return binary()
    golang.install(".", cached_binary().parent, source=_HERE)
    return binary()


def run(job: str, **parameters: Any) -> Any:
    """Run a job of `main.go` to its end; returns what it printed. Errors: AssertionError with its message."""
    command = [str(binary()), job, json.dumps(parameters)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{job} failed: {done.stderr}"
    return json.loads(done.stdout)
