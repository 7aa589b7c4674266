"""`kbroker tier` on Apache Kafka: output that uses only the protocol or Kafka's own files is the same for both
brokers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from compat.tiered.site import ONLY_THE_ACTIVE_ONE, TIERED, Records, Site, Sites


def tier(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kbroker", "tier", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def reported(*words: object) -> list[dict[str, Any]]:
    """The objects that a command prints, without the fields that differ between brokers."""
    done = tier(*words, "--format", "json")
    assert (done.returncode, done.stderr) == (0, ""), (words, done)
    chosen = {"topic_id", "segment_id", "event_timestamp_ms", "broker_id", "custom_metadata", "text", "due_ms"}
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [{name: value for name, value in each.items() if name not in chosen} for each in found]


@pytest.fixture(scope="module")
def topic(sites: Sites, new_topic_name: Callable[[str], str]) -> str:
    """Three segments only in the tier, and an active one that is only local."""
    name = sites.create(new_topic_name("commands"), TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(name, Records([0, 2, 4, 6], records=2, padding=400))
    sites.expect_remote(name, (0, 1), (2, 3), (4, 5))
    sites.expect_local(name, 6)
    return name


@pytest.mark.parametrize("words", [[], ["--all"], ["--offsets"]])
def test_segments_and_offsets_are_shown_alike(sites: Sites, topic: str, words: list[str]) -> None:
    def look(site: Site) -> list[dict[str, Any]]:
        by_protocol = reported("ls", "-b", site.address, "--topic", topic, *words)
        assert reported("ls", "--data-dir", site.broker.log_directory, "--topic", topic, *words) == by_protocol
        return by_protocol

    theirs, ours = map(look, sites.all)
    assert ours == theirs
    assert len(ours) == (1 if words == ["--offsets"] else 3)


def test_reasons_for_local_segments_are_shown_alike(sites: Sites, topic: str) -> None:
    system = ["--override", "remote.log.storage.system.enable=true"]
    theirs, ours = (
        reported("why", "--data-dir", site.broker.log_directory, "-t", topic, *system) for site in sites.all
    )
    assert ours == theirs
    assert [each["why"] for each in ours] == ["active"]


def test_copying_the_active_segment_fails_on_kafka(sites: Sites, topic: str) -> None:
    kafka, broker = sites.all
    refused = tier("flush", "-b", kafka.address, "--topic", topic)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("kbroker tier: only closed segments are copied, and this broker cannot close")
    if broker.name != kafka.name:
        assert tier("flush", "-b", broker.address, "--topic", topic).returncode == 0
