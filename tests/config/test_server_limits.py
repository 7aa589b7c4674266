import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.server import connections_by_address


def test_connection_limits_of_addresses_are_parsed() -> None:
    found = connections_by_address("127.0.0.1:5, 10.0.0.1:7,::1:9,[fe80::2]:3")
    assert found == {"127.0.0.1": 5, "10.0.0.1": 7, "::1": 9, "fe80::2": 3}
    assert connections_by_address("") == {}


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1:many", ":5", "a:1,b"])
def test_the_error_for_an_invalid_connection_limit_names_it(text: str) -> None:
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        Settings.load(overrides=[f"max.connections.per.ip.overrides={text}"])


def test_a_limit_of_zero_per_address_requires_overrides() -> None:
    with pytest.raises(ConfigError, match=r"only if max\.connections\.per\.ip\.overrides"):
        Settings.load(overrides=["max.connections.per.ip=0"])
    loaded = Settings.load(overrides=["max.connections.per.ip=0", "max.connections.per.ip.overrides=127.0.0.1:5"])
    assert loaded.server.max_connections_per_ip == 0


def test_a_start_without_any_connection_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max\.connections must be at least 1"):
        Settings.load(overrides=["max.connections=0"])


def test_addresses_of_overrides_have_the_form_of_peer_addresses() -> None:
    assert connections_by_address("[0:0:0:0:0:0:0:1]:5,10.0.0.1:6,Host:7") == {"::1": 5, "10.0.0.1": 6, "Host": 7}


def test_a_stored_setting_that_admits_no_connection_is_ignored() -> None:
    loaded = Settings.load().with_dynamic({"max.connections": "0"}, {})
    assert loaded.server.max_connections > 0
    assert "max.connections" in loaded.warnings[-1]
