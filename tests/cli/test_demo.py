"""`kbroker demo`: its steps succeed, damage makes it fail, and it cleans up."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.cli import CommandFailed
from kbroker.cli._demo_broker import broker
from kbroker.cli._demo_picture import BOTH, LOCAL, NOWHERE, TIER, Lines, Scene
from kbroker.cli._demo_story import TOPIC, record_value

# If the tests run in the background, the shell may ignore SIGINT, and children inherit that.
PROGRAM = """\
import signal, sys
from kbroker.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
COMMAND = [sys.executable, "-c", PROGRAM, "demo"]
SMALL = ["--mib", "6"]


@contextmanager
def demo(temporary: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": ""},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], wanted: str) -> str:
    """The first line with these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if wanted in line:
            return line
    raise AssertionError(f"it never said {wanted!r}")


def is_running(address: str) -> bool:
    """Whether a process was given this port to listen on."""
    host, _, port = address.rpartition(":")

    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_the_demo_succeeds_and_leaves_no_files(tmp_path: Path) -> None:
    with demo(tmp_path, *SMALL) as process:
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, ""), out
    first, *scenes, last = out.splitlines()
    address = re.search(r"at (\S+),", first)
    assert address is not None
    assert address[1].startswith("127.0.0.1:")
    assert not is_running(address[1])
    assert list(tmp_path.iterdir()) == []
    titles = [scene.split(" s  ")[1].split("  ")[0] for scene in scenes]
    assert list(dict.fromkeys(titles)) == [
        "writing 1536 records",
        "closed segments move to the tier",
        "the local disk shrinks",
        "a consumer reads everything back",
        "everything was read back",
    ]
    summary = re.search(r"All 1536 records were read back and compared; (\d+) of them are only in the tier", last)
    assert summary is not None
    assert int(summary[1]) > 700
    assert float(scenes[-1].split(" s")[0]) < 30


def test_on_a_terminal_there_is_a_picture(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*COMMAND, *SMALL], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            shown += os.read(ours, 1 << 16)
        except OSError:  # a terminal that is no longer open
            break
    os.close(ours)
    assert process.wait(20) == 0
    text = shown.decode()
    for piece in ("offsets  ", "▒ only in the tier", "reader   ", "log start 0, local log start ", "▶ 1536"):
        assert piece in text, piece


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_an_interrupted_demo_cleans_up(tmp_path: Path, number: int, code: int) -> None:
    with demo(tmp_path) as process:
        first = read_until(process, "A temporary broker")
        read_until(process, "  writing ")
        process.send_signal(number)
        assert process.wait(20) == code
        address = re.search(r"at (\S+),", first)
        assert address is not None
        assert not is_running(address[1])
        assert list(tmp_path.iterdir()) == []


def test_a_demo_that_is_killed_leaves_no_broker(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        first = read_until(process, "A temporary broker")
    address = re.search(r"at (\S+),", first)
    assert address is not None
    deadline = time.monotonic() + 20
    while is_running(address[1]):
        assert time.monotonic() < deadline


Harm = Callable[[Path], None]


def lose_a_segment(directory: Path) -> None:
    for path in sorted(directory.glob("data-tier/*/*/*.log"))[:1]:
        path.unlink()


def change_a_byte(directory: Path) -> None:
    for path in sorted(directory.glob("data-tier/*/*/*.log"))[:1]:
        data = bytearray(path.read_bytes())
        data[5_000] ^= 0xFF
        path.write_bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("harm", [lose_a_segment, change_a_byte])
def test_a_damaged_tier_makes_the_demo_fail(tmp_path: Path, harm: Harm) -> None:
    """The tier is damaged before the demo reads it back. The consumer gets no wrong record, and the demo fails."""
    with demo(tmp_path, *SMALL, "--patience-ms", "8000") as process:
        read_until(process, "closed segments move to the tier")
        process.send_signal(signal.SIGSTOP)  # the demo must not read the tier before the damage; its broker goes on
        (directory,) = tmp_path.iterdir()
        deadline = time.monotonic() + 20
        while not list(directory.glob("data-tier/*/*/*.manifest.json")):
            assert time.monotonic() < deadline
        harm(directory)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("kbroker demo: ")
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in its way")
    with pytest.raises(CommandFailed, match=f"the broker did not start: .*{tmp_path}/data"), broker(tmp_path):
        raise AssertionError("there is no broker")


@pytest.mark.parametrize("size", ["3", "1025", "much"])
def test_an_invalid_size_is_wrong_usage(size: str) -> None:
    done = subprocess.run([*COMMAND, "--mib", size], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_scene_knows_where_each_offset_is() -> None:
    scene = Scene(log_start=2, local_start=6, tiered_to=7, end=9, goal=12)
    assert scene.bar(12) == ["", "", TIER, TIER, TIER, TIER, BOTH, BOTH, LOCAL, "", "", ""]
    assert Scene(local_start=4, tiered_to=1, end=6, goal=6).bar(6) == [TIER, TIER, NOWHERE, NOWHERE, LOCAL, LOCAL]
    assert Scene(end=4, goal=4).bar(2) == [LOCAL, LOCAL]


def test_a_line_is_printed_per_title_and_about_every_second() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    for elapsed_ms, title in ((0, "a"), (500, "a"), (1_000, "a"), (1_100, "b"), (1_200, "b"), (2_100, "b")):
        lines.show(Scene(title=title, elapsed_ms=elapsed_ms))
    assert [line.split()[0] for line in said] == ["0.0", "1.0", "1.1", "2.1"]


def test_values_differ_and_are_the_same_in_every_run() -> None:
    assert record_value(1) == record_value(1) != record_value(11)
    assert {len(record_value(number)) for number in range(20)} == {4096}
    assert TOPIC == "demo"
