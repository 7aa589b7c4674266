"""A node that recovers its logs in worker processes: they end when they should, and the operator sees the progress."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.test_node import create, produce

LARGE_BYTES = 64 << 20


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A data directory of a killed broker, with three partitions of one record. The worker that recovers partition 0
    blocks on a writer of its leader-epoch-checkpoint, as if the disk did not answer.
    """
    data = tmp_path / "data"
    with BrokerProcess(data) as broker, broker.client() as client:
        create(client, "t", partitions=3)
        produce(client, "t", b"one")
        broker.stop(signal.SIGKILL)
    for partition in (0, 1):
        os.truncate(data / f"t-{partition}" / f"{0:020d}.log", LARGE_BYTES)
    checkpoint = data / "t-0" / "leader-epoch-checkpoint"
    checkpoint.unlink(missing_ok=True)
    os.mkfifo(checkpoint)
    return data


@pytest.fixture
def pages() -> str:
    """An address for the HTTP pages of a broker."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def recovering(killed: Path, pages: str) -> Iterator[BrokerProcess]:
    """A broker that recovers this directory with two workers."""
    overrides = "num.recovery.threads.per.data.dir=2", f"kbroker.http.listener={pages}"
    broker = BrokerProcess(killed, *(word for one in overrides for word in ("--override", one)))
    yield broker
    broker.__exit__()


def workers_of(broker: BrokerProcess, *, at_least: int) -> set[int]:
    """The child processes of the broker, once there are this many."""
    found: set[int] = set()
    while len(found) < at_least:
        assert broker.process.poll() is None
        found = set()
        for task in Path(f"/proc/{broker.process.pid}/task").iterdir():
            with suppress(FileNotFoundError):
                found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def wait_until_gone(processes: set[int]) -> None:
    """Returns when none of the processes runs any more; a test that blocks here forever has failed."""
    while any(_runs(process) for process in processes):
        pass


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_a_broker_that_is_stopped_during_recovery(
    recovering: BrokerProcess, number: signal.Signals
) -> None:
    workers = workers_of(recovering, at_least=2)
    code, seconds = recovering.stop(number)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert seconds < 5
    wait_until_gone(workers)


def test_health_shows_the_progress_of_recovery(recovering: BrokerProcess, pages: str) -> None:
    status, body = 0, dict[str, object]()
    while body.get("recovery", {}) != {"recovered_logs": 1, "logs": 3, "recovered_mib": 64, "mib": 128}:
        try:
            urllib.request.urlopen(f"http://{pages}/health")
        except urllib.error.HTTPError as error:
            status, body = error.code, json.load(error)
        except urllib.error.URLError:
            pass  # it has just been started
        assert recovering.process.poll() is None
    assert status == 503
    assert body["problems"] == [
        "the node is recovering logs after an unclean shutdown: 1 of 3 logs are recovered, 64 of 128 MiB"
    ]
