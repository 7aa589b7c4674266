"""franz-go, a client in Go, in a small program for tests: built once, started for each job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from compat.golang import Program

PROGRAM = Program(Path(__file__).parent, __name__)
binary = PROGRAM.binary
TIMEOUT_S = 120.0


def run(job: str, **parameters: Any) -> Any:
    """Run a job of `main.go` to its end; returns what it printed. Errors: AssertionError with its message."""
    command = [str(binary()), job, json.dumps(parameters)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{job} failed: {done.stderr}"
    return json.loads(done.stdout)
