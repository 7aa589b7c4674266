"""Crash a log at every disk operation of generated workloads, recover it, and compare it with its model.

    python -m tests.sweep.crash_sweep --workloads 50 --seed 1
    python -m tests.sweep.crash_sweep --seed 17 --operation 112 --loss torn --done 0.5     (one crash again)

For each operation of a workload (`tests.sweep.workload`) the sweep crashes the disk before it, and for a write also
half-way through it, by the death of the process and by losses of power. It loads the log from what survived, and then

* its batches must be what the model allows (`log_model`): after the death of the process everything completed, after a
  loss of power a prefix that contains everything synced;
* its files, indexes, epochs, producers, transactions and look-ups must agree with its batches (`log_judge`);
* loading it once more, and after one more crash in the middle of the recovery, must give the same log;
* it must keep working: a batch that is appended and flushed now survives the next loss of power, and so does everything
  before it.

All randomness comes from the seed; a failure prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kbroker.storage.log import Log
from kbroker.testing.disk import Operation, SimulatedDisk
from kbroker.testing.disk_nodes import POWER_LOSSES, Loss
from kbroker.testing.draws import Draws
from tests.sweep.log_judge import complaints_about, read_batches
from tests.sweep.log_model import Expectation, compare
from tests.sweep.workload import START_MS, LogWorkload, StartBroker, drawn_config, drawn_steps, start_broker
from wire.record_batch import Record, build_batch

LATER_MS = START_MS + 1_000_000


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash: before operation number `operation` (or after the part `done` of a write), losing `loss`."""

    seed: int
    operation: int
    loss: Loss
    done: float

    def command(self) -> str:
        """The command that repeats it."""
        where = f"--seed {self.seed} --operation {self.operation} --loss {self.loss.value} --done {self.done}"
        return f"python -m tests.sweep.crash_sweep {where}"


@dataclass(frozen=True, slots=True)
class Options:
    """The extent of a sweep.

    Shape   losses: how many kinds of power loss each crash point meets (drawn); deep: the share of recoveries that are
            themselves crashed, loaded again and written to; start: how to open the log; make_disk: creates its disk
    """

    steps: int = 60
    losses: int = len(POWER_LOSSES)
    deep: float = 0.1
    start: StartBroker = start_broker
    make_disk: Callable[[], SimulatedDisk] = SimulatedDisk
    only: Crash | None = None


@dataclass(slots=True)
class Report:
    """The extent and the findings of a sweep; `failures` are (crash, sentence)."""

    workloads: int = 0
    operations: int = 0
    recoveries: int = 0
    batches: int = 0
    failures: list[tuple[Crash, str]] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.workloads += other.workloads
        self.operations += other.operations
        self.recoveries += other.recoveries
        self.batches += other.batches
        self.failures += other.failures

    def __str__(self) -> str:
        return (
            f"{self.workloads} workloads, {self.operations} operations, {self.recoveries} recoveries"
            f" of {self.batches} batches, {len(self.failures)} failures"
        )


class Sweep:
    """One workload with a crash at each of its operations."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.options = options
        self.report = Report(workloads=1)
        self._config = drawn_config(seed)
        self._workload: LogWorkload | None = None
        self._disk: SimulatedDisk | None = None
        # Operations are numbered through the whole workload, although a step that kills the process starts a new disk.
        self._before = 0

    def run(self) -> Report:
        """Errors: AssertionError, KafkaError if the log fails while it runs, with the seed and the step."""
        step: object = "opening"
        try:
            disk = self.options.make_disk()
            workload = LogWorkload(disk, self._config, self.seed, start=self.options.start, on_new_disk=self._watch)
            self._workload = workload
            for step in drawn_steps(self.seed, self.options.steps):
                workload.run(step)
        except Exception as error:
            error.add_note(f"in the workload of seed {self.seed}, at {step}, with {self._config}")
            raise
        self.report.operations = self._before + workload.disk.operations
        return self.report

    def _watch(self, disk: SimulatedDisk) -> None:
        if self._disk is not None:
            self._before += self._disk.operations
            self._disk.observer = None
        self._disk = disk
        disk.observer = self._crash_at

    def _crash_at(self, operation: Operation) -> None:
        number = self._before + operation.number
        for crash in self._crashes(number, operation):
            assert self._disk is not None
            survivor = self._disk.crash(crash.loss, seed=_key(crash), during=operation, done=crash.done)
            expected = self._expectation(crash.loss)
            for complaint in self._recover(crash, survivor, expected):
                self.report.failures.append((crash, f"{operation}: {complaint}"))

    def _crashes(self, number: int, operation: Operation) -> Iterator[Crash]:
        only = self.options.only
        if only is not None:
            if only.operation == number:
                yield only
            return
        for done in (0.0, 0.5) if operation.name == "write" else (0.0,):
            yield Crash(self.seed, number, Loss.PROCESS_DEATH, done)
            draws = Draws("losses", self.seed, number, str(done))
            losses = list(POWER_LOSSES)
            for _ in range(min(self.options.losses, len(losses))):
                yield Crash(self.seed, number, losses.pop(draws.below(len(losses))), done)

    def _expectation(self, loss: Loss) -> Expectation:
        if self._workload is None:
            return Expectation(([],), 0, 0, 0)  # the log is being created
        return self._workload.model.expectation(power_lost=loss is not Loss.PROCESS_DEATH)

    def _recover(self, crash: Crash, disk: SimulatedDisk, expected: Expectation) -> Iterator[str]:
        deep = self.options.only is not None or Draws("deep", _key(crash)).chance(self.options.deep)
        before = disk.crash(Loss.PROCESS_DEATH) if deep else None
        try:
            log, complaints = self._open(crash, disk, expected)
            yield from complaints
            if before is not None and not complaints:
                yield from self._judge_repeats(crash, disk, log)
                yield from self._judge_interrupted(crash, before, expected)
                yield from self._judge_afterlife(crash, disk, log, expected)
        except Exception:  # noqa: BLE001 - any error of the recovery is a finding
            yield f"recovery fails: {traceback.format_exc()}"

    def _open(
        self, crash: Crash, disk: SimulatedDisk, expected: Expectation, *, indexes_are_whole: bool = True
    ) -> tuple[Log, list[str]]:
        """Load the log from a disk and judge it."""
        self.report.recoveries += 1
        log, _ = self._start(disk)
        found = read_batches(log, disk)
        self.report.batches += len(found)
        wrong = compare(found, log.log_start_offset, log.log_end_offset, expected)
        if wrong is not None:
            return log, [wrong]
        draws = Draws("judge", _key(crash))
        complaints = complaints_about(log, disk, found, draws, indexes_are_whole=indexes_are_whole)
        return log, list(complaints)

    def _start(self, disk: SimulatedDisk) -> tuple[Log, list[str]]:
        """The log, and the reports of its recovery."""
        reports: list[str] = []
        _, log = self.options.start(disk, self._config, timestamp_ms=LATER_MS, report=reports.append)
        return log, reports

    def _judge_repeats(self, crash: Crash, disk: SimulatedDisk, log: Log) -> Iterator[str]:
        """Without writes since the recovery, a second one has nothing to do and gives the same log."""
        survivor = disk.crash(Loss.PROCESS_DEATH)
        again, reports = self._start(survivor)
        self.report.recoveries += 1
        if _state(again, survivor) != _state(log, disk):
            yield f"a second recovery gives another log ({reports})"
        whole = read_batches(again, survivor)
        again_complaints = complaints_about(again, survivor, whole, Draws("again", _key(crash)))
        yield from (f"after a second recovery: {wrong}" for wrong in again_complaints)

    def _judge_interrupted(self, crash: Crash, disk: SimulatedDisk, expected: Expectation) -> Iterator[str]:
        """Crash the recovery itself at each of its operations; the promise is still that of the first crash."""
        complaints: list[str] = []
        losses = [Loss.PROCESS_DEATH] if crash.loss is Loss.PROCESS_DEATH else [Loss.PROCESS_DEATH, *POWER_LOSSES]

        def interrupt(operation: Operation) -> None:
            key = _key(crash) * 31 + operation.number
            loss = Draws("interrupt", key).choice(losses)
            survivor = disk.crash(loss, seed=key, during=operation)
            # An index that is being rebuilt may be incomplete, and is rebuilt at its next use.
            _, found = self._open(crash, survivor, expected, indexes_are_whole=False)
            complaints.extend(f"recovery cut off by {loss.value} at {operation}: {wrong}" for wrong in found)

        disk.observer = interrupt
        self._start(disk)
        yield from complaints

    def _judge_afterlife(self, crash: Crash, disk: SimulatedDisk, log: Log, expected: Expectation) -> Iterator[str]:
        """Append to the recovered log and flush it: all of it is durable then."""
        # The epoch of a new leader is above all earlier ones: the controller counts them, not the log.
        written = [batch.partition_leader_epoch for batch in read_batches(log, disk)]
        epoch = 1 + max(log.leader_epochs.latest, 0, *written)
        data = build_batch([Record(timestamp=LATER_MS, value=b"after the crash")])
        plan = log.append(bytearray(data), leader_epoch=epoch, timestamp_ms=LATER_MS)
        log.flush()
        whole = read_batches(log, disk)
        if not whole or whole[-1].data != bytes(plan.data):
            yield "a batch that was appended after the recovery is not the last of the log"
        start = max(log.log_start_offset, expected.most_start)
        expected = Expectation((whole,), log.log_end_offset, 0, start)
        loss = Draws("afterlife", _key(crash)).choice(POWER_LOSSES)
        survivor = disk.crash(loss, seed=_key(crash))
        _, complaints = self._open(crash, survivor, expected)
        yield from (f"flushed after the recovery, then {loss.value}: {wrong}" for wrong in complaints)


def _key(crash: Crash) -> int:
    return Draws("crash", crash.seed, crash.operation, crash.loss.value, str(crash.done)).word()


def _state(log: Log, disk: SimulatedDisk) -> tuple[object, ...]:
    """The state in which two recoveries of one disk must agree."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        [batch.data for batch in read_batches(log, disk)],
        [entry for entry in log.leader_epochs.entries if entry[1] < log.log_end_offset],
        log.producers.format_snapshot(),
        log.aborted_between(log.local_log_start_offset, log.log_end_offset),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; exit status 1 with failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first workload; the others follow")
    parser.add_argument("--steps", type=int, default=60, help="of each workload")
    parser.add_argument("--deep", type=float, default=0.1, help="share of recoveries that are crashed themselves")
    parser.add_argument("--losses", type=int, default=len(POWER_LOSSES), help="kinds of power loss at each point")
    parser.add_argument("--operation", type=int, help="crash only before this operation of the first workload")
    parser.add_argument("--loss", type=Loss, choices=list(Loss), default=Loss.PROCESS_DEATH)
    parser.add_argument("--done", type=float, default=0.0, help="part of the write that still happens")
    chosen = parser.parse_args(arguments)
    options = Options(steps=chosen.steps, losses=chosen.losses, deep=chosen.deep)
    if chosen.operation is not None:
        crash = Crash(chosen.seed, chosen.operation, chosen.loss, chosen.done)
        options, chosen.workloads = replace(options, only=crash), 1
    report = Report()
    for seed in range(chosen.seed, chosen.seed + chosen.workloads):
        found = Sweep(seed, options).run()
        for crash, complaint in found.failures[:5]:
            sys.stdout.write(f"{complaint}\n  again: {crash.command()}\n")
        report.add(found)
    sys.stdout.write(f"{report}\n")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
