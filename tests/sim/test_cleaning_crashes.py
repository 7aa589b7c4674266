"""A compacted log is crashed at every disk operation: the next start finds what its consumers rely on (row D6)."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

import pytest

from kbroker.storage.log import Log
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import POWER_LOSSES, Loss
from kbroker.testing.draws import Draws
from tests.storage.cleaning import COMPACTED, clean_log
from tests.storage.compacted_history import CompactedHistory, committed
from tests.storage.logs import open_log, read_all

DIRECTORY = "/data/t-0"
CONFIG = replace(COMPACTED, segment_bytes=1_000, delete_retention_ms=20_000, flush_messages=1)
STEPS = 36
WORKLOADS = int(os.environ.get("KBROKER_SWEEP_WORKLOADS", "1"))


def empty_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/data")
    disk.sync_directory("/")
    return disk


@dataclass
class Sweep:
    """Crashes the disk of a history at each operation of each pass. The rest is the work of `tests.sweep`."""

    history: CompactedHistory
    disk: SimulatedDisk
    crashes: int = 0
    complaints: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def run(self) -> None:
        for number in range(STEPS):
            self.history.step()
            if number % 12 == 11:
                self.disk.observer = self._observe
                given = {"stable_offset": self.history.stable_offset, "timestamp_ms": self.history.now_ms}
                clean_log(self.history.log, **given)
                self.history.log.unlink_doomed(1)
                self.disk.observer = None

    def _observe(self, operation: Operation) -> None:
        draws = Draws("cleaning", operation.number)
        for loss in (Loss.PROCESS_DEATH, draws.choice(POWER_LOSSES)):
            self.crashes += 1
            self.seen.add(operation.name)
            disk = self.disk.crash(loss, seed=operation.number, during=operation)
            wrong = self._judge(disk)
            if wrong:
                self.complaints.append(f"{operation} {loss.name}: {wrong}")

    def _judge(self, disk: SimulatedDisk) -> str:
        log = self._started(disk)
        left = [name for name in disk.list(DIRECTORY) if name.endswith((".cleaned", ".swap", ".deleted"))]
        if left:
            return f"leftovers: {left}"
        found = [bytes(one.data) for one in read_all(log)]
        log.abandon()
        log = self._started(disk)
        if [bytes(one.data) for one in read_all(log)] != found:
            return "another start finds another log"
        end, expected = self.history.stable_offset, self.history.expected()
        if committed(log, end) != expected:
            return f"a consumer ends with {committed(log, end)}, not with {expected}"
        clean_log(log, stable_offset=end, timestamp_ms=self.history.now_ms + 60_000)
        return "the next pass changes what consumers find" if committed(log, end) != expected else ""

    def _started(self, disk: SimulatedDisk) -> Log:
        return open_log(DIRECTORY, disk=disk, config=CONFIG, recovery_point=self.history.log.recovery_point)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(WORKLOADS))
def test_d6_a_crash_at_any_operation_of_a_pass_changes_nothing(seed: int) -> None:
    disk = empty_disk()
    history = CompactedHistory(open_log(DIRECTORY, disk=disk, config=CONFIG), random.Random(seed))
    sweep = Sweep(history, disk)
    sweep.run()
    assert not sweep.complaints, sweep.complaints[:5]
    assert sweep.crashes > 100
    assert {"rename", "sync_directory", "write", "sync"} <= sweep.seen
