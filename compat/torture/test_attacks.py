"""The attacks of `make soak ARGS=--attack`, reduced: memory stays bounded, and everybody is served.

How long the bystander waits is judged by the soak on a quiet machine, and not here.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from compat.torture import attack_arrays, attack_retention, bystander


def test_arrays_that_are_full_take_little_memory_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_arrays, "REQUEST_BYTES", 40_000)
    monkeypatch.setattr(attack_arrays, "MAX_ELEMENTS", 3_000)
    monkeypatch.setattr(attack_arrays, "PARTITIONS", 500)
    monkeypatch.setattr(attack_arrays, "CLIENTS", 20)
    monkeypatch.setattr(attack_arrays, "ROUNDS", 1)
    report = bystander.run(attack_arrays.attack, seed=1)
    assert report.broken(with_timing=False) == []


def test_retention_of_many_segments_lets_their_partition_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_retention, "SEGMENTS", 200)
    report = bystander.run(attack_retention.attack, seed=1, settings=attack_retention.SETTINGS)
    assert report.broken(with_timing=False) == []


def test_readers_frames_and_bombs_at_once_stay_within_300_mib() -> None:
    command = [sys.executable, "-m", "compat.torture.attack_memory", "--seconds", "5", "--longest-ms", "600000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
