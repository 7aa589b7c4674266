"""A tiered topic on three brokers under kills, on a directory and on MinIO; `make soak` has more kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.cluster.storm import LIGHT
from compat.cluster.tier_storm import judge_bytes, tier_storm
from compat.minio import binary
from compat.torture.load import Recorder
from wire.record_batch import Record, build_batch


@pytest.mark.parametrize("kind", ["directory", "minio"])
def test_m9_a_tiered_topic_survives_kills_of_its_leaders(tmp_path: Path, kind: str) -> None:
    """K1, K2, K3, K4 and K9: nothing is lost or doubled, the tier has the local bytes, and no object is an orphan."""
    if kind == "minio":
        binary()
    assert tier_storm(tmp_path, kind, 3, Recorder(), load=LIGHT) == []


def log(*offsets: int, text: bytes = b"") -> bytes:
    return b"".join(build_batch([Record(value=text)], base_offset=offset) for offset in offsets)


@pytest.mark.parametrize(
    ("remote", "local", "found"),
    [
        ([log(0, 1), log(1, 2)], [log(2, 3), log(1, 2, 3)], []),
        ([log(0, 1), log(3)], [log(0, 1, 2, 3)], ["the tier has no batch at offset 2; the next one has 3"]),
        ([log(1), log(2)], [log(0, 1, 2)], ["the tier has no batch at offset 0; the next one has 1"]),
        ([log(0), log(1)], [log(1, 3), log(1, 2, 3)], ["log 1 has no batch at offset 2; the next one has 3"]),
        ([log(0), log(1)], [log(3), log(1, 2, 3)], ["log 1 has no batch at offset 2; the next one has 3"]),
        ([log(0), log(1)], [log(1, 2), log(1), log(2, text=b"x")], ["log 3 has another batch at offset 2"]),
    ],
)
def test_a_gap_of_one_log_is_found(remote: list[bytes], local: list[bytes], found: list[str]) -> None:
    """Also if another log, or the tier, has the records."""
    assert [one.text for one in judge_bytes(0, remote, local)] == found
