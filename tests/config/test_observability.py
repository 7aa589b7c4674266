"""The address of the HTTP pages."""

from __future__ import annotations

import pytest

from kbroker.config import ConfigError, Settings
from kbroker.config.observability import http_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9644", ("127.0.0.1", 9644)),
        (":9644", ("127.0.0.1", 9644)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:9644", ("::1", 9644)),
        ("pages.example:1", ("pages.example", 1)),
    ],
)
def test_an_address_without_a_host_is_loopback(text: str, address: tuple[str, int]) -> None:
    assert http_address(text) == address


@pytest.mark.parametrize(
    "text", ["9644", "host", "host:", "host:http", "host:-1", "host:65536", "::1:9644", "host:\u0661"]
)
def test_an_invalid_http_address_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kbroker\.http\.listener"):
        Settings.load(overrides=[f"kbroker.http.listener={text}"])


def test_there_is_no_http_listener_by_default() -> None:
    assert Settings.load().observability.kbroker_http_listener is None
