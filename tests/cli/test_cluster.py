"""`kbroker cluster`: three brokers and a controller as processes of one command, and what `--status` says of them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.cluster import node_settings
from tests.cli.conftest import Run

READY = "kbroker cluster ready on "
PATIENCE_S = 60


class Command:
    """`kbroker cluster` as a process."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "kbroker", "cluster", "--data-dir", str(directory), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # so that `select` knows of every byte
            # As a user's shell runs it: Python keeps the output in a buffer until it is flushed.
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        )

    def servers(self) -> str:
        """The bootstrap servers of the ready line."""
        line = self.line()
        assert line.startswith(READY), f"{line!r}, {self.end()}"
        return line.removeprefix(READY).strip()

    def line(self) -> str:
        """The next line of its output; "" if none comes within a minute."""
        assert self.process.stdout is not None
        deadline, line = time.monotonic() + PATIENCE_S, b""
        while not line.endswith(b"\n") and select.select([self.process.stdout], [], [], deadline - time.monotonic())[0]:
            if not (byte := self.process.stdout.read(1)):
                break
            line += byte
        return line.decode() if line.endswith(b"\n") else ""

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A cluster of three brokers: its directory and bootstrap servers."""
    directory = tmp_path_factory.mktemp("cluster")
    command = Command(directory)
    try:
        yield directory, command.servers()
    finally:
        assert command.end() == 0


def test_three_brokers_replicate_a_topic(running: tuple[Path, str], run: Run, tmp_path: Path) -> None:
    _, servers = running
    assert len(servers.split(",")) == 3
    assert run("topic", "-b", servers, "--create", "--topic", "t", "--partitions", "3").code == 0
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(100)))
    assert run("produce", "-t", "t", "-b", servers, "--file", lines).code == 0
    done = run("consume", "-t", "t", "-b", servers, "-e")
    assert sorted(done.out.split(), key=int) == [str(number) for number in range(100)]


def test_the_status_shows_brokers_leaders_replicas_and_lag(running: tuple[Path, str], run: Run) -> None:
    _, servers = running
    assert run("topic", "-b", servers, "--create", "--topic", "s", "--partitions", "3").code == 0

    def status() -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
        done = run("cluster", "--status", "-b", servers, "--format", "json")
        found = json.loads(done.out)
        return done.code, found, [part for part in found["partitions"] if part["topic"] == "s"]

    deadline = time.monotonic() + 20
    code, found, parts = status()
    # The asked broker may not know the new topic yet. A lag is unknown while a broker does not know the new partition.
    while (
        code or len(parts) < 3 or any(set(part["lag"].values()) != {0} for part in parts)
    ) and time.monotonic() < deadline:
        code, found, parts = status()
    assert (code, found["is_healthy"]) == (0, True)
    assert [broker["id"] for broker in found["brokers"]] == [1, 2, 3]
    assert sorted(part["leader"] for part in parts) == [1, 2, 3]
    assert all(sorted(part["isr"]) == [1, 2, 3] and set(part["lag"].values()) == {0} for part in parts)
    text = run("cluster", "--status", "-b", servers)
    assert text.code == 0
    assert "running" in text.out
    assert "s-0" in text.out


def test_the_nodes_end_with_a_killed_command(tmp_path: Path) -> None:
    command = Command(tmp_path, "--brokers", "1")
    command.servers()
    pids = [
        int(pid) for pid in Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children").read_text().split()
    ]
    assert len(pids) == 2
    command.end(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_dead_node_is_named_and_its_file_starts_it_again(tmp_path: Path) -> None:
    command = Command(tmp_path, "--brokers", "2")
    try:
        command.servers()
        command.line()
        children = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children").read_text().split()
        (second,) = [pid for pid in children if b"broker-2.properties" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(second), signal.SIGKILL)
        line = command.line()
        assert line.startswith("broker-2 ended with -9")
        assert f"kbroker serve --config {tmp_path / 'broker-2.properties'}" in line
    finally:
        assert command.end(signal.SIGTERM) == 0


def test_a_cluster_starts_again_on_its_directory_which_only_its_user_can_read(tmp_path: Path, run: Run) -> None:
    ids: list[str] = []
    before = os.umask(0)
    try:
        _start_twice(tmp_path, run, ids)
    finally:
        os.umask(before)
    open_to_others = [path for path in tmp_path.rglob("*") if path.name != "ready" and path.stat().st_mode & 0o077]
    assert open_to_others == []
    assert ids[0] == ids[1]


def _start_twice(tmp_path: Path, run: Run, ids: list[str]) -> None:
    for _ in range(2):
        command = Command(tmp_path, "--brokers", "2")
        try:
            servers = command.servers()
            ids.append(json.loads(run("cluster", "--status", "-b", servers, "--format", "json").out)["cluster_id"])
        finally:
            assert command.end() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--data-dir is required"),
        (["--data-dir", "d", "--listen", "nowhere"], "--listen: 'nowhere' is not HOST:PORT"),
        (["--data-dir", "d", "--listen", "localhost:65535"], "is not HOST:PORT"),
        (["--data-dir", "d", "-b", "localhost:1"], "only for --status"),
    ],
)
def test_wrong_flags_are_refused_with_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("cluster", *arguments)
    assert done.code == 1
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_number_of_replicas_follows_the_number_of_brokers(tmp_path: Path) -> None:
    for count, replicas, least in ((1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")):
        nodes = node_settings(tmp_path, count, host="localhost", ports=range(100, 101 + count))
        assert len(nodes) == count + 1
        for settings in nodes.values():
            assert settings["default.replication.factor"] == settings["offsets.topic.replication.factor"] == replicas
            assert settings["min.insync.replicas"] == least
    assert len({settings["listeners"] for settings in nodes.values()}) == len(nodes)
