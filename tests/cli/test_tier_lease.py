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


def test_a_lease_is_never_longer_than_brokers_allow(run: Run, broker: str) -> None:
    topic = ("-b", broker, "--topic", "held")
    assert run("topic", "--create", *topic).code == 0
    done = run("tier", "lease", *topic, "--ttl-ms", str(3 * 86_400_000), "--format", "json")
    (taken,) = map(json.loads, done.lines)
    assert taken["expires_ms"] - taken["created_ms"] <= 86_400_000
    assert "kbroker.retention.lease.max.ms" in done.err
    # One that was taken two days ago.
    created_ms = taken["created_ms"] - 2 * 86_400_000
    old = ("-b", broker, "--topic", "old")
    lease = f"kbroker.retention.leases=old;{created_ms};{created_ms + 1000};0:0"
    assert run("topic", "--create", *old, "--config", lease).code == 0
    renewed = run("tier", "lease", *old, "--renew", "old")
    assert renewed.code == 1
    assert "the lease is over" in renewed.err


def test_a_partition_that_does_not_exist_is_named(run: Run, broker: str) -> None:
    assert run("topic", "--create", "-b", broker, "--topic", "few").code == 0
    done = run("tier", "lease", "-b", broker, "-t", "few:0,7")
    assert done.code == 1
    assert "topic 'few' has no partition 7" in done.err


@pytest.mark.parametrize("words", [("--offset", "-5"), ("--list", "--release", "x")])
def test_a_wrong_flag_is_a_usage_error(run: Run, broker: str, words: tuple[str, ...]) -> None:
    assert run("tier", "lease", "-b", broker, "-t", "any", *words).code in (1, 2)
