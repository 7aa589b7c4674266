"""For generated histories, any passes of the cleaner leave what consumers and producers rely on."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.storage.log import Log
from kbroker.storage.producer_state import REMEMBERED_BATCHES
from tests.storage.cleaning import COMPACTED, clean_log
from tests.storage.compacted_history import TRANSACTIONAL, CompactedHistory, committed
from tests.storage.logs import open_log, read_all

CONFIG = replace(COMPACTED, delete_retention_ms=60_000)


def reopened(log: Log, directory: Path, rng: random.Random) -> Log:
    """The log after a restart: a clean one, a crash, or a crash without its producer snapshots."""
    given = {"config": CONFIG, "cleaned_offset": log.cleaned_offset, "recovery_point": log.recovery_point}
    if rng.random() < 0.5:
        log.close()
        return open_log(directory, clean_shutdown=True, **{**given, "recovery_point": log.log_end_offset})
    log.abandon()
    if rng.random() < 0.5:
        for path in directory.glob("*.snapshot"):
            path.unlink()
    return open_log(directory, **given)


@pytest.mark.parametrize("seed", range(6))
def test_consumers_and_producers_notice_no_cleaning(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history = CompactedHistory(open_log(tmp_path, config=CONFIG), rng)
    passes = 0
    for _ in range(150):
        history.step()
        if rng.random() < 0.12:
            given = {"stable_offset": history.stable_offset, "timestamp_ms": history.now_ms}
            passes += clean_log(history.log, map_entries=rng.choice((30, 1_000)), **given) is not None
            assert committed(history.log, history.stable_offset) == history.expected()
        if rng.random() < 0.03:
            history.log = reopened(history.log, tmp_path, rng)
            assert committed(history.log, history.stable_offset) == history.expected()
    assert passes
    for producer_id, batch in history.last_batches.items():
        end = history.log.log_end_offset
        if producer_id not in TRANSACTIONAL or producer_id in history.is_open:
            plan = history.log.append(bytearray(batch), leader_epoch=0, timestamp_ms=history.now_ms)
            assert plan.is_duplicate, "a retry of the last batch is recognized"
            assert history.log.log_end_offset == end
    for producer_id in tuple(history.is_open):
        history.end(producer_id, commit=True)
    assert committed(history.log, history.log.log_end_offset) == history.expected()


def test_repeated_passes_leave_one_record_for_each_key(tmp_path: Path) -> None:
    """Tombstones, markers and aborted records are gone once their time is over; only the last batches stay."""
    rng = random.Random(5)
    history = CompactedHistory(open_log(tmp_path, config=CONFIG), rng)
    for _ in range(200):
        history.step()
    for producer_id in tuple(history.is_open):
        history.end(producer_id, commit=False)
    history.log.roll(timestamp_ms=history.now_ms)
    for _ in range(3):
        history.log.cleaned_offset = 0
        history.log.config = replace(CONFIG, delete_retention_ms=0)
        assert clean_log(history.log, timestamp_ms=history.now_ms) is not None
        history.now_ms += 1_000
    batches = read_all(history.log)
    records = [record for batch in batches if not batch.is_control for record in batch.records()]
    assert len(records) == len({record.key for record in records}) == len(history.expected())
    assert all(record.value is not None for record in records)
    kept = REMEMBERED_BATCHES * len(TRANSACTIONAL)
    assert sum(batch.is_control for batch in batches) <= kept + 1, "markers of the producers' last batches stay"
    assert committed(history.log, history.log.log_end_offset) == history.expected()
