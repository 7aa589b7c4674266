"""The broker of the demo: a child process that ends with its parent."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from kbroker.cli import CommandFailed, main
from kbroker.runtime.env import RealEnv

START_MS: Final = 15_000
STOP_SECONDS: Final = 5
LOOK_MS: Final = 20
LAST_LINES: Final = 3

SETTINGS: Final = (
    "remote.log.storage.system.enable=true",
    "remote.log.manager.task.interval.ms=200",
    "log.retention.check.interval.ms=200",
    "log.segment.delete.delay.ms=0",
)
"""Short intervals for tasks that a broker normally runs every few minutes."""

_PROGRAM: Final = f"from {__name__} import serve_while_asked; serve_while_asked()"
_PR_SET_PDEATHSIG: Final = 1


def serve_while_asked() -> None:
    """Run `main`, and end when the parent process ends, even if it is killed."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # only on Linux; elsewhere, a killed parent leaves its broker running
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    sys.exit(main())


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """Run a broker in a directory and yield its address. Raises CommandFailed if it does not start."""
    ready, log = directory / "ready", directory / "broker.log"
    command = [
        sys.executable, "-c", _PROGRAM, "serve", "--profile", "test", "--data-dir", str(directory / "data"),
        "--listen", "127.0.0.1:0", "--ready-file", str(ready), "--log-level", "warning",
    ]  # fmt: skip
    for setting in SETTINGS:
        command += ["--override", setting]
    with log.open("wb") as errors:
        # A separate session, so that Ctrl-C reaches only the demo, which then stops the broker.
        process = subprocess.Popen(  # noqa: S603  (this program itself)
            command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
    try:
        yield _address(process, ready, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    env = RealEnv()
    deadline = env.now_ms() + START_MS
    while not ready.exists():
        if process.poll() is not None or env.now_ms() > deadline:
            said = "; ".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise CommandFailed(f"the broker did not start: {said or f'no answer for {START_MS} ms'}")
        Event().wait(LOOK_MS / 1000)
    return ready.read_text().strip()
