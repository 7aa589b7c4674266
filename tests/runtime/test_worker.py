"""Worker processes: `kbroker.runtime.worker` and `kbroker.runtime.working`."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.worker import MAX_FAILURES, Workers
from kbroker.runtime.working import NICENESS
from kbroker.storage.reading_through import read_through
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.moving import move_files
from tests.runtime import jobs
from wire.errors import ErrorCode, KafkaError

WAIT_MS = 20_000


@pytest.fixture
def reports() -> list[str]:
    """The reported messages."""
    return []


@pytest.fixture
def workers(reports: list[str]) -> Iterator[Workers]:
    made = Workers(report=reports.append)
    yield made
    made.close()
    assert made.pids == []


GOOD = pickle.dumps((True, {"size": 5}), protocol=5)


def has_ended(pidfd: int) -> bool:
    """Wait for the end of a process; return whether it ended."""
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(WAIT_MS))


# --- working ----------------------------------------------------------------------------------------------------------


def test_no_process_is_started_without_work(workers: Workers) -> None:
    assert workers.pids == []
    pid = workers.run(os.getpid)
    assert pid != os.getpid()
    assert workers.pids == [pid]
    assert workers.run(os.getpid) == pid, "the same worker continues"


def test_a_worker_has_low_priority_and_its_own_process_group(workers: Workers) -> None:
    assert workers.run(os.nice, 0) == min(os.nice(0) + NICENESS, 19)
    assert workers.run(os.getpgrp) != os.getpgrp()


def test_a_worker_that_copies_imports_little(workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "to").touch()
    to = str(tmp_path / "to")
    assert workers.run(move_files, RealDisk(), {to: b"some"})[to][0] == 4
    with pytest.raises(AttributeError):
        workers.run(read_through, None, 0, [])  # type: ignore[arg-type]  # imported is enough
    imported = set(workers.run(jobs.modules))
    assert "kbroker.storage.reading_through" in imported
    for name in ("trio", "subprocess", "construct", "numpy", "kbroker.storage.log", "kbroker.tiered.local"):
        assert name not in imported


def test_errors_are_raised_again_unchanged(workers: Workers, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError) as absent:
        workers.run(jobs.open_file, missing)
    assert (absent.value.errno, absent.value.filename) == (2, missing)
    with pytest.raises(KafkaError) as refused:
        workers.run(jobs.refuse, int(ErrorCode.CORRUPT_MESSAGE), "why")
    assert (refused.value.code, refused.value.message) == (ErrorCode.CORRUPT_MESSAGE, "why")
    assert len(workers.pids) == 1, "nothing is wrong with the worker"


def test_printed_output_does_not_disturb_replies(workers: Workers) -> None:
    assert [workers.run(jobs.print_something)] == workers.pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_for_the_broker_does_not_end_a_worker(number: int, workers: Workers, reports: list[str]) -> None:
    pid = workers.run(os.getpid)
    os.kill(pid, number)
    assert workers.run(os.getpid) == pid
    assert reports == []


def test_two_workers_run_at_once(workers: Workers, tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with ThreadPoolExecutor(2) as threads:
        # Each call returns only when the other one runs too.
        both = [threads.submit(workers.run, os.open, fifo, flag) for flag in (os.O_RDONLY, os.O_WRONLY)]
        for one in both:
            one.result()
    assert len(workers.pids) == 2


# --- failing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [jobs.die, jobs.run_out_of_memory, jobs.return_what_cannot_be_sent])
def test_work_of_failing_workers_is_done_in_this_process(job: object, workers: Workers, reports: list[str]) -> None:
    assert callable(job)
    assert workers.run(job, os.getpid()) == os.getpid()
    assert len(reports) == 1
    assert workers.pids == []
    assert workers.run(os.getpid) not in (None, os.getpid()), "the next one is a new one"


@pytest.mark.parametrize(
    "reply",
    [
        *(GOOD[:size] for size in range(len(GOOD))),
        b"Traceback (most recent call last):\n",
        *(pickle.dumps(value) for value in (None, 5, (True,))),
    ],
)
def test_a_malformed_reply_is_never_used(reply: bytes, workers: Workers, reports: list[str]) -> None:
    assert workers.run(jobs.answer, reply, os.getpid()) == "done by the caller"
    assert len(reports) == 1


class Interrupted(BaseException):
    """Raised by a signal handler."""


def test_a_late_reply_is_not_given_to_the_next_caller(workers: Workers, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pidfd = os.pidfd_open(workers.run(os.getpid))

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            workers.run(jobs.answer_late, signal.SIGUSR1, str(fifo))
    finally:
        signal.signal(signal.SIGUSR1, before)
    with fifo.open("r+b", buffering=0):  # now the worker can reply
        assert workers.run(os.getppid) == os.getpid()
        assert has_ended(pidfd)
    os.close(pidfd)
    assert len(workers.pids) == 1


def test_another_worker_repeats_the_work_of_a_dead_one(reports: list[str], tmp_path: Path) -> None:
    workers = Workers(report=reports.append, tries=2)
    try:
        assert workers.run(jobs.die_once, str(tmp_path / "died")) in workers.pids
    finally:
        workers.close()
    assert len(reports) == 1


def test_the_niceness_of_a_worker_can_be_chosen(reports: list[str]) -> None:
    workers = Workers(report=reports.append, niceness=3)
    try:
        assert workers.run(os.nice, 0) == os.nice(0) + 3
    finally:
        workers.close()


def test_unrepeatable_work_is_not_repeated(workers: Workers) -> None:
    with pytest.raises(BlockingIOError, match="ended with -9"):
        workers.run(jobs.die, os.getpid(), may_repeat=False)


def test_an_idle_worker_that_was_killed_is_replaced(workers: Workers, reports: list[str]) -> None:
    first = workers.run(os.getpid)
    pidfd = os.pidfd_open(first)
    os.kill(first, signal.SIGKILL)
    assert has_ended(pidfd)
    os.close(pidfd)
    assert workers.run(os.getpid) == os.getpid()
    assert workers.run(os.getpid) not in (first, os.getpid())
    assert len(reports) == 1


def test_after_three_failures_all_work_runs_in_this_process(workers: Workers, reports: list[str]) -> None:
    for _ in range(MAX_FAILURES - 1):
        workers.run(jobs.die, os.getpid())
    assert workers.run(os.getpid) != os.getpid(), "a success resets the count"
    for _ in range(MAX_FAILURES):
        workers.run(jobs.die, os.getpid())
    assert workers.run(os.getpid) == os.getpid()
    assert workers.pids == []
    assert "no more workers are started" in reports[-1]


def test_work_runs_here_if_python_cannot_be_started(
    workers: Workers, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert workers.run(os.getpid) == os.getpid()
    assert "/nowhere/python" in reports[0]


# --- ending -----------------------------------------------------------------------------------------------------------


def test_an_idle_worker_ends_after_a_while(workers: Workers) -> None:
    first = workers.run(os.getpid)
    workers.end_idle()
    assert workers.run(os.getpid) == first, "it had"
    workers.end_idle()
    assert workers.pids == [first]
    pidfd = os.pidfd_open(first)
    workers.end_idle()
    assert workers.pids == []
    assert has_ended(pidfd)
    os.close(pidfd)
    assert workers.run(os.getpid) not in (first, os.getpid())


def test_after_close_all_work_runs_in_this_process(workers: Workers) -> None:
    workers.run(os.getpid)
    workers.close()
    assert workers.run(os.getpid) == os.getpid()


def test_a_worker_ends_with_its_parent_even_during_a_call(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = (
        "import sys; from tests.runtime import jobs; from kbroker.runtime.worker import Workers;"
        f"Workers(report=print).run(jobs.work_for_ever, {str(fifo)!r})"
    )
    root = Path(__file__).parents[2]
    asking = subprocess.Popen([sys.executable, "-c", script], cwd=root)
    with open(fifo) as opened:
        pidfd = os.pidfd_open(int(opened.readline()))
    asking.kill()
    assert asking.wait() == -signal.SIGKILL
    assert has_ended(pidfd)
    os.close(pidfd)


def test_workers_that_may_not_start_work_in_this_process() -> None:
    workers = Workers(may_start=SimulatedDisk().is_shared, report=print)
    assert workers.run(os.getpid) == os.getpid()
    assert workers.pids == []
