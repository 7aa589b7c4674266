"""DescribeConfigs returns what Apache Kafka 4.3.1 returned in the same state, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.config import Settings
from kbroker.config.describe import (
    ConfigSource,
    describe_broker,
    describe_cluster_defaults,
    describe_topic,
)
from kbroker.config.values import Kind
from tests.config.oracle import described, row, the_recorded_node
from wire.messages.describe_configs import DescribeConfigsResourceResult

# Kafka's newest metadata versions store this one for the whole cluster, which kbroker's does not.
ELIGIBLE_LEADERS = {"min.insync.replicas": "1"}

CLUSTER = {
    **ELIGIBLE_LEADERS,
    "log.retention.ms": "-1",
    "log.segment.bytes": "2097152",
    "num.io.threads": "9",
    "max.connections": "100",
    "max.connections.per.ip.overrides": "127.0.0.1:7",
    "log.flush.interval.ms": "100",
    "log.cleaner.threads": "2",
    "leader.replication.throttled.rate": "100",
    "background.threads": "12",
    "metric.reporters": "",
    "producer.id.expiration.ms": "5",
    "unclean.leader.election.enable": "true",
}
BROKER = {
    "log.retention.ms": "-1",
    "log.segment.bytes": "2097152",
    "num.io.threads": "9",
    "max.connections": "100",
    "max.connections.per.ip.overrides": "127.0.0.1:7",
    "log.flush.interval.ms": "100",
    "log.cleaner.threads": "2",
    "leader.replication.throttled.rate": "100",
    "background.threads": "12",
    "metric.reporters": "",
    "producer.id.expiration.ms": "5",
    "unclean.leader.election.enable": "true",
    "sasl.jaas.config": "secret",
    "listener.name.plaintext.ssl.keystore.location": "/x",
}
TUNED = {
    "retention.ms": "+5",
    "segment.bytes": " 2097152 ",
    "preallocate": "TRUE",
    "retention.bytes": "-5",
    "leader.replication.throttled.replicas": "0:1,1:2",
    "local.retention.ms": "99999999999999",
    "internal.segment.bytes": "1000",
    "min.compaction.lag.ms": "9223372036854775807",
}

# kbroker refuses these values or keys, so the rows cannot be equal.
NOT_COMPARED = {
    "some.unknown.key",
    "nosuch.key",
    "log.cleanup.policy",
    "cleanup.policy",
    "cordoned.log.dirs",
    "listener.name.plaintext.max.connections",
}


def compare(
    state: str,
    ours: list[DescribeConfigsResourceResult],
    *,
    other: Mapping[str, Any] | None = None,
    left_out: frozenset[str] = frozenset(),
) -> None:
    """Compare our entries with Kafka's; `other` maps keys that differ to the columns that differ."""
    theirs = {name: entry for name, entry in described(state).items() if name not in NOT_COMPARED | left_out}
    mine = {
        entry.name: row(entry)
        for entry in ours
        if not entry.name.startswith("kbroker.") and entry.name not in NOT_COMPARED | left_out
    }
    assert mine.keys() == theirs.keys()
    differing = {
        name: [column for column, one, other_ in zip("nvsrhty", mine[name], theirs[name], strict=True) if one != other_]
        for name in theirs
        if mine[name] != theirs[name]
    }
    assert differing == (other or {})


# n name, v value, s source, r read-only, h hidden, t type, y synonyms
BROKER_DIFFERENCES = {
    "controller.listener.names": ["y"],
    "node.id": ["y"],
    "process.roles": ["y"],
    "listeners": ["r"],
    "listener.security.protocol.map": ["r"],
    "log.dir": ["v", "y"],
}


@pytest.fixture(name="node")
def _node() -> Settings:
    return the_recorded_node().with_dynamic(ELIGIBLE_LEADERS, {})


def test_a_topic_is_described_as_kafka_describes_it(node: Settings) -> None:
    compare("topic plain", describe_topic(node, {}))
    compare("topic tuned", describe_topic(node, {"retention.ms": "1000"}))
    compare("topic tuned after alters", describe_topic(node, TUNED))


def test_a_topic_shows_dynamic_settings_of_the_brokers(node: Settings) -> None:
    compare("topic plain dynamic default", describe_topic(node.with_dynamic(CLUSTER, {}), {}))
    both = node.with_dynamic(CLUSTER, BROKER)
    compare("topic plain dynamic broker", describe_topic(both, {}))
    compare("topic tuned dynamic broker", describe_topic(both, TUNED))


def test_a_broker_is_described_as_kafka_describes_it(node: Settings) -> None:
    compare("broker 1", describe_broker(node), other=BROKER_DIFFERENCES)


def test_dynamic_settings_are_described_as_kafka_describes_them(node: Settings) -> None:
    # Kafka then shows the default of some static keys as their value, though what is set is what it uses.
    forgotten = {"log.retention.hours": ["v"], "log.flush.scheduler.interval.ms": ["v"]}
    # Omitted: a topic key that Kafka stored for brokers.
    stray = frozenset({"retention.ms"})
    differences = {**BROKER_DIFFERENCES, **forgotten}
    cluster = node.with_dynamic(CLUSTER, {})
    compare("broker 1 dynamic default", describe_broker(cluster), other=differences, left_out=stray)
    compare("broker default dynamic", describe_cluster_defaults(cluster), left_out=stray)
    both = node.with_dynamic(CLUSTER, BROKER)
    compare("broker 1 dynamic broker", describe_broker(both), other=differences, left_out=stray)


def test_keys_choose_and_none_or_empty_means_all() -> None:
    settings = Settings.load()
    assert [entry.name for entry in describe_topic(settings, {}, keys=["retention.ms", "nobodys"])] == ["retention.ms"]
    assert describe_topic(settings, {}, keys=[]) == describe_topic(settings, {})
    assert [entry.name for entry in describe_broker(settings, keys=["node.id"])] == ["node.id"]
    assert describe_cluster_defaults(settings.with_dynamic(CLUSTER, {}), keys=["node.id"]) == []


def test_every_key_has_documentation() -> None:
    for entry in describe_broker(Settings.load()):
        assert entry.documentation


def test_a_secret_is_not_shown_anywhere() -> None:
    settings = Settings.load(b"ssl.key.password=swordfish\nrsm.config.key=swordfish").with_dynamic(
        {}, {"sasl.jaas.config": "swordfish"}
    )
    entries = describe_broker(settings)
    assert "swordfish" not in repr(entries)
    hidden = {entry.name: entry for entry in entries if entry.is_sensitive}
    assert hidden["ssl.key.password"].config_source is ConfigSource.STATIC_BROKER_CONFIG
    assert hidden["rsm.config.key"].config_type is Kind.UNKNOWN
