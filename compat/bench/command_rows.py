"""How long `kbroker produce` and `kbroker consume` take for lines, compared with kcat on the same broker.

kcat sends and reads the same lines in turn with them: `kcat -P -l FILE`, `kcat -C -e`, each also through a pipe. The
figure is the ratio of the times of the whole commands, start included. What was read is compared with what was sent.
"""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
import time
from filecmp import cmp
from pathlib import Path
from tempfile import TemporaryDirectory

from compat.bench.rivals import Rival
from compat.bench.sizes import FULL, Figures, Row, Size, at_most

_COMMAND = f"{shlex.quote(sys.executable)} -m kbroker"
_TIMES_KCAT = "x kcat's time"

COMMAND_ROWS = [
    Row("lines-produce", "produce of 1,000,000 lines of 100 B from a file", _TIMES_KCAT, "<= 2", at_most(2)),
    Row("lines-produce-pipe", "the same produce from a pipe", _TIMES_KCAT, "<= 2", at_most(2)),
    Row("lines-consume", "consume of 1,000,000 lines of 100 B to a file", _TIMES_KCAT, "<= 2", at_most(2)),
    Row("lines-consume-pipe", "the same consume to a pipe", _TIMES_KCAT, "<= 2", at_most(2)),
]


def commands(rival: Rival, size: Size) -> Figures:
    """Send lines by each command to a topic of its own, and read them from one topic."""
    figures: Figures = {}
    with TemporaryDirectory(prefix="kbroker-lines-") as directory:
        lines, read = Path(directory, "lines"), Path(directory, "read")
        _write(lines, 1_000_000 if size is FULL else 100_000)
        topics = [rival.topic(f"lines-{number}") for number in range(4)]
        at = f"-b {rival.servers} -t"
        _compare(
            figures,
            "lines-produce",
            f"kcat -P {at} {topics[0]} -l {lines}",
            f"{_COMMAND} produce {at} {topics[1]} --file {lines}",
        )
        _compare(
            figures,
            "lines-produce-pipe",
            f"cat {lines} | kcat -P {at} {topics[2]}",
            f"cat {lines} | {_COMMAND} produce {at} {topics[3]}",
        )
        theirs, ours = f"kcat -C -e -q {at} {topics[0]}", f"{_COMMAND} consume -e {at} {topics[0]}"
        _compare(figures, "lines-consume", f"{theirs} >{read}", f"{ours} >{read}")
        assert cmp(read, lines, shallow=False)
        _compare(figures, "lines-consume-pipe", f"{theirs} | cat >/dev/null", f"{ours} | cat >/dev/null")
        subprocess.run(f"{_COMMAND} consume -e {at} {topics[1]} >{read}", shell=True, check=True)
        assert cmp(read, lines, shallow=False)
        rival.delete(*topics)
    return figures


def _compare(figures: Figures, key: str, theirs: str, ours: str) -> None:
    kcat_s, ours_s = _seconds(theirs), _seconds(ours)
    figures |= {key: ours_s / kcat_s, f"{key}-s": ours_s, f"{key}-kcat-s": kcat_s}


def _seconds(command: str) -> float:
    began = time.perf_counter()
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)
    return time.perf_counter() - began


def _write(path: Path, count: int) -> None:
    source = random.Random(1)
    with path.open("w") as out:
        for number in range(count):
            out.write(f"{number:08d} {'x' * source.randrange(70, 112)}\n")
