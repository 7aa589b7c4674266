"""Files of a log directory that are damaged, cut or missing when a broker starts: rows D2 to D5.

Each file of each kind is damaged alone, after a workload that ended in a kill or in a clean stop. The log has to start
with every batch, and with indexes, epochs and producers that agree with the batches.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.draws import Draws
from tests.sweep.log_judge import complaints_about, read_batches
from tests.sweep.log_model import Expectation, compare
from tests.sweep.workload import DATA, TOPIC, LogWorkload, drawn_config, drawn_steps, start_broker

DIRECTORY = f"{DATA}/{TOPIC}-0"
SEEDS = range(8)
Damage = Callable[[SimulatedDisk, str, Draws], None]


def remove(disk: SimulatedDisk, path: str, _: Draws) -> None:
    disk.unlink(path)


def empty(disk: SimulatedDisk, path: str, _: Draws) -> None:
    disk.open(path).truncate(0)


def cut(disk: SimulatedDisk, path: str, draws: Draws) -> None:
    disk.open(path).truncate(draws.below(max(1, disk.size(path))))


def fill_with_zeros(disk: SimulatedDisk, path: str, _: Draws) -> None:
    disk.open(path).pwrite(bytes(disk.size(path)), 0)


def fill_with_rubbish(disk: SimulatedDisk, path: str, draws: Draws) -> None:
    disk.open(path).pwrite(draws.bytes(disk.size(path)), 0)


def lengthen(disk: SimulatedDisk, path: str, draws: Draws) -> None:
    disk.open(path).pwrite(draws.bytes(draws.between(1, 40)), disk.size(path))


DAMAGES: list[Damage] = [remove, empty, cut, fill_with_zeros, fill_with_rubbish, lengthen]


LOOKS_EMPTY = (remove, empty, fill_with_zeros)
"""A segment without aborted transactions has no transaction index, so its loss cannot be noticed, as in Kafka."""


def worked(seed: int, *, clean: bool) -> tuple[SimulatedDisk, Expectation]:
    """The disk after a workload that was killed or stopped cleanly, and its expected contents."""
    workload = LogWorkload(SimulatedDisk(), drawn_config(seed), seed)
    for step in drawn_steps(seed, 40):
        workload.run(step)
    if clean:
        workload.close()
    return workload.disk.crash(Loss.PROCESS_DEATH), workload.model.expectation(power_lost=False)


def complaints_after(damage: Damage, pattern: str, seed: int, *, clean: bool, directory: str = DIRECTORY) -> list[str]:
    disk, expected = worked(seed, clean=clean)
    found: list[str] = []
    for name in disk.list(directory):
        if not name.endswith(pattern) or disk.size(f"{directory}/{name}") == 0:
            continue
        if name.endswith(".txnindex") and damage in LOOKS_EMPTY:
            continue
        victim = disk.crash(Loss.PROCESS_DEATH)
        damage(victim, f"{directory}/{name}", Draws("damage", seed, name))
        _, log = start_broker(victim, drawn_config(seed), timestamp_ms=0, report=lambda _: None)
        batches = read_batches(log, victim)
        wrong = compare(batches, log.log_start_offset, log.log_end_offset, expected)
        if wrong is not None:
            found.append(f"{name}: {wrong}")
        complaints = complaints_about(log, victim, batches, Draws("judge", seed), indexes_are_whole=False)
        found += [f"{name}: {text}" for text in complaints]
    return found


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_d2_a_damaged_index_is_rebuilt(damage: Damage, clean: bool) -> None:
    for seed in SEEDS:
        assert complaints_after(damage, "index", seed, clean=clean) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_d3_a_damaged_checkpoint_counts_as_0_and_everything_is_read(damage: Damage) -> None:
    for seed in SEEDS:
        assert complaints_after(damage, "recovery-point-offset-checkpoint", seed, clean=False, directory=DATA) == []


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_d4_damaged_leader_epochs_are_rebuilt_from_the_batches(damage: Damage, clean: bool) -> None:
    for seed in SEEDS:
        assert complaints_after(damage, "leader-epoch-checkpoint", seed, clean=clean) == []


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("damage", DAMAGES[1:])
def test_d5_a_damaged_producer_snapshot_is_not_used(damage: Damage, clean: bool) -> None:
    """After a clean stop, a missing snapshot means a log without producers."""
    for seed in SEEDS:
        assert complaints_after(damage, ".snapshot", seed, clean=clean) == []
