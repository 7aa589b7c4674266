"""Worker processes for long work on files, so that it does not slow down the event loop.

A thread that reads every batch of a gigabyte in Python takes the interpreter lock again and again, and delays producers
each time. So such functions run in another process, at a lower priority. A thread of this process waits for the result
without the lock. `kbroker.runtime.working` is the program of the worker process.

    processes   started on demand, by `exec` and not by a fork of this process; at most `limit`; `end_idle` ends idle
                ones
    errors      of the function are raised again in this process
    failures    of the process (killed, out of memory, a malformed reply) are not errors of the function: the process
                is ended, and another process calls the function, `tries` times in total, then this process calls it.
                If the function must not run twice, the caller gets EAGAIN instead: its outcome is unknown. After three
                failures in a row no new process is started
    end         a process ends when the pipe to it closes, so at the latest with this process, however that ends

`concurrent.futures.ProcessPoolExecutor` with `spawn` does not do this job:

- If this process is killed by `kill -9`, the pool's workers finish their calls, and then wait forever: each holds the
  writing end of the queue that it reads. The next broker would write the same files at the same time.
- If one worker dies, the pool is broken, and the calls of all other workers fail.
- Its idle processes cannot be ended singly, and a terminal's Ctrl-C reaches them.
- It costs more, measured on 2 cores with Python 3.11: the first call takes 55 to 72 ms (here: 24), a call 160 to 300 us
  (30 to 60), a worker 9 MiB of its own (6) with 11 open descriptors (4), and all workers together another process of
  7 MiB (`resource_tracker`) and two threads in this one.

Source  measured: see docs/benchmarks.md, Produce while 1 GB moves to the directory tier
"""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar, TypeVarTuple, cast

from kbroker.runtime import working
from kbroker.runtime.working import NICENESS

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

MAX_PROCESSES: Final = 2
MAX_FAILURES: Final = 3
END_GRACE_S: Final = 2.0


class WorkerFailed(Exception):
    """The process did not reply, or its reply was malformed. The process has ended."""


class Worker:
    """One process, for one caller at a time. Errors: OSError if it cannot be started."""

    def __init__(self, niceness: int = NICENESS) -> None:
        # The worker gets the import paths of this process.
        paths = [path or os.getcwd() for path in sys.path]
        self._process = subprocess.Popen(  # noqa: S603  (this interpreter, with a file of this package)
            [sys.executable, "-P", working.__file__, str(niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            process_group=0,  # so that a terminal's Ctrl-C does not reach the worker
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self.is_idle = False  # no call since the last `Workers.end_idle`
        self.is_gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """The function's result, or its error. Blocking. Errors: WorkerFailed."""
        self.is_idle = False
        request = pickle.dumps((function, arguments), protocol=5)
        try:
            self._requests.write(request)
            self._requests.flush()
            # The data is trusted: only the two processes of this program use the pipe.
            is_result, value = pickle.load(self._replies)  # noqa: S301
        except BaseException as error:
            # The process must have ended before another one repeats the call. And a caller that was interrupted leaves
            # a reply that the next caller would read as its own.
            self._process.kill()
            code = self.end(grace_s=None)
            if not isinstance(error, Exception):
                raise
            why = f"ended with {code}" if isinstance(error, EOFError | BrokenPipeError) else str(error)
            raise WorkerFailed(f"process {self.pid}: {why}") from error
        if not is_result:
            raise value
        return cast(Result, value)

    def end(self, *, grace_s: float | None = END_GRACE_S) -> int:
        """Close its pipe and wait until it has ended; kill it after `grace_s`. Return the exit code."""
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


class Workers:
    """The worker processes; `run` is a Runner. Thread-safe. See the module's docstring.

    Note   without `may_start` this process calls the functions: for files that other processes cannot access
    Bound  at most `limit` processes; further calls wait
    """

    def __init__(
        self,
        *,
        report: Callable[[str], None],
        may_start: bool = True,
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
        self._is_closed = not may_start

    @property
    def pids(self) -> list[int]:
        """The ids of all worker processes."""
        with self._guard:
            return [one.pid for one in (*self._idle, *self._busy)]

    def run(self, function: Callable[[*Arguments], Result], *arguments: *Arguments, may_repeat: bool = True) -> Result:
        """Call a named function with picklable arguments and a picklable result. See Runner."""
        if self._is_closed:
            return function(*arguments)
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
        """End the processes without a call since the last `end_idle`. Blocks for a moment."""
        with self._guard:
            ended = [one for one in self._idle if one.is_idle]
            self._idle = [one for one in self._idle if not one.is_idle]
            for one in self._idle:
                one.is_idle = True
        for one in ended:
            one.end()

    def close(self) -> None:
        """End idle processes now, and each busy one after its call; start no more processes."""
        with self._guard:
            self._is_closed = True
            ended, self._idle = self._idle, []
        for one in ended:
            one.end()

    def _take(self) -> Worker | None:
        """An idle or new process; None if no process can be started."""
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
        self._report(f"a worker failed; its work is repeated: {error}")
        if is_last:
            self._report("no more workers are started after repeated failures; their work runs in this process")


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))
