"""Leases: what they hold against retention, locally and in the tier, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.config.leases import MAX_AHEAD_MS, Lease, fault, held_from
from kbroker.storage.log_config import LogConfig
from tests.storage.test_retention import fill, names, open_log

DAY_MS = 86_400_000


def entries(*leases: Lease) -> frozenset[str]:
    return frozenset(map(str, leases))


def test_a_lease_survives_its_text() -> None:
    lease = Lease("a-b_c", 1, 2, {3: 4, 0: 5})
    assert Lease.parse(str(lease)) == lease


@pytest.mark.parametrize(
    "text", ["", "a", "a;1;2", "a;1;2;x:1", "a;-1;2;0:1", "a b;1;2;0:1", "a;1;2;0:1;", "é;1;2;0:1"]
)
def test_other_texts_are_refused(text: str) -> None:
    assert fault([text])
    with pytest.raises(ValueError, match="not a lease"):
        Lease.parse(text)


def test_the_earliest_offset_of_all_valid_leases_counts() -> None:
    held = entries(Lease("a", 0, 100, {0: 7}), Lease("b", 0, 50, {0: 3, 1: 1}))
    assert held_from(held, 0, 10, max_ms=DAY_MS) == 3
    assert held_from(held, 0, 50, max_ms=DAY_MS) == 7  # the other one has expired
    assert held_from(held, 1, 50, max_ms=DAY_MS) is None
    assert held_from(held, 2, 10, max_ms=DAY_MS) is None


def test_no_renewal_extends_a_lease_beyond_the_limit() -> None:
    held = entries(Lease("a", 0, 10 * DAY_MS, {0: 7}))
    assert held_from(held, 0, DAY_MS - 1, max_ms=DAY_MS) == 7
    assert held_from(held, 0, DAY_MS, max_ms=DAY_MS) is None


def test_a_lease_from_the_future_holds_no_longer() -> None:
    held = entries(Lease("a", DAY_MS, 10 * DAY_MS, {0: 7}))
    assert held_from(held, 0, DAY_MS - MAX_AHEAD_MS - 1, max_ms=DAY_MS) is None
    assert held_from(held, 0, DAY_MS - MAX_AHEAD_MS, max_ms=DAY_MS) == 7, "clocks differ a little"
    assert held_from(held, 0, 2 * DAY_MS, max_ms=DAY_MS) is None


def test_retention_keeps_what_is_leased_and_what_follows(tmp_path: Path) -> None:
    lease = Lease("a", 0, 1_000, {0: 30})
    config = LogConfig(segment_bytes=2_000, retention_bytes=0, kbroker_retention_leases=entries(lease))
    log = open_log(tmp_path, config=config)
    fill(log, 100)
    bases = names(tmp_path, ".log")
    kept = max(base for base in bases if base <= 30)
    plan = log.plan_retention(high_watermark=100, timestamp_ms=999)
    assert plan.doomed == tuple(base for base in bases if base < kept)
    assert not plan.rolls
    after = log.plan_retention(high_watermark=100, timestamp_ms=1_000)
    assert set(after.doomed) == set(bases)
    log.raise_log_start_offset(80)  # DeleteRecords is not held back
    assert max(log.plan_retention(high_watermark=100, timestamp_ms=999).doomed) > kept
