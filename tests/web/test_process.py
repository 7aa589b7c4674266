"""The pages of a broker process, over sockets."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest

from kbroker.cli import CommandFailed
from kbroker.cli._tier_why import broker_state
from kbroker.runtime.free_ports import free_ports
from tests.broker_process import BrokerProcess, serve_and_fail


def test_serve_http_serves_pages_on_loopback_until_the_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, token = free_ports(1)[0], "a-token-of-the-environment"
    monkeypatch.setenv("KBROKER_HTTP_TOKEN", token)
    with BrokerProcess(tmp_path / "data", "--http", f":{port}") as broker:
        pages = HTTPConnection("127.0.0.1", port, timeout=20)
        pages.request("GET", "/metrics")
        response = pages.getresponse()
        assert (response.status, b"token" in response.read()) == (401, True)
        assert broker_state(f"http://127.0.0.1:{port}/") == {}
        monkeypatch.delenv("KBROKER_HTTP_TOKEN")
        with pytest.raises(CommandFailed, match="the pages need a token: set KBROKER_HTTP_TOKEN"):
            broker_state(f"127.0.0.1:{port}")
        pages.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        assert b"\nprocess_resident_memory_bytes " in pages.getresponse().read()
        pages.request("GET", "/health")
        assert json.load(pages.getresponse())["status"] == "ready"
        code, seconds = broker.stop()
        assert code == 0
        assert seconds < 5
        errors = broker.stop_and_read_errors()
        assert f"serving pages url=http://127.0.0.1:{port}/" in errors
        assert "other machines" not in errors
        assert token not in errors
        pages.close()


def test_a_port_in_use_gives_one_clear_error_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, errors = serve_and_fail(tmp_path / "data", "--http", address)
    assert code == 1
    assert f"cannot listen on {address}" in errors
    assert "Traceback" not in errors


def test_an_invalid_address_gives_one_clear_error_line(tmp_path: Path) -> None:
    code, errors = serve_and_fail(tmp_path / "data", "--http", "nonsense")
    assert code == 1
    assert "kbroker.http.listener" in errors
    assert "Traceback" not in errors
