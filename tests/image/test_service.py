"""The systemd unit in docs/, and what a broker tells systemd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess

UNIT = Path(__file__).parents[2] / "docs" / "kbroker.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/kbroker/bin/kbroker", sys.executable))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_units_command_starts_a_broker_that_reports_when_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = (line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    assert line.partition("=")[2].split()[1:4:2] == ["serve", "/etc/kbroker/server.properties"]
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://127.0.0.1:0\n")
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(20)
        monkeypatch.setitem(os.environ, "NOTIFY_SOCKET", str(address))
        with BrokerProcess(tmp_path / "data", "--config", str(file), listen=None) as broker:
            assert systemd.recv(64) == b"READY=1"
            assert broker.stop()[0] == 0


def test_a_missing_notify_socket_does_not_stop_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "NOTIFY_SOCKET", str(tmp_path / "gone"))
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.stop()[0] == 0
