"""A pass of the cleaner keeps the last record of each key, and everything that readers and producers still need."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbroker.storage.log import Log
from tests.storage.cleaning import COMPACTED, clean_log, contents, final_map, put
from tests.storage.logs import open_log, read_all
from wire.compression import Codec


def filled(directory: Path, *, seed: int, batches: int = 60, keys: int = 12, codec: Codec = Codec.NONE) -> Log:
    """A log of random writes and tombstones in several segments."""
    drawn = random.Random(seed)
    log = open_log(directory, config=COMPACTED)
    for number in range(batches):
        records: list[tuple[str, str | None]] = [
            (
                f"key-{drawn.randrange(keys)}" + "x" * drawn.choice((0, 0, 0, 40)),
                None if drawn.random() < 0.2 else "v" * drawn.randrange(60),
            )
            for _ in range(drawn.choice((1, 3, 20)))
        ]
        put(log, records, timestamp_ms=1_000 + number, codec=codec)
    return log


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_ends_with_the_same_map(tmp_path: Path, seed: int, codec: Codec) -> None:
    log = filled(tmp_path, seed=seed, codec=codec)
    before, size, end = final_map(log), log.size, log.log_end_offset
    records = contents(log)
    finished = clean_log(log)
    assert finished is not None
    assert finished.end_offset == log.segments.active.base_offset
    assert final_map(log) == before
    assert log.size < size
    after = contents(log)
    assert set(after) <= set(records)
    cleaned = [key for offset, key, _ in after if offset < finished.end_offset]
    assert len(cleaned) == len(set(cleaned)), "a key has one record below the active segment"
    assert log.log_end_offset == end
    log.close()
    reopened = open_log(tmp_path, config=COMPACTED, clean_shutdown=True, recovery_point=end)
    assert contents(reopened) == after
    assert clean_log(reopened) is not None
    assert final_map(reopened) == before


def test_offsets_timestamps_and_bytes_of_kept_records_stay(tmp_path: Path) -> None:
    log = filled(tmp_path, seed=9)
    before = {record.offset: record for batch in read_all(log) for record in batch.records()}
    clean_log(log)
    for batch in read_all(log):
        for record in batch.records():
            assert record == before[record.offset]
        if batch.record_count and not batch.has_delete_horizon:
            assert batch.max_timestamp == max(record.timestamp for record in batch.records())
