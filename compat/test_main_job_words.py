"""The exactly-once job of `python -m compat.main_job_words`, with a tenth of its lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compat.main_job_words import run
from compat.sites import brokers, kind_under_test


def test_a_real_log_is_split_into_words_exactly_once(tmp_path: Path) -> None:
    if os.environ.get("KBROKER_BOOTSTRAP_SERVERS"):
        pytest.skip("an external broker is not ours to kill")
    with brokers(kind_under_test(), 1, tmp_path) as site:
        result = run(site, tmp_path, count=10_000, transaction_version=2)
    assert result.good, result
