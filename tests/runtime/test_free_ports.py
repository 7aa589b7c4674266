"""Reserved ports, within one process and between processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kbroker.runtime import free_ports as reserving
from kbroker.runtime.free_ports import LOOPBACK, MOST_HELD, free_ports

OTHER = "from kbroker.runtime.free_ports import free_ports; print(*free_ports(50), flush=True); input()"


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Give back what a test reserved."""
    yield
    while reserving._held:
        os.close(reserving._held.popleft())


def test_a_reserved_port_is_free_for_a_server_and_for_no_other_process() -> None:
    other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    theirs = [int(word) for word in other.stdout.readline().split()]
    assert len(set(theirs)) == 50
    assert [reserving._reserve(port) for port in theirs] == [None] * 50
    for port in theirs:
        socket.create_server((LOOPBACK, port)).close()
    other.communicate("\n")
    held = [reserving._reserve(port) for port in theirs]
    assert None not in held, "the system released them when the process ended"
    reserving._held.extend(one for one in held if one is not None)


def test_a_port_with_a_server_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setattr(reserving, "RANGE", range(first, second + 1, second - first))
    with pytest.raises(OSError, match="fewer than 1 ports"):
        free_ports(1)
    while reserving._held:
        os.close(reserving._held.popleft())
    with socket.create_server((LOOPBACK, first)):
        assert free_ports(1) == [second]


def test_the_oldest_reservations_are_given_back() -> None:
    oldest = free_ports(1)[0]
    free_ports(MOST_HELD - 1)
    assert reserving._reserve(oldest) is None
    free_ports(1)
    again = reserving._reserve(oldest)
    assert again is not None
    os.close(again)
