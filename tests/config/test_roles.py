"""Roles of a node: what each role needs, and what it does not allow."""

from __future__ import annotations

import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.quorum import ControllerAddress, quorum_of

BROKER = (
    "process.roles=broker",
    "node.id=1",
    "listeners=PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names=CONTROLLER",
    "controller.quorum.voters=100@127.0.0.1:9093,101@[::1]:9094",
)
CONTROLLER = (
    "process.roles=controller",
    "node.id=100",
    "listeners=CONTROLLER://127.0.0.1:9093",
    "controller.listener.names=CONTROLLER",
    "controller.quorum.voters=100@127.0.0.1:9093",
)
COMBINED = (
    "process.roles=broker,controller",
    "listeners=PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners=PLAINTEXT://a:9092",
    "controller.listener.names=CONTROLLER",
    "controller.quorum.bootstrap.servers=localhost:9093",
)


def load(*lines: str) -> Settings:
    """The settings of a file; a later line replaces an earlier one of the same key."""
    return Settings.load("\n".join(lines).encode())


def without(lines: tuple[str, ...], key: str) -> tuple[str, ...]:
    return tuple(line for line in lines if not line.startswith(f"{key}="))


def test_a_broker_knows_the_controllers_and_their_listener() -> None:
    settings = load(*BROKER, "controller.quorum.bootstrap.servers=c:9095")
    assert quorum_of(settings.server, settings.listeners) == (
        ControllerAddress("127.0.0.1", 9093, 100),
        ControllerAddress("::1", 9094, 101),
        ControllerAddress("c", 9095),
    )
    assert settings.listeners.controller_name == "CONTROLLER"
    assert (settings.server.is_broker, settings.server.is_controller) == (True, False)
    assert [str(one) for one in settings.listeners.bound] == ["PLAINTEXT://127.0.0.1:9092"]


def test_a_controller_opens_only_controller_listeners() -> None:
    found = load(*CONTROLLER).listeners
    assert (found.bound, found.advertised, found.inter_broker_name) == ((), (), None)
    assert [str(one) for one in found.controllers] == ["CONTROLLER://127.0.0.1:9093"]
    assert found.advertised_controllers == found.controllers


def test_a_combined_node_advertises_its_controller_listener() -> None:
    found = load(*COMBINED).listeners
    assert [str(one) for one in found.bound] == ["PLAINTEXT://:9092"]
    assert [str(one) for one in found.advertised] == ["PLAINTEXT://a:9092"]
    assert [str(one) for one in found.advertised_controllers] == ["CONTROLLER://:9093"]
    named = load(*COMBINED, "advertised.listeners=PLAINTEXT://a:9092,CONTROLLER://b:9093").listeners
    assert [str(one) for one in named.advertised_controllers] == ["CONTROLLER://b:9093"]


@pytest.mark.parametrize("port", [9093, 19093])
def test_a_controller_may_name_its_bound_or_its_advertised_port(port: int) -> None:
    lines = ("advertised.listeners=PLAINTEXT://a:9092,CONTROLLER://b:19093",)
    settings = load(*COMBINED, *lines, f"controller.quorum.bootstrap.servers=localhost:{port}")
    assert quorum_of(settings.server, settings.listeners) == (ControllerAddress("localhost", port),)


def test_a_broker_of_several_has_kafkas_defaults_for_internal_topics() -> None:
    assert load(*BROKER).value("offsets.topic.replication.factor") == 3
    assert load(*COMBINED).value("offsets.topic.replication.factor") == 1
    assert load(*BROKER, "offsets.topic.replication.factor=2").value("offsets.topic.replication.factor") == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (without(BROKER, "controller.listener.names"), "needs the name of the controllers' listener"),
        (without(BROKER, "controller.quorum.voters"), "set controller.quorum.bootstrap.servers to host:port"),
        ((*BROKER, "node.id=100"), "node 100 is a controller; a node with process.roles=broker needs another node.id"),
        (
            (*BROKER, "listeners=PLAINTEXT://:9092,CONTROLLER://:9093"),
            "opens no controller listener; remove CONTROLLER://:9093 from listeners",
        ),
        ((*BROKER, "controller.quorum.voters=127.0.0.1:9093"), "'127.0.0.1:9093' is not of the form id@host:port"),
        ((*BROKER, "controller.quorum.voters=1@a:70000"), "is not of the form id@host:port"),
        ((*BROKER, "controller.quorum.bootstrap.servers=1@a:1"), "'1@a:1' is not of the form host:port"),
        (
            (*CONTROLLER, "listeners=CONTROLLER://:9093,PLAINTEXT://:9092"),
            "add PLAINTEXT to controller.listener.names, or remove it from listeners",
        ),
        (
            (*CONTROLLER, "controller.quorum.voters=100@a:1,101@b:1"),
            "101@b is not this node (100); a kbroker controller",
        ),
        (
            (*COMBINED, "controller.quorum.bootstrap.servers=a:9093,b:9093"),
            "for several controllers run Apache Kafka's",
        ),
    ],
)
def test_settings_that_a_role_does_not_allow_are_refused(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*lines)
    assert message in str(caught.value)
