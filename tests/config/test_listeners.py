"""Listeners and advertised listeners."""

from __future__ import annotations

import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.listeners import Listener, Listeners, counted_address


def listeners(*lines: str) -> Listeners:
    return Settings.load("\n".join(lines).encode()).listeners


def test_the_default_is_every_interface_on_port_9092() -> None:
    assert listeners() == Listeners(
        bound=(Listener("PLAINTEXT", None, 9092),),
        advertised=(Listener("PLAINTEXT", None, 9092),),
        controllers=(),
        advertised_controllers=(),
        inter_broker_name="PLAINTEXT",
        controller_name=None,
        protocols={"PLAINTEXT": "PLAINTEXT"},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLAINTEXT://localhost:0", Listener("PLAINTEXT", "localhost", 0)),
        ("plaintext://10.0.0.1:9092", Listener("PLAINTEXT", "10.0.0.1", 9092)),
        ("PLAINTEXT://[::1]:9092", Listener("PLAINTEXT", "::1", 9092)),
        ("PLAINTEXT://[fe80::1%eth0]:1", Listener("PLAINTEXT", "fe80::1%eth0", 1)),
    ],
)
def test_an_address_is_read(text: str, expected: Listener) -> None:
    assert listeners(f"listeners={text}").bound == (expected,)


def test_an_address_is_written_as_it_was_read() -> None:
    for text in ("PLAINTEXT://:9092", "PLAINTEXT://localhost:1", "PLAINTEXT://[::1]:9092"):
        assert str(listeners(f"listeners={text}").bound[0]) == text


def test_clients_get_the_advertised_address_not_the_bound_one() -> None:
    found = listeners(
        "listeners=IN://0.0.0.0:9092,OUT://0.0.0.0:9094",
        "advertised.listeners=IN://broker:9092,OUT://example.org:443",
        "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT",
        "inter.broker.listener.name=in",
    )
    assert [str(one) for one in found.bound] == ["IN://0.0.0.0:9092", "OUT://0.0.0.0:9094"]
    assert [str(one) for one in found.advertised] == ["IN://broker:9092", "OUT://example.org:443"]
    assert found.inter_broker_name == "IN"


def test_two_listeners_may_share_a_port_on_different_hosts() -> None:
    map_ = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"
    assert len(listeners("listeners=A://127.0.0.1:9092,B://[::1]:9092", map_).bound) == 2
    assert len(listeners("listeners=A://:0,B://:0", map_).bound) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["listeners=localhost:9092"], "not of the form NAME://host:port"),
        (["listeners=PLAINTEXT://localhost"], "not of the form"),
        (["listeners=PLAINTEXT://localhost:65536"], "outside 0 to 65535"),
        (["listeners=PLAINTEXT://localhost:-1"], "outside 0 to 65535"),
        (["listeners="], "at least one"),
        (["listeners=PLAINTEXT://:1,PLAINTEXT://:2"], "PLAINTEXT occurs twice"),
        (["listeners=MINE://:9093"], "the listener MINE has no protocol"),
        (["listeners=PLAINTEXT://:1,C://:1", "controller.listener.names=C"], "are on the same port"),
        (
            ["listeners=C://:1", "controller.listener.names=C"],
            "at least one listener must not be in controller.listener.names",
        ),
        (["advertised.listeners=OTHER://a:1"], "OTHER is not among the names in listeners"),
        (["advertised.listeners=PLAINTEXT://0.0.0.0:1"], "clients cannot connect"),
        (["inter.broker.listener.name=X"], "X is not among the advertised listeners"),
        (["listener.security.protocol.map=PLAINTEXT"], "is not NAME:PROTOCOL"),
        (["listener.security.protocol.map=PLAINTEXT:QUIC"], "is not NAME:PROTOCOL"),
    ],
)
def test_invalid_listeners_are_refused(lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listeners(*lines)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("unknown", "unknown"),
        ("2400:cb00:1:2:3:4:5:6", "2400:cb00:1:2::/64"),
        ("2400:cb00:1:2::", "2400:cb00:1:2::/64"),
        ("2400:cb00:1:3::", "2400:cb00:1:3::/64"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fd00:10:244::7", "fd00:10:244::7"),
        ("64:ff9b::c000:201", "64:ff9b::c000:201"),
    ],
)
def test_limits_count_a_network_of_ipv6_as_one_client(host: str, counted: str) -> None:
    assert counted_address(host) == counted
