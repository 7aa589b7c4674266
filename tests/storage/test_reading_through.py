"""Check closed segments, in this process and in a worker: `kbroker.storage.reading_through`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.runtime.ports import run_here
from kbroker.runtime.worker import Workers
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.sealing import SealedSegment, seal
from tests.storage.logs import batch, open_log
from wire.errors import ErrorCode, KafkaError

Sealing = Callable[[Log], list[SealedSegment]]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    reports: list[str] = []
    made = Workers(report=reports.append)
    yield made
    assert made.pids, "the workers did the work"
    assert reports == []
    made.close()


@pytest.fixture
def sealed(workers: Workers) -> Sealing:
    """Seals the closed segments of a log in this process and in a worker, and compares the results."""

    def seal_all(log: Log) -> list[SealedSegment]:
        segments = list(log.segments)
        pairs = list(zip(segments, [one.base_offset for one in segments[1:]], strict=False))
        found = [seal(log, one, next_offset=end, run=workers.run) for one, end in pairs]
        assert found == [seal(log, one, next_offset=end, run=run_here) for one, end in pairs]
        return found

    return seal_all


def filled(directory: Path, seed: int = 0) -> Log:
    """Closed segments with batches of random sizes, timestamps and leader epochs."""
    chance = random.Random(seed)
    config = LogConfig(
        segment_bytes=20_000, index_interval_bytes=chance.choice([0, 300, 1_000, 4_096]), segment_ms=1 << 60
    )
    log = open_log(directory, config=config)
    epoch = 0
    for _ in range(150):
        epoch += chance.random() < 0.03
        made = batch(chance.randint(1, 4), timestamp=chance.choice([-1, 5_000]) + chance.randrange(900), size=200)
        log.append(made, leader_epoch=epoch, timestamp_ms=1_000)
    log.roll(timestamp_ms=1_000)
    log.flush()
    return log


@pytest.mark.parametrize("seed", range(12))
def test_an_undamaged_segment_has_no_findings(seed: int, tmp_path: Path, sealed: Sealing) -> None:
    """The expected indexes match those that the log writes."""
    log = filled(tmp_path, seed)
    reports: list[str] = []
    log.files.report = reports.append
    found = sealed(log)
    assert len(found) >= 3
    assert reports == []
    epochs = {epoch: start for one in reversed(found) for epoch, start in one.leader_epochs}
    assert sorted(epochs.items()) == [(epoch, start) for epoch, start in log.leader_epochs.entries]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_sealing_rebuilds_a_damaged_index(suffix: str, tmp_path: Path, sealed: Sealing) -> None:
    log = filled(tmp_path)
    path = Path(log.segments.first.path(suffix))
    right = path.read_bytes()
    path.write_bytes(right[:-3])
    reports: list[str] = []
    log.files.report = reports.append
    sealed(log)
    assert len(reports) == 1
    assert path.read_bytes() == right
    path.unlink()
    log.files.pool.close()
    sealed(log)
    assert path.read_bytes() == right


@pytest.mark.parametrize("position", [3, 13, 20, 40, 100, 5_000, -1])
def test_d10_a_worker_finds_a_flipped_bit_anywhere(position: int, tmp_path: Path, workers: Workers) -> None:
    log = filled(tmp_path)
    first, second = list(log.segments)[:2]
    data = bytearray(Path(first.log_path).read_bytes())
    data[position] ^= 0x40
    Path(first.log_path).write_bytes(data)
    with pytest.raises(KafkaError, match="damaged at position") as caught:
        seal(log, first, next_offset=second.base_offset, run=workers.run)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
