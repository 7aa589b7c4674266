"""The metadata log after a crash at any operation, and after a failed write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.config.metadata import MetadataSettings
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from tests.controller.metadata_node import Node, empty_disk, state, topic_record


def _workload(disk: SimulatedDisk, root: str) -> Iterator[Image]:
    """A workload with all operations; yields the image after each acknowledged step."""
    node = Node(disk, root, config=MetadataSettings(metadata_max_retention_bytes=2_500), max_batch_bytes=600)
    yield node.image
    for number in range(6):
        node.append(topic_record(number, padding=50))
        yield node.image
        if number % 2:
            node.snapshot()
    node.append(*[topic_record(100 + number) for number in range(20)])
    yield node.image
    node.log.close()


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("done", [0.0, 0.6])
def test_c3_d7_k1_acknowledged_decisions_survive_a_crash_at_any_operation(loss: Loss, *, done: float) -> None:
    """The recovered state existed before, and is at least as new as the last acknowledged one."""
    disk = empty_disk()
    acknowledged = [Image()]
    survivors: list[tuple[Operation, int, SimulatedDisk]] = []

    def crash(operation: Operation) -> None:
        survivor = disk.crash(loss, seed=operation.number, during=operation, done=done)
        survivors.append((operation, len(acknowledged), survivor))

    disk.observer = crash
    acknowledged += _workload(disk, "/data")
    assert len(survivors) > 100
    states = [state(image) for image in acknowledged]
    empty = state(Image())
    for operation, known, survivor in survivors:
        survivor_image = Node(survivor, "/data", max_batch_bytes=600).image
        found = state(survivor_image)
        if found == empty:
            pytest.fail(f"{operation}: an unformatted log after recovery")
        allowed = states[max(known - 1, 1) : known + 1]
        assert found in allowed, f"{operation}: recovered a state that is unknown or too old"
        assert survivor_image.epoch >= acknowledged[known - 1].epoch + (1 if known > 1 else 0), (
            f"{operation}: an epoch was reused"
        )


def test_d13_an_interrupted_recovery_can_be_repeated() -> None:
    disk = empty_disk()
    *_, last = _workload(disk, "/data")
    torn = disk.crash(Loss.PROCESS_DEATH)
    second: list[SimulatedDisk] = []
    torn.observer = lambda operation: second.append(torn.crash(Loss.PROCESS_DEATH, during=operation))
    Node(torn, "/data", max_batch_bytes=600)
    assert second
    for survivor in second:
        assert state(Node(survivor, "/data", max_batch_bytes=600).image) == state(last)


@pytest.mark.parametrize("name", ["write", "sync"])
def test_d8_d9_a_failed_write_makes_the_log_unusable(name: str) -> None:
    disk = empty_disk()
    node = Node(disk, "/data")
    disk.inject(Fault(error=5, name=name, path="*.log"))
    with pytest.raises(UnusableMetadata, match="the metadata log cannot be written"):
        node.append(topic_record(1))
    disk.heal()
    with pytest.raises(UnusableMetadata):
        node.append(topic_record(2))  # never retried
