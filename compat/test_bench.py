"""The clients of the benchmarks must really read what they claim: a client that skips records looks faster."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from compat.bench.rows import ROWS
from compat.bench.tier_worker import Reader
from compat.processes import cpu_seconds

_BUSY = "import time\nwhile time.process_time() < 0.5: pass"
_WAITS = (
    f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BUSY!r}]); print(flush=True); sys.stdin.read()"
)
_STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_WAITS!r}])"


def test_row_titles_are_unique() -> None:
    """A partial run finds the other rows in the page by their titles."""
    titles = [row.title for row in ROWS]
    assert sorted(set(titles)) == sorted(titles)


def batches(sizes: Sequence[tuple[int, int]], base: int = 700) -> bytes:
    """Headers of consecutive batches of these sizes and offset counts; the rest of each is zeros."""
    made = b""
    for size, count in sizes:
        header = struct.pack(">qi11xi", base, size - 12, count - 1)
        made += header + bytes(size - len(header))
        base += count
    return made


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ([(100, 1)], 0),
        ([(100, 5)] * 9, 0),
        ([(100, 5)] * 9, 1),
        ([(100, 5)] * 9 + [(70, 2)], 0),
        ([(100, 5)] * 9 + [(70, 2)], 30),
        ([(100, 5)] * 4 + [(200, 9)] + [(100, 5)] * 3, 0),
        ([(100, 5)] * 4 + [(100, 4)] + [(100, 5)] * 3, 0),
        ([(100, 5), (100, 4), (100, 6), (100, 5)], 0),
        ([(300, 5), (100, 1), (100, 1), (100, 1)], 0),
    ],
)
def test_a_reader_continues_after_the_last_complete_batch(
    sizes: list[tuple[int, int]], cut: int, kafka_libraries: Path
) -> None:
    assert kafka_libraries.is_dir()  # the directory of the schemas for the requests
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader = Reader(f"127.0.0.1:{listening.getsockname()[1]}", "t")
    data = batches(sizes)[: sum(size for size, _ in sizes) - cut]
    reader._buffer[reader._records_at : reader._records_at + len(data)] = data
    whole = sizes[:-1] if cut else sizes
    assert reader._following(reader._records_at + len(data)) == 700 + sum(count for _, count in whole)
    reader.socket.close()


def test_cpu_time_counts_grandchildren_that_have_ended() -> None:
    command = [sys.executable, "-c", _STARTS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert cpu_seconds(process.pid) >= 0.45  # of 0.5; both times of each process are rounded down
        process.communicate()
