"""Real processes that die at the write points of copying to the tier and deleting from it: row M8.

The simulated disk covers all points (tests/sim/test_tier_crashes.py); these tests show that the real disk and the real
broker behave the same.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.dying_broker import DIES_AT, EXIT_CODE
from tests.test_tiered_node import (
    QUICK,
    RECORDS,
    SEGMENT_BYTES,
    consume,
    create_topic,
    delete_topic,
    local_bytes,
    produce,
    remote_files,
    until,
)

SLOW = ("--override", "remote.log.manager.copy.max.bytes.per.second=1")
"""One segment may be copied, and the next one in two weeks."""
DYING = "tests.dying_broker"


def segments_in_tier(directory: Path) -> int:
    """The number of segments; each has all its files, and there are no unfinished files."""
    names = remote_files(directory)
    count = sum(name.endswith(".log") for name in names)
    for suffix in (".index", ".timeindex", ".snapshot", ".leader-epoch-checkpoint", ".manifest.json"):
        assert sum(name.endswith(suffix) for name in names) == count, names
    assert not any(name.endswith(".tmp") for name in names), names
    return count


def assert_dies(broker: BrokerProcess) -> None:
    code = broker.process.wait(timeout=30)
    errors = broker.stop_and_read_errors()
    assert code == EXIT_CODE, errors


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A data directory with a tiered topic of which almost nothing is in the tier yet."""
    directory = tmp_path / "data"
    with BrokerProcess(directory, *SLOW) as broker:
        create_topic(broker, "orders")
        produce(broker, "orders", 0, RECORDS)
        broker.stop(signal.SIGKILL)
    return directory


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "write after 1 *__remote_log_metadata-*.log",  # COPY_SEGMENT_STARTED, not synced
        "write half 1 *-tier/*.log.tmp",
        "rename after 1 *-tier/*.log.tmp",
        "write half 1 *-tier/*.leader-epoch-checkpoint.tmp",
        "rename after 1 *-tier/*.manifest.json.tmp",  # all objects are written, but the metadata is not
        "sync after 2 *__remote_log_metadata-*.log",  # COPY_SEGMENT_FINISHED
        "rename after 1 */orders-0/*.log",  # the first local segment goes
    ],
)
def test_m8_a_broker_killed_during_a_copy_leaves_no_orphans(
    point: str, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIES_AT, point)
    closed = len(list((filled / "orders-0").glob("*.log"))) - 1
    assert_dies(BrokerProcess(filled, *QUICK, module=DYING))
    with BrokerProcess(filled, *QUICK) as broker:
        until(broker, lambda: local_bytes(filled, "orders") < SEGMENT_BYTES)
        consume(broker, "orders", RECORDS)
        assert segments_in_tier(filled) == closed
        assert broker.stop()[0] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "write before 1 *__remote_log_metadata-*.log",
        "unlink after 1 *-tier/*.manifest.json",
        "unlink before 3 *-tier/*",
    ],
)
def test_m8_a_broker_killed_during_a_deletion_leaves_no_orphans(
    point: str, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerProcess(filled, *QUICK) as broker:
        until(broker, lambda: local_bytes(filled, "orders") < SEGMENT_BYTES)
        broker.stop()
    monkeypatch.setenv(DIES_AT, point)
    dying = BrokerProcess(filled, *QUICK, module=DYING).wait_until_ready()
    delete_topic(dying, "orders", may_die=True)
    assert_dies(dying)
    assert remote_files(filled)
    with BrokerProcess(filled, *QUICK) as broker:
        until(broker, lambda: not remote_files(filled))
