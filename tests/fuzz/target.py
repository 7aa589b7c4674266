"""What a target is, its bounds, and the file of its inputs."""

from __future__ import annotations

import base64
import contextlib
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """One function that is fuzzed.

    Shape  run returns for accepted bytes and for bytes that are refused with a declared error; seeds are inputs to
           begin with
    Units  max_bytes bounds an input; cpu_ms a run, in the process of atheris; lines and allocated a run of the tests:
           (constant, for each byte of input), executed lines of Python and bytes, zeros if they are not judged because
           the work is done in another thread; weight is its share of the time, ratio its share of the given runs
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    max_bytes: int = 2048
    cpu_ms: float = 50.0
    lines: tuple[int, int] = (5_000, 40)
    allocated: tuple[int, int] = (256 * 1024, 1024)
    weight: float = 1.0
    ratio: float = 1.0


class TooSlow(AssertionError):
    """A run used more CPU time than its target allows."""


class TooMuchMemory(AssertionError):
    """A run used more memory than its target allows."""


class Watch:
    """Runs inputs of a target and bounds each. The CPU time of a slow one is that of its fastest repetition."""

    GROWTH_MIB = 64
    """The bound on the growth of the process in one run. The runs of one target allow less than a tenth of it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.runs = 0

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        run, before = self.target.run, _resident_kib()
        began = time.process_time_ns()
        run(data)
        if time.process_time_ns() - began > self.target.cpu_ms * 1e6:
            self._judge_again(data)
        if _resident_kib() - before > self.GROWTH_MIB * 1024 and self.runs:
            raise TooMuchMemory(f"{self.target.name}: {(_resident_kib() - before) // 1024} MiB for {len(data)} bytes")
        self.runs += 1

    def _judge_again(self, data: bytes) -> None:
        times = []
        for _ in range(3):  # the first run may have compiled a codec
            began = time.process_time_ns()
            self.target.run(data)
            times.append((time.process_time_ns() - began) / 1e6)
        if min(times) > self.target.cpu_ms:
            raise TooSlow(f"{self.target.name}: {min(times):.0f} ms for {len(data)} bytes")


def _resident_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def executed_lines(run: Callable[[bytes], object], data: bytes) -> int:
    """The number of lines of Python that a run executes: the same in every run, on every machine."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(data)
    finally:
        sys.settrace(before)
    return count


def covered_lines(run: Callable[[bytes], object], data: bytes) -> set[tuple[str, int]]:
    """The (file, line) pairs outside of this folder that a run executes; failures of the run do not matter."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "/fuzz/" in name or not ("/wire/" in name or "/kbroker/" in name or name[0] == "<"):
            return None
        if event == "line":
            lines.add((name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(Exception):
            run(data)
    finally:
        sys.settrace(before)
    return lines


def allocated_bytes(run: Callable[[bytes], object], data: bytes) -> int:
    """The peak of the memory that Python allocates in a run."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        run(data)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def kept(name: str) -> list[bytes]:
    """The inputs of a target in the repository."""
    file = CORPUS / f"{name}.txt"
    return [base64.b64decode(line) for line in file.read_text().split()] if file.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a target in the repository, the shortest first."""
    lines = [
        base64.b64encode(data).decode() for data in sorted(set(inputs), key=lambda data: (len(data), data)) if data
    ]
    if lines:
        (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def inputs(target: Target) -> list[bytes]:
    """The seeds and the inputs in the repository, without duplicates."""
    return list(
        dict.fromkeys([*kept(target.name), *(data for data in target.seeds() if len(data) <= target.max_bytes)])
    )
