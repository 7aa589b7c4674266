"""`kbroker produce` and `kbroker consume` with many lines, and what they say on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Run

LINES = [b"%d " % number + b"x" * (number % 150) for number in range(30_000)]
_numbers = count()

Command = Callable[..., Done]


@pytest.fixture
def topic(run: Run, broker: str) -> str:
    name = f"many-{os.getpid()}-{next(_numbers)}"
    assert run("topic", "-b", broker, "--create", "--topic", name, "--partitions", 2).code == 0
    return name


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def test_many_lines_go_to_the_partitions_in_turn(run: Run, broker: str, topic: str, lines: Path) -> None:
    assert run("produce", "-b", broker, "-t", topic, "--file", lines) == (0, "", "")
    expected = b"\n".join(LINES).decode().split("\n")
    each = [run("consume", "-b", broker, "-t", topic, "-p", index, "-e").lines for index in (0, 1)]
    assert sorted(map(tuple, each)) == sorted([tuple(expected[::2]), tuple(expected[1::2])])


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_ends_and_counts_hold_within_batches(run: Run, broker: str, topic: str, lines: Path, codec: str) -> None:
    words = ["-b", broker, "-t", topic, "-p", 1]
    assert run("produce", *words, "--file", lines, "-z", codec, "-H", "a=b").code == 0
    expected = b"\n".join(LINES).decode().split("\n")
    assert run("consume", *words, "-o", 777, "-c", 12_345).lines == expected[777 : 777 + 12_345]
    assert run("consume", *words, "-o", -5, "-e").lines == expected[-5:]
    by_record = run("consume", *words, "-e", "-f", r"%o %s\n")
    assert by_record.lines == [f"{offset} {line}" for offset, line in enumerate(expected)]


def test_a_group_goes_on_after_the_last_printed_record(run: Run, broker: str, topic: str, lines: Path) -> None:
    assert run("produce", "-b", broker, "-t", topic, "-p", 0, "--file", lines).code == 0
    words = ["consume", "-b", broker, "-t", topic, "-g", topic, "--from-beginning"]
    expected = b"\n".join(LINES).decode().split("\n")
    assert run(*words, "-c", 10_001).lines == expected[:10_001]
    assert run(*words, "-c", 10_000).lines == expected[10_001:20_001]


def test_a_line_that_is_too_large_is_named(run: Run, broker: str, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n" + b"x" * (1 << 20) + b"\nc\n")
    done = run("produce", "-b", broker, "-t", topic, "-p", 0, "--file", path)
    assert done.code == 1
    assert "line 3 cannot be sent: the record has " in done.err
    assert run("consume", "-b", broker, "-t", topic, "-e").out == "a\nb\n"


@contextmanager
def on_terminal(*words: object) -> Iterator[int]:
    """The terminal of a command's standard error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kbroker", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    try:
        yield ours
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def read_until(text: str, *terminals: int) -> None:
    """Read terminals until one of them shows a text."""
    shown = dict.fromkeys(terminals, "")
    while not any(text in each for each in shown.values()):
        ready = select.select(terminals, [], [], 60)[0]
        assert ready, shown
        for each in ready:
            shown[each] += os.read(each, 4096).decode()


def test_a_terminal_shows_how_much_was_sent(broker: str, topic: str, lines: Path) -> None:
    with on_terminal("produce", "-b", broker, "-t", topic, "--file", lines) as terminal:
        read_until("sent 30,000 records, 2.4 MB in ", terminal)


def test_a_terminal_shows_what_a_consumer_waits_for(run: Run, broker: str, topic: str) -> None:
    with on_terminal("consume", "-b", broker, "-t", topic) as terminal:
        read_until("kbroker consume: waiting: no new records (Ctrl-C ends the command)\r\n", terminal)
    run("topic", "-b", broker, "--create", "--topic", f"{topic}-one", "--partitions", 1)
    words = ["consume", "-b", broker, "-t", f"{topic}-one", "-g", topic]
    with on_terminal(*words) as first, on_terminal(*words) as second:
        read_until(f"waiting: group {topic} has no partition for this member", first, second)
