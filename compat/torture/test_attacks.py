"""The attacks of `make soak ARGS=--attack`, reduced: memory stays bounded, and the bystander is served.

The soak judges the bystander's waits on a quiet machine; these tests do not.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from compat.torture import attack_arrays, attack_connections, attack_logins, attack_retention, bystander


@pytest.mark.long
def test_full_arrays_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_arrays, "REQUEST_BYTES", 40_000)
    monkeypatch.setattr(attack_arrays, "MAX_ELEMENTS", 3_000)
    monkeypatch.setattr(attack_arrays, "PARTITIONS", 500)
    monkeypatch.setattr(attack_arrays, "CLIENTS", 20)
    monkeypatch.setattr(attack_arrays, "ROUNDS", 1)
    report = bystander.run(attack_arrays.attack, seed=1)
    assert report.broken(with_timing=False) == []


def test_w9_w10_half_open_connections_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_connections, "CONNECTIONS", 400)
    monkeypatch.setattr(attack_connections, "ROUNDS", 1)
    report = bystander.run(attack_connections.attack, seed=1)
    assert report.broken(with_timing=False) == []


@pytest.mark.long
def test_x1_x4_x6_strangers_at_a_secured_listener_get_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in {"HALF_OPEN": 200, "SLOW": 10, "LARGE": 4, "ROUNDS": 1, "LOGINS": 3}.items():
        monkeypatch.setattr(attack_logins, name, count)
    settings = {**attack_logins.SETTINGS, "kbroker.max.unauthenticated.connections": "100"}
    report = bystander.run(attack_logins.attack, seed=1, settings=settings, guests=attack_logins.GUESTS)
    assert report.broken(with_timing=False) == []


def test_retention_of_many_segments_does_not_block_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack_retention, "SEGMENTS", 200)
    report = bystander.run(attack_retention.attack, seed=1, settings=attack_retention.SETTINGS)
    assert report.broken(with_timing=False) == []


@pytest.mark.usefixtures("kafka_libraries")
def test_readers_frames_and_bombs_stay_within_300_mib() -> None:
    command = [sys.executable, "-m", "compat.torture.attack_memory", "--seconds", "5", "--longest-ms", "600000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
