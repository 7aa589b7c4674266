"""The worker process that copies segments for a real broker: its work, and the effect when it or the broker dies."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.test_tier_deaths import segments_in_tier
from tests.test_tiered_node import (
    QUICK,
    RECORDS,
    SEGMENT_BYTES,
    consume,
    create_topic,
    local_bytes,
    produce,
    until,
)

WAIT_MS = 20_000


def workers_of(broker: BrokerProcess) -> list[int]:
    """The child processes of the broker."""
    found: list[int] = []
    for path in Path(f"/proc/{broker.process.pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += [int(pid) for pid in path.read_text().split()]
    return found


def has_ended(pidfd: int) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    ended = bool(waiting.poll(WAIT_MS))
    os.close(pidfd)
    return ended


def copy(broker: BrokerProcess) -> None:
    create_topic(broker, "orders")
    produce(broker, "orders", 0, RECORDS)
    until(broker, lambda: local_bytes(broker.directory, "orders") < SEGMENT_BYTES)


def test_the_copying_worker_ends_with_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *QUICK) as broker:
        assert workers_of(broker) == [], "nothing is to be copied yet"
        copy(broker)
        (worker,) = workers_of(broker)
        assert b"kbroker/runtime/working.py" in Path(f"/proc/{worker}/cmdline").read_bytes()
        consume(broker, "orders", RECORDS)
        pidfd = os.pidfd_open(worker)
        code, _ = broker.stop()
        assert code == 0
        assert has_ended(pidfd)
        errors = broker.stop_and_read_errors()
    assert "Traceback" not in errors
    assert "a worker failed" not in errors


def test_a_killed_broker_leaves_no_process(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with BrokerProcess(directory, *QUICK) as broker:
        copy(broker)
        (worker,) = workers_of(broker)
        pidfd = os.pidfd_open(worker)
        broker.stop(signal.SIGKILL)
        assert has_ended(pidfd)
    with BrokerProcess(directory, *QUICK) as broker:
        consume(broker, "orders", RECORDS)


@pytest.mark.long
def test_copies_are_correct_although_the_worker_is_killed(tmp_path: Path) -> None:
    """It is killed as soon as it appears, repeatedly, until none is started any more."""
    directory = tmp_path / "data"
    killed: set[int] = set()
    with BrokerProcess(directory, *QUICK) as broker:
        create_topic(broker, "orders")

        def kill() -> bool:
            for pid in workers_of(broker):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            return local_bytes(directory, "orders") < SEGMENT_BYTES

        for begun in range(0, 3 * RECORDS, RECORDS):
            produce(broker, "orders", begun, begun + RECORDS)
            until(broker, kill)
            # The broker notices a worker that died after its work when it copies the next segment.
            kill()
        consume(broker, "orders", 3 * RECORDS)
        code, _ = broker.stop()
        errors = broker.stop_and_read_errors()
    assert code == 0
    assert killed
    assert "a worker failed; its work is repeated" in errors
    assert "Traceback" not in errors
    assert segments_in_tier(directory) > 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_stops_the_broker_cleanly(number: int, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *QUICK) as broker:
        copy(broker)
        (worker,) = workers_of(broker)
        os.kill(worker, number)
        assert os.getpgid(worker) != os.getpgid(broker.process.pid)
        produce(broker, "orders", RECORDS, 2 * RECORDS)
        until(broker, lambda: local_bytes(broker.directory, "orders") < SEGMENT_BYTES)
        assert workers_of(broker) == [worker]
        pidfd = os.pidfd_open(worker)
        assert broker.stop(number)[0] == 0
        assert has_ended(pidfd)
        assert "Traceback" not in broker.stop_and_read_errors()


def test_without_a_worker_the_broker_copies_itself(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *QUICK, "--override", "kbroker.remote.copy.process.enable=false") as broker:
        copy(broker)
        assert workers_of(broker) == []
        consume(broker, "orders", RECORDS)
