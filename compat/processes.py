"""Reads /proc for a process and its child processes."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The live child processes of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(child) for child in path.read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """The live child processes of a process, and theirs."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a process, its children and their children."""
    # The kernel adds the time of a child that has ended to the last two fields of its parent.
    ticks = sum(_times(pid)[:4])
    for child in descendants(pid):
        with contextlib.suppress(OSError):  # it has ended by now
            ticks += sum(_times(child)[:4])
    return ticks / _TICKS


def cpu_us(pid: int) -> float:
    """User and system time so far of the live threads of a process, exactly; `cpu_seconds` counts in steps of 10 ms."""
    nanoseconds = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            nanoseconds += int(path.read_text().split()[0])
    return nanoseconds / 1_000


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


def _times(pid: int) -> list[int]:
    """User and system time of a process, then those of its children that have ended; in ticks."""
    return [int(one) for one in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]
