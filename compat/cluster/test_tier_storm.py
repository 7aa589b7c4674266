"""A tiered topic on three brokers under kills, on a directory and on MinIO; `make soak` has more kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.cluster.tier_storm import tier_storm
from compat.minio import binary
from compat.torture.load import Recorder


@pytest.mark.parametrize("kind", ["directory", "minio"])
def test_m9_a_tiered_topic_survives_kills_of_its_leaders(tmp_path: Path, kind: str) -> None:
    """K1, K2, K3, K4 and K9: nothing is lost or doubled, the tier has the local bytes, and no object is an orphan."""
    if kind == "minio":
        binary()
    recorder = Recorder()
    assert tier_storm(tmp_path, kind, 3, recorder) == []
    assert recorder.acknowledged() > 1_000
