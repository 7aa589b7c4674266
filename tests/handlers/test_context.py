from __future__ import annotations

import pytest

from kbroker.handlers import Context
from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.testing.net import stream_pair


def context() -> Context:
    _client, server = stream_pair()
    return Context(server, listener="PLAINTEXT", served={})


def test_the_caller_has_the_principal_of_the_connection() -> None:
    of_a_request = context()
    assert of_a_request.caller.principal is ANONYMOUS
    of_a_request.principal = alice = Principal("User", "alice")
    assert of_a_request.caller.principal is alice


@pytest.mark.parametrize(
    ("peer_host", "text"),
    [("127.0.0.1", "/127.0.0.1"), ("::1", "/0:0:0:0:0:0:0:1"), ("fe80::1%4", "/fe80:0:0:0:0:0:0:1%4")],
)
def test_the_address_of_a_caller_is_in_javas_format(peer_host: str, text: str) -> None:
    of_a_request = context()
    of_a_request.stream.peer_host = peer_host
    assert of_a_request.caller.client_host == text
