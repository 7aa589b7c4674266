"""Expiry of producers over restarts, when their record timestamps are very old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from tests.storage.logs import batch, open_log

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
CONFIG = LogConfig(producer_id_expiration_ms=DAY_MS)


def opened(directory: Path, *, now_ms: int = NOW_MS, clean: bool = False) -> Log:
    return open_log(directory, config=CONFIG, timestamp_ms=now_ms, clean_shutdown=clean)


def send(log: Log, producer: int, sequence: int) -> bool:
    """Append a batch with very old record timestamps; True if it is a duplicate."""
    sent = batch(timestamp=1_000 + sequence, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    return log.append(sent, leader_epoch=0, timestamp_ms=NOW_MS).is_duplicate


def written_at(log: Log, *, ages_ms: tuple[int, ...]) -> None:
    """Set the modification time of each segment, the first one first."""
    for segment, age_ms in zip(log.segments, ages_ms, strict=True):
        os.utime(segment.log_path, ns=((NOW_MS - age_ms) * 1_000_000,) * 2)


def end(log: Log, *, clean: bool) -> None:
    if clean:
        log.close()
    log.files.pool.close()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_batch_resent_after_roll_and_restart_is_a_duplicate(clean: bool, tmp_path: Path) -> None:
    """After the restart the producer is known only from the roll's snapshot, which has only record timestamps."""
    log = opened(tmp_path)
    send(log, 1, 0)
    log.roll(timestamp_ms=NOW_MS)
    written_at(log, ages_ms=(1_000, 0))
    end(log, clean=clean)
    log = opened(tmp_path, clean=clean)
    assert send(log, 1, 0), "otherwise it is appended twice"
    assert log.log_end_offset == 1
    assert log.producers.expire(NOW_MS + DAY_MS - 1_001, DAY_MS) == 0
    assert log.producers.expire(NOW_MS + DAY_MS - 1_000, DAY_MS) == 1, "producers do expire"


def test_restarts_do_not_prolong_the_life_of_producers(tmp_path: Path) -> None:
    log = opened(tmp_path)
    send(log, 1, 0)
    log.roll(timestamp_ms=NOW_MS)
    send(log, 2, 0)
    log.roll(timestamp_ms=NOW_MS)
    written_at(log, ages_ms=(DAY_MS // 2, DAY_MS // 4, 0))
    for tenths, known in ((0, [1, 2]), (4, [1, 2]), (6, [2]), (8, [])):
        end(log, clean=True)
        log = opened(tmp_path, now_ms=NOW_MS + tenths * DAY_MS // 10, clean=True)
        assert list(log.producers.producers) == known


def test_the_first_remaining_segment_dates_producers_of_deleted_ones(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for producer in (1, 2):
        send(log, producer, 0)
        log.roll(timestamp_ms=NOW_MS)
    written_at(log, ages_ms=(9 * DAY_MS, DAY_MS - 1, 0))
    first = log.segments.first
    end(log, clean=True)
    for path in tmp_path.glob(f"{first.base_offset:020d}.*"):
        path.unlink()
    log = opened(tmp_path, clean=True)
    assert log.segments.first.base_offset == 1
    assert list(log.producers.producers) == [1, 2]
    assert log.producers.expire(NOW_MS + 1, DAY_MS) == 2


def test_a_truncation_does_not_expire_active_producers(tmp_path: Path) -> None:
    log = opened(tmp_path)
    send(log, 1, 0)
    log.roll(timestamp_ms=NOW_MS)
    written_at(log, ages_ms=(1_000, 0))
    send(log, 2, 0)
    assert log.truncate_to(1)
    assert log.producers.expire(NOW_MS, DAY_MS) == 0
    assert send(log, 1, 0)
