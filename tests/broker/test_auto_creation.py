"""Which topics a broker creates when a client names them, and with which settings."""

from __future__ import annotations

import pytest

from kbroker.broker.auto_creation import auto_creation_request, may_create
from kbroker.config import Settings


def test_auto_creation_uses_defaults_and_internal_topic_settings() -> None:
    settings = Settings.load(overrides=["offsets.topic.num.partitions=7", "offsets.topic.segment.bytes=1000"])
    plain, offsets = auto_creation_request(["a", "__consumer_offsets", "a"], settings).topics
    assert (plain.name, plain.num_partitions, plain.replication_factor, plain.configs) == ("a", -1, -1, [])
    assert (offsets.name, offsets.num_partitions, offsets.replication_factor) == ("__consumer_offsets", 7, 1)
    assert {config.name: config.value for config in offsets.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "1000",
    }


@pytest.mark.parametrize(
    ("name", "enabled", "expected"),
    [("a", True, True), ("a", False, False), ("bad name", True, False), ("__cluster_metadata", True, False)],
)
def test_only_legal_names_are_auto_created(name: str, *, enabled: bool, expected: bool) -> None:
    settings = Settings.load(overrides=[f"auto.create.topics.enable={str(enabled).lower()}"])
    assert may_create(name, settings) is expected
