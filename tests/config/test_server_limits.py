import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.server import connections_by_address


def test_exceptions_for_addresses_are_read() -> None:
    found = connections_by_address("127.0.0.1:5, 10.0.0.1:7,::1:9,[fe80::2]:3")
    assert found == {"127.0.0.1": 5, "10.0.0.1": 7, "::1": 9, "fe80::2": 3}
    assert connections_by_address("") == {}


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1:many", ":5", "a:1,b"])
def test_an_exception_that_is_not_address_and_count_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        Settings.load(overrides=[f"max.connections.per.ip.overrides={text}"])


def test_a_limit_of_zero_for_each_address_needs_exceptions() -> None:
    with pytest.raises(ConfigError, match=r"only with max\.connections\.per\.ip\.overrides"):
        Settings.load(overrides=["max.connections.per.ip=0"])
    loaded = Settings.load(overrides=["max.connections.per.ip=0", "max.connections.per.ip.overrides=127.0.0.1:5"])
    assert loaded.server.max_connections_per_ip == 0
