"""The scenarios, step by step: what KIP-101, KIP-279 and the promises of replication say about each moment."""

from __future__ import annotations

import pytest

from kbroker.testing.scenarios import Scenario, scenarios
from tests.testing.told import told
from wire.errors import ErrorCode


def test_kip_101_scenario_1_loses_m2_with_the_old_rule_only() -> None:
    for rule in ("old", "new"):
        run = told("kip-101-record-lost", rule)
        run.has(2, "A", state="follower", values=["m1", "m2"], high_watermark=1, does_not_hear=["B"])
        run.has(2, "B", state="leader", values=["m1", "m2"], high_watermark=2)
        assert run.answer(2, "m2") == 0, "acknowledged with acks=all"
    old, new = told("kip-101-record-lost", "old"), told("kip-101-record-lost", "new")
    old.has(3, "A", values=["m1"], log_end_offset=1)
    new.has(3, "A", values=["m1", "m2"], log_end_offset=2)
    old.has(4, "A", state="leader", leader_epoch=1, epochs=[[0, 0], [1, 1]])
    new.has(4, "A", state="leader", leader_epoch=1, epochs=[[0, 0], [1, 2]])
    for name in ("A", "B"):
        old.has(5, name, values=["m1"])
        new.has(5, name, values=["m1", "m2"])
    assert (old.facts["read"], old.facts["lost"]) == (["m1"], ["m2"])
    assert (new.facts["read"], new.facts["lost"]) == (["m1", "m2"], [])


def test_kip_101_scenario_2_diverges_with_the_old_rule_only() -> None:
    for rule in ("old", "new"):
        run = told("kip-101-logs-diverge", rule)
        run.has(1, "A", values=["m1", "m2"], high_watermark=2)
        run.has(1, "B", values=["m1", "m2"], high_watermark=2)
        run.has(2, "A", state="stopped", values=["m1", "m2"])
        run.has(2, "B", state="stopped", values=["m1"])
        run.has(3, "B", state="leader", values=["m1", "m3"], high_watermark=2)
    old, new = told("kip-101-logs-diverge", "old"), told("kip-101-logs-diverge", "new")
    old.has(4, "A", values=["m1", "m2", "m4"], high_watermark=3)
    old.has(4, "B", values=["m1", "m3", "m4"], high_watermark=3)
    for name in ("A", "B"):
        new.has(4, name, values=["m1", "m3", "m4"], high_watermark=3)
        assert new.replica(4, name)["epochs"] == new.replica(4, "B")["epochs"]


def test_kip_279_both_walk_back_to_the_common_epoch() -> None:
    for rule in ("old", "new"):
        run = told("kip-279-three-epochs", rule)
        run.has(2, "A", state="leader", leader_epoch=0, values=["m1", "m2", "m3"], isr=["A", "B"])
        run.has(3, "B", state="leader", leader_epoch=1, values=["m1", "m4"], epochs=[[0, 0], [1, 1]], isr=["A", "B"])
        run.has(3, "A", state="follower", leader_epoch=1, values=["m1", "m2", "m3"])
        run.has(4, "A", state="leader", leader_epoch=2, values=["m1", "m2", "m3", "m5"], epochs=[[0, 0], [2, 3]])
        run.has(4, "B", state="stopped", values=["m1", "m4"])
        run.has(5, "A", values=["m1", "m2", "m3", "m5", "m6"], high_watermark=5)
    told("kip-279-three-epochs", "old").has(5, "B", values=["m1", "m4", "m3", "m5", "m6"], high_watermark=5)
    told("kip-279-three-epochs", "new").has(
        5, "B", values=["m1", "m2", "m3", "m5", "m6"], high_watermark=5, epochs=[[0, 0], [2, 3]]
    )


def test_a_zombie_commits_nothing_and_loses_what_it_acknowledged_alone() -> None:
    run = told("zombie-leader")
    run.has(2, "A", state="leader", values=["m1", "z1", "z2"], high_watermark=1)
    assert (run.answer(2, "z1"), run.answer(2, "z2")) == (0, None)
    run.has(3, "A", state="leader", leader_epoch=0, high_watermark=1, isr=["A", "B", "C"])
    run.has(3, "B", state="leader", leader_epoch=1, values=["m1", "m2"], high_watermark=2, isr=["B", "C"])
    assert run.answer(3, "z2") == ErrorCode.REQUEST_TIMED_OUT
    assert [one["value"] for one in run.steps[2]["read"]["records"]] == ["m1"]
    for name in ("A", "B", "C"):
        run.has(4, name, values=["m1", "m2"], epochs=[[0, 0], [1, 1]])
    assert run.facts["read"] == ["m1", "m2"]


def test_a_leader_alone_writes_19_never_and_commits_with_the_old_rule_only() -> None:
    old, new = told("isr-shrinks", "old"), told("isr-shrinks", "new")
    for run in (old, new):
        run.has(2, "A", isr=["A", "B"], high_watermark=1, log_end_offset=2)
        run.has(3, "A", isr=["A"], log_end_offset=2)
        assert run.answer(4, "m3") == ErrorCode.NOT_ENOUGH_REPLICAS == 19
        run.has(4, "A", values=["m1", "m2", "m4"])
        assert run.answer(4, "m4") == 0
        run.has(5, "A", isr=["A", "B"], high_watermark=3)
        run.has(5, "B", values=["m1", "m2", "m4"], high_watermark=3)
    assert old.answer(3, "m2") == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND == 20
    assert new.answer(3, "m2") == ErrorCode.REQUEST_TIMED_OUT
    old.has(4, "A", high_watermark=3)
    new.has(4, "A", high_watermark=1)
    assert old.facts["read_from_a_leader_alone"] == ["m1", "m2", "m4"]
    assert new.facts["read_from_a_leader_alone"] == ["m1"]


@pytest.mark.parametrize("scenario", scenarios().values(), ids=lambda each: each.name)
def test_a_scenario_tells_what_happens_and_what_is_learnt(scenario: Scenario) -> None:
    for rule in scenario.rules:
        run = told(scenario.name, rule)
        assert len(run.steps) >= 3
        assert [step["step"] for step in run.steps] == [*range(1, len(run.steps) + 1)]
        times = [step["at_ms"] for step in run.steps]
        assert times == sorted(times)
        assert run.facts
        texts = [run.beginning["opening"], run.end["lesson"], *(step["text"] for step in run.steps)]
        assert all(text.endswith((".", ".)")) and "  " not in text for text in texts)
        assert 2 <= run.beginning["opening"].count(". ") + 1 <= 6
