"""franz-go's kfake, a broker in memory, as a small program: built once from the Go module proxy."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from compat.brokers import StartFailed, end
from compat.golang import Program

PROGRAM = Program(Path(__file__).parent, __name__)
VERSION = "v0.0.0-20260918054303-01f206a7e32c"


@contextlib.contextmanager
def running() -> Iterator[str]:
    """One broker; yields `host:port`. Errors: Unavailable if it is not built, StartFailed."""
    command = [str(PROGRAM.binary())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            address = process.stdout.readline().decode().strip()
            if not address:
                raise StartFailed("kfake prints no address")
            yield address
        finally:
            end(process)
