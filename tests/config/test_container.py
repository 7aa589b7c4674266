"""A container's environment: listeners, cluster id and log level."""

from __future__ import annotations

import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.container import DEFAULT_CLUSTER_ID, read_container
from kbroker.config.listeners import Listener


def load(environment: dict[str, str], file: bytes | None = None) -> Settings:
    container = read_container(environment)
    return Settings.load(file, environment=container.variables, defaults={"listeners": "PLAINTEXT://:9092"})


@pytest.mark.parametrize(
    ("advertised", "listeners"),
    [
        ("PLAINTEXT://broker.example:19092", "PLAINTEXT://0.0.0.0:19092"),
        ("A://one:1,B://two.example:2", "A://0.0.0.0:1,B://0.0.0.0:2"),
        ("A://[fe80::1]:1,B://:2", "A://0.0.0.0:1,B://0.0.0.0:2"),
    ],
)
def test_listeners_follow_from_the_advertised_ones(advertised: str, listeners: str) -> None:
    for given in ({}, {"KAFKA_LISTENERS": ""}):
        container = read_container({"KAFKA_ADVERTISED_LISTENERS": advertised, **given})
        assert container.variables["KAFKA_LISTENERS"] == listeners


def test_given_listeners_are_kept() -> None:
    given = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://a:1", "KAFKA_LISTENERS": "PLAINTEXT://:2"}
    assert read_container(given).variables == given


def test_default_listens_on_every_interface_and_advertises_localhost() -> None:
    listeners = load({"PATH": "/bin"}).listeners
    assert listeners.bound == (Listener("PLAINTEXT", None, 9092),)
    assert listeners.advertised == (Listener("PLAINTEXT", None, 9092),)


def test_environment_overrides_file_and_keeps_defaults() -> None:
    file = b"num.partitions=3\nlog.retention.ms=1\n"
    settings = load({"KAFKA_NUM_PARTITIONS": "5"}, file)
    assert (settings.log.num_partitions, settings.value("log.retention.ms")) == (5, 1)
    assert settings.value("offsets.topic.replication.factor") == 1


def test_the_three_listeners_of_testcontainers_are_accepted() -> None:
    settings = load(
        {
            "KAFKA_LISTENERS": "PLAINTEXT://:9092,BROKER://:9093,CONTROLLER://:9094",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
            "KAFKA_NODE_ID": "1",
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:32768,BROKER://6f2c1e:9093",
            "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
        }
    )
    assert [one.name for one in settings.listeners.bound] == ["PLAINTEXT", "BROKER"]
    assert [one.name for one in settings.listeners.controllers] == ["CONTROLLER"]
    assert settings.listeners.inter_broker_name == "BROKER"
    assert not settings.warnings


@pytest.mark.parametrize(
    ("level", "ours"),
    [("TRACE", "debug"), ("debug", "debug"), ("INFO", "info"), ("WARN", "warning"), ("FATAL", "error"), ("", "info")],
)
def test_log4j_levels_are_mapped_to_our_levels(level: str, ours: str) -> None:
    container = read_container({"KAFKA_LOG4J_ROOT_LOGLEVEL": level})
    assert (container.log_level, container.warnings) == (ours, ())


def test_an_unknown_log_level_causes_a_warning() -> None:
    container = read_container({"KAFKA_LOG4J_ROOT_LOGLEVEL": "LOUD", "KAFKA_LOG4J_LOGGERS": "kafka=WARN"})
    assert container.log_level == "info"
    assert len(container.warnings) == 2


@pytest.mark.parametrize("given", ["4L6g3nShT-eMCtK--X86sw", "MDEyMzQ1Njc4OTAxMjM0NQ=="])
def test_a_cluster_id_is_used_unchanged(given: str) -> None:
    assert read_container({"CLUSTER_ID": given}).cluster_id == given


def test_the_default_cluster_id_is_that_of_kafkas_image() -> None:
    assert read_container({"CLUSTER_ID": ""}).cluster_id == DEFAULT_CLUSTER_ID == "5L6g3nShT-eMCtK--X86sw"


@pytest.mark.parametrize("given", ["two words", "line\nline", "\u00e9", "x" * 101])
def test_a_cluster_id_that_could_break_a_file_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="CLUSTER_ID"):
        read_container({"CLUSTER_ID": given})
