"""`kbroker tier lease` on a running broker."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run


def listed(run: Run, broker: str, topic: str) -> list[tuple[str, dict[str, int]]]:
    done = run("tier", "lease", "-b", broker, "-t", topic, "--list", "--format", "json")
    assert done.code == 0
    return [(each["id"], each["offsets"]) for each in map(json.loads, done.lines)]


def test_a_lease_is_taken_renewed_and_released(run: Run, broker: str) -> None:
    topic = ("-b", broker, "--topic", "leased")
    assert run("topic", "--create", *topic, "--partitions", "3").code == 0
    first = run("tier", "lease", *topic, "--ttl-ms", "60000").out.strip()
    second = run("tier", "lease", "-b", broker, "-t", "leased:1,2", "-o", "0").out.strip()
    assert dict(listed(run, broker, "leased")) == {first: {"0": 0, "1": 0, "2": 0}, second: {"1": 0, "2": 0}}
    renewed = json.loads(run("tier", "lease", *topic, "--renew", first, "--ttl-ms", "90000", "--format", "json").out)
    assert renewed["expires_ms"] - renewed["created_ms"] >= 90_000
    assert run("tier", "lease", *topic, "--release", second).code == 0
    assert [each for each, _ in listed(run, broker, "leased")] == [first]
    assert run("tier", "lease", *topic, "--release", second).code == 1


def test_taking_a_lease_removes_expired_ones(run: Run, broker: str) -> None:
    topic = ("-b", broker, "--topic", "expiring")
    assert run("topic", "--create", *topic).code == 0
    assert run("tier", "lease", *topic, "--ttl-ms", "1").code == 0
    last = run("tier", "lease", *topic, "--ttl-ms", "60000").out.strip()
    assert [each for each, _ in listed(run, broker, "expiring")] == [last]


@pytest.mark.parametrize("words", [("--offset", "-5"), ("--list", "--release", "x")])
def test_a_wrong_flag_is_a_usage_error(run: Run, broker: str, words: tuple[str, ...]) -> None:
    assert run("tier", "lease", "-b", broker, "-t", "any", *words).code in (1, 2)
