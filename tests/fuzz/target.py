"""A target, its bounds, and the file of its inputs."""

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
COUNTED_MS = 10.0
"""The lines of an input that takes more CPU time are counted."""

TraceFunction = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One function that is fuzzed.

    Shape  run returns for accepted bytes and for bytes that are refused with a declared error; seeds are inputs to
           begin with; prepare is called before each run, outside of the bounds; trace sets the trace function of the
           thread that does the work
    Units  max_bytes bounds an input, lines and allocated a run: (constant, for each byte of input), executed lines of
           Python and bytes; cpu_ms bounds a run in the process of atheris too, for work that has no lines; weight is
           its share of the time, ratio its share of the given runs
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
    prepare: Callable[[], object] = bool
    trace: Callable[[TraceFunction | None], None] = sys.settrace

    def check_lines(self, data: bytes) -> None:
        """Run an input, and count its executed lines. Errors: TooMuchWork."""
        lines, most = executed_lines(self, data), self.lines[0] + self.lines[1] * len(data)
        if lines > most:
            raise TooMuchWork(f"{self.name}: {lines} lines for {len(data)} bytes, of at most {most}: {data.hex()}")


class TooMuchWork(AssertionError):
    """A run executed more lines than its target allows."""


class TooSlow(AssertionError):
    """A run used more CPU time than its target allows."""


class TooMuchMemory(AssertionError):
    """A run used more memory than its target allows."""


class Watch:
    """Runs inputs of a target and bounds each.

    The executed lines of an input that takes some time are counted: this bound is the same on every machine, however
    busy it is. The bound on CPU time is for work in C (decompression, patterns, JSON); the fastest repetition counts.
    """

    GROWTH_MIB = 64
    """The bound on the growth of the process in one run. The runs of one target allow less than a tenth of it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.runs = 0

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        self.target.prepare()
        run, before = self.target.run, _resident_kib()
        began = time.process_time_ns()
        run(data)
        if time.process_time_ns() - began > COUNTED_MS * 1e6:
            self._judge_again(data)
        if _resident_kib() - before > self.GROWTH_MIB * 1024 and self.runs:
            raise TooMuchMemory(f"{self.target.name}: {(_resident_kib() - before) // 1024} MiB for {len(data)} bytes")
        self.runs += 1

    def _judge_again(self, data: bytes) -> None:
        times = []
        for _ in range(3):  # the first run may have compiled a codec
            self.target.prepare()
            began = time.process_time_ns()
            self.target.run(data)
            times.append((time.process_time_ns() - began) / 1e6)
            if times[-1] <= COUNTED_MS:
                return
        self.target.check_lines(data)
        if min(times) > self.target.cpu_ms:
            raise TooSlow(f"{self.target.name}: {min(times):.0f} ms for {len(data)} bytes")


def _resident_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def executed_lines(target: Target, data: bytes) -> int:
    """The number of lines of Python that a run executes, without trio's and ours: the same in every run, on every
    machine.
    """
    count = 0

    def counts(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if event == "call" and _is_harness(frame.f_code.co_filename):
            return None
        count += event == "line"
        return counts

    _run_traced(target, data, counts)
    return count


def covered_lines(target: Target, data: bytes) -> set[tuple[str, int]]:
    """The (file, line) pairs of the product that a run executes; failures of the run do not matter."""
    lines: set[tuple[str, int]] = set()

    def notes(frame: FrameType, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if _is_harness(name) or not ("/wire/" in name or "/kbroker/" in name or name[0] == "<"):
            return None
        if event == "line":
            lines.add((name, frame.f_lineno))
        return notes

    with contextlib.suppress(Exception):
        _run_traced(target, data, notes)
    return lines


def _is_harness(file: str) -> bool:
    return "/tests/" in file or "/trio/" in file or "/kbroker/testing/" in file


def _run_traced(target: Target, data: bytes, function: TraceFunction) -> None:
    target.prepare()
    before = sys.gettrace()
    target.trace(function)
    try:
        target.run(data)
    finally:
        target.trace(None)
        sys.settrace(before)


def allocated_bytes(target: Target, data: bytes) -> int:
    """The peak of the memory that Python allocates in a run."""
    target.prepare()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        target.run(data)
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
