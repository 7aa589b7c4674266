"""The broker of the demo: a child process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from kbroker.cli import CommandFailed
from kbroker.cli._child import Child
from kbroker.runtime.env import RealEnv

START_MS: Final = 15_000
STOP_SECONDS: Final = 5
LOOK_MS: Final = 20

SETTINGS: Final = (
    "remote.log.storage.system.enable=true",
    "remote.log.manager.task.interval.ms=200",
    "log.retention.check.interval.ms=200",
    "log.segment.delete.delay.ms=0",
)
"""Short intervals for tasks that a broker normally runs every few minutes."""


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """Run a broker in a directory and yield its address. Raises CommandFailed if it does not start."""
    arguments = [
        *("--profile", "test", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0"),
        *("--log-level", "warning"),
    ]
    for setting in SETTINGS:
        arguments += ["--override", setting]
    child = Child("broker", arguments, ready=directory / "ready", log=directory / "broker.log")
    try:
        yield _address(child)
    finally:
        child.terminate()
        child.wait(STOP_SECONDS)


def _address(child: Child) -> str:
    env = RealEnv()
    deadline = env.now_ms() + START_MS
    while (address := child.address()) is None:
        if child.exit_code is not None or env.now_ms() > deadline:
            raise CommandFailed(f"the broker did not start: {child.last_words() or f'no answer for {START_MS} ms'}")
        Event().wait(LOOK_MS / 1000)
    return address
