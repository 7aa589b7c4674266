"""Reads /proc for a process and its child processes."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path


def children(pid: int) -> list[int]:
    """The live child processes of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(child) for child in path.read_text().split()]
    return found


def resident_mib(pid: int) -> float:
    """The resident memory of a process and of its children; 0 for one that has ended."""
    return sum(_status_kib(one, "VmRSS") for one in (pid, *children(pid))) / 1024


def reset_peak(pid: int) -> None:
    """Make the kernel restart the peak of a process's resident memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pid: int) -> float:
    """The peak resident memory of a process, without its children."""
    return _status_kib(pid, "VmHWM") / 1024


def _status_kib(pid: int, name: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(size) for size in re.findall(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE))
