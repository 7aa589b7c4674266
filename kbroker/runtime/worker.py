"""Work on files for which the event loop must not have to wait: done by a process of its own.

A thread that looks at each batch of a gigabyte in Python holds the interpreter's lock, piece by piece, and whoever
produces meanwhile waits for it again and again. So such functions are called in another process, at a lower priority,
by a thread that waits for the answer without the lock. `kbroker.runtime.working` is what runs there.

    processes   started when there is something to do, by `exec` and not by a fork of this one; at most `limit`; ended
                when there was nothing to do for a while, by `end_idle`
    errors      of the function are raised here as they were there
    a failure   of the process (killed, out of memory, an answer that is none) is nobody's error: it is ended, and the
                function is called by another process, `tries` times in all, and then here; unless it must not be begun
                twice: then EAGAIN says that nobody knows. After three failures in a row no process is started any more
    its end     a process ends with the pipe to it, so at the latest with this process, however that ends

Source  measured: see docs/benchmarks.md, Produce while 1 GB moves to the directory tier
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar, TypeVarTuple, cast

from kbroker.runtime import working
from kbroker.runtime.disk import RealDisk
from kbroker.runtime.ports import Disk
from kbroker.runtime.working import NICENESS, BrokenFrame, framed, read_frame, write

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

MAX_PROCESSES: Final = 2
MAX_FAILURES: Final = 3
END_GRACE_S: Final = 2.0


class Runner(Protocol):
    """Who calls a function and waits for its result."""

    def __call__(
        self, function: Callable[[*Arguments], Result], *arguments: *Arguments, may_repeat: bool = True
    ) -> Result:
        """Blocking. Errors: those of the function; OSError (EAGAIN) without `may_repeat`: it may have done anything."""
        ...


def run_here(
    function: Callable[[*Arguments], Result],
    *arguments: *Arguments,
    may_repeat: bool = True,  # noqa: ARG001  (a Runner has it)
) -> Result:
    """A Runner that just does it."""
    return function(*arguments)


class WorkerFailed(Exception):
    """The process did not answer, or with something that is no answer; it is gone."""


class Worker:
    """One process, for one caller at a time. Errors: OSError if it cannot be started."""

    def __init__(self, niceness: int = NICENESS) -> None:
        # With the paths of this process it finds what was found here, from wherever this one was started.
        paths = [path or os.getcwd() for path in sys.path]
        self._process = subprocess.Popen(  # noqa: S603  (this interpreter, with a file of this package)
            [sys.executable, "-P", working.__file__, str(niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            process_group=0,  # a terminal's Ctrl-C is for those that it can see
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self.is_idle = False  # nothing was asked since somebody looked
        self.is_gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """The function's result, or its error. Blocking. Errors: WorkerFailed."""
        self.is_idle = False
        request = framed((function, arguments))
        try:
            write(self._requests.fileno(), request)
            is_result, value = _checked(read_frame(self._replies.fileno()))
        except BaseException as error:
            # It must be gone before anybody else does what it may be doing still; and who gave up, out of memory or
            # interrupted, leaves an answer that the next one would take for his.
            self._process.kill()
            code = self.end(grace_s=None)
            if not isinstance(error, BrokenFrame | EOFError | OSError):
                raise
            why = f"ended with {code}" if isinstance(error, EOFError | BrokenPipeError) else str(error)
            raise WorkerFailed(f"process {self.pid}: {why}") from error
        if isinstance(value, Exception) and not is_result:
            raise value
        return cast(Result, value)

    def end(self, *, grace_s: float | None = END_GRACE_S) -> int:
        """Let go of it and wait until it is gone; it is killed after a while. Its exit code."""
        with suppress(OSError):
            self._requests.close()
        try:
            code = self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._replies.close()
        self.is_gone = True
        return code


def _checked(reply: object) -> tuple[bool, object]:
    """A reply that is one. Errors: BrokenFrame."""
    match reply:
        case (True, value):
            return True, value
        case (False, Exception() as error):
            return False, error
    raise BrokenFrame(f"no reply is {type(reply).__name__}")


class Workers:
    """The processes that work for this one; `run` is a Runner. Used by several threads at once; see the module's text.

    Bound  at most `limit` work at once; who asks for more waits
    """

    def __init__(
        self,
        *,
        report: Callable[[str], None],
        limit: int = MAX_PROCESSES,
        tries: int = 1,
        niceness: int = NICENESS,
    ) -> None:
        self.limit = limit
        self._report = report
        self._tries = tries
        self._niceness = niceness
        self._turns = threading.BoundedSemaphore(limit)
        self._guard = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._failures = 0
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The processes that there are."""
        with self._guard:
            return [one.pid for one in (*self._idle, *self._busy)]

    def run(self, function: Callable[[*Arguments], Result], *arguments: *Arguments, may_repeat: bool = True) -> Result:
        """Call a function that has a name, with arguments and a result that can be pickled. See Runner."""
        with self._turns:
            for _ in range(self._tries):
                worker = self._take()
                if worker is None:
                    break
                try:
                    return worker.call(function, *arguments)
                except WorkerFailed as failure:
                    self._note_failure(failure)
                    if not may_repeat:
                        raise OSError(errno.EAGAIN, str(failure)) from failure
                finally:
                    self._give_back(worker)
        return function(*arguments)

    def end_idle(self) -> None:
        """End those that had nothing to do since this was last called. Blocking, but for a moment."""
        with self._guard:
            ended = [one for one in self._idle if one.is_idle]
            self._idle = [one for one in self._idle if not one.is_idle]
            for one in self._idle:
                one.is_idle = True
        for one in ended:
            one.end()

    def close(self) -> None:
        """End all that have nothing to do, and each of the others when it is done; from now on none is started."""
        with self._guard:
            self._is_closed = True
            ended, self._idle = self._idle, []
        for one in ended:
            one.end()

    def _take(self) -> Worker | None:
        """A process to work with; None where there can be none."""
        with self._guard:
            if self._is_closed or self._failures >= MAX_FAILURES:
                return None
            worker = self._idle.pop() if self._idle else None
            if worker is not None:
                self._busy.add(worker)
                return worker
        try:
            worker = Worker(self._niceness)
        except (OSError, ValueError) as error:
            self._note_failure(error)
            return None
        with self._guard:
            self._busy.add(worker)
        return worker

    def _give_back(self, worker: Worker) -> None:
        with self._guard:
            self._busy.discard(worker)
            if worker.is_gone:
                return
            self._failures = 0
            is_kept = not self._is_closed
            if is_kept:
                self._idle.append(worker)
        if not is_kept:
            worker.end()

    def _note_failure(self, error: Exception) -> None:
        with self._guard:
            self._failures += 1
            is_last = self._failures == MAX_FAILURES
        self._report(f"a worker failed; what it did is done again: {error}")
        if is_last:
            self._report("no worker is started any more: what they are for is done in this process from now on")


def workers_for(
    disk: Disk,
    *,
    report: Callable[[str], None],
    limit: int = MAX_PROCESSES,
    tries: int = 1,
    niceness: int = NICENESS,
) -> Workers | None:
    """Workers for files on this disk; None where it is one that other processes do not see."""
    if type(disk) is not RealDisk:
        return None
    return Workers(report=report, limit=limit, tries=tries, niceness=niceness)


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0))
