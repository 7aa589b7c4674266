"""K6, K7, K8 and K11 accept a history of Apache Kafka, and find each fault that is planted in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.testing.cluster_checker import METADATA, check_cluster
from kbroker.testing.draws import Draws
from kbroker.testing.history import BadHistory, Event, Function, Type
from tests.testing.planted_cluster import FAULTS, History
from tests.testing.recorded_history import recorded_history

KAFKA_HISTORY = Path(__file__).parent / "fixtures" / "kafka-4.3.1-killed-controllers.jsonl"
"""Recorded by compat/cluster/storm.py on three controllers and three brokers of Apache Kafka 4.3.1; the active
controller and a leader were killed twice. Shortened to one partition, and to every eighth record of its producers.
"""


@pytest.fixture(name="history", scope="module")
def _history() -> History:
    return recorded_history(KAFKA_HISTORY)


def kinds(history: History) -> set[tuple[str, str]]:
    return {(finding.check, finding.kind) for finding in check_cluster(history)}


def test_k6_k7_k8_k11_accept_a_history_of_apache_kafka(history: History) -> None:
    assert check_cluster(history) == []
    for function in (Function.LEADS, Function.CONTROLLER):
        assert len({e.epoch for e in history if e.function is function}) >= 3, "the faults changed nothing"
    assert len([e for e in history if e.function is Function.HEAL]) == 2
    assert len([e for e in history if e.function is Function.ISR and e.value]) > 2


@pytest.mark.parametrize(("plant", "expected"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_k6_k7_k8_k11_find_a_planted_fault(
    history: History, plant: Callable[[History, Draws], History], expected: set[tuple[str, str]]
) -> None:
    for seed in range(20):
        assert kinds(plant(history, Draws("plant", seed))) >= expected, f"seed {seed}"


def without(history: History, *functions: Function) -> History:
    return [e for e in history if e.function not in functions]


def test_k7_accepts_different_tails_of_different_epochs(history: History) -> None:
    """A deposed leader has a record that was never committed, and has not yet asked its successor."""
    end = next(e for e in history if e.function is Function.END and e.key != METADATA)
    assert end.offset is not None
    tail = replace(end, function=Function.BATCH, offset=end.offset, epoch=98, value="mine")
    other = replace(tail, process="node-2", epoch=99, value="theirs")
    ends = [
        replace(e, offset=end.offset + 1) if e.function is Function.END and e.key == end.key else e for e in history
    ]
    epochs = [replace(each, function=Function.EPOCH, value=None) for each in (tail, other)]
    assert check_cluster([*ends, tail, other, *epochs]) == []
    later = [replace(each, offset=end.offset + 1, epoch=99, value="new") for each in (tail, other)]
    ends = [replace(e, offset=end.offset + 2) if e.function is Function.END and e.key == end.key else e for e in ends]
    assert ("K7", "log-mismatch") in kinds([*ends, tail, other, *epochs, *later])


def test_k7_a_finding_shows_its_evidence(history: History) -> None:
    answer = next(e for e in history if e.function is Function.LEADS)
    (finding,) = check_cluster([*history, replace(answer, process="broker-9")])[-1:]
    assert str(finding) == f"K7 two-leaders storm-0@-1: {answer.process} and broker-9 both lead in epoch {answer.epoch}"


@pytest.mark.parametrize("function", [Function.LEADS, Function.CONTROLLER, Function.ISR, Function.HEAL, Function.END])
def test_a_recording_without_evidence_is_refused(history: History, function: Function) -> None:
    with pytest.raises(BadHistory):
        check_cluster(without(history, function))


def test_logs_that_were_not_read_are_refused(history: History) -> None:
    with pytest.raises(BadHistory, match="not read"):
        check_cluster(without(history, Function.BATCH, Function.EPOCH, Function.END))


@pytest.mark.parametrize("function", [Function.LEADS, Function.CONTROLLER, Function.BATCH])
@pytest.mark.parametrize("field", ["offset", "epoch"])
def test_a_line_without_a_field_is_refused(history: History, function: Function, field: str) -> None:
    line = Event(at_ms=0, process="x", function=function, type=Type.OK, key="storm-0", offset=0, epoch=0)
    with pytest.raises(BadHistory, match=f"without an {field}"):
        check_cluster([*history, replace(line, **{field: None})])
