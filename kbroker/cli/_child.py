"""A node as a child process of a command; it ends with its parent."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kbroker.cli import main

LAST_LINES: Final = 3

_PROGRAM: Final = f"from {__name__} import serve_while_asked; serve_while_asked()"
_PR_SET_PDEATHSIG: Final = 1


def serve_while_asked() -> None:
    """Run `main`, and end when the parent process ends, even if it is killed."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # only on Linux; elsewhere, a killed parent leaves its nodes running
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    sys.exit(main())


class Child:
    """`kbroker serve` with these arguments; its log goes to a file.

    Shape   ready is the file into which the node writes its address when it is ready
    """

    def __init__(self, name: str, arguments: Sequence[str], *, ready: Path, log: Path) -> None:
        self.name = name
        self.log = log
        self._ready = ready
        ready.unlink(missing_ok=True)  # of an earlier run
        command = [sys.executable, "-c", _PROGRAM, "serve", *arguments, "--ready-file", str(ready)]
        with log.open("wb") as errors:
            # A separate session, so that Ctrl-C reaches only the parent, which then stops its nodes in order.
            self._process = subprocess.Popen(  # noqa: S603  (this program itself)
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while the node runs."""
        return self._process.poll()

    def address(self) -> str | None:
        """Its first address as host:port, None until it is ready."""
        with suppress(FileNotFoundError):
            return self._ready.read_text().strip()
        return None

    def last_words(self) -> str:
        """The end of its log, on one line."""
        return "; ".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])

    def terminate(self) -> None:
        """Ask it to stop."""
        self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; kill it after this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
