"""The scenarios, step by step: what KIP-101, KIP-279 and the promises of replication say about each moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.testing.scenarios import Scenario, scenarios
from tests.testing.told import told
from wire.errors import ErrorCode

pytestmark = pytest.mark.long

MANUAL = Path(__file__).parents[2] / "docs" / "scenarios.md"


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


def test_kip_101_scenario_1_needs_no_restart_and_no_unclean_election() -> None:
    for rule in ("old", "new"):
        run = told("kip-101-record-lost-in-sync", rule)
        run.has(2, "C", state="leader", high_watermark=2, isr=["A", "B", "C"])
        for name in ("A", "B"):
            run.has(2, name, values=["m1", "m2"], high_watermark=1)
        assert run.answer(2, "m2") == 0
        run.has(3, "A", state="leader", leader_epoch=1, isr=["A", "B"], values=["m1", "m2"])
    old, new = told("kip-101-record-lost-in-sync", "old"), told("kip-101-record-lost-in-sync", "new")
    old.has(3, "B", state="follower", values=["m1"])
    new.has(3, "B", state="follower", values=["m1", "m2"])
    old.has(4, "B", state="leader", leader_epoch=2, epochs=[[0, 0], [2, 1]])
    new.has(4, "B", state="leader", leader_epoch=2, epochs=[[0, 0], [2, 2]])
    for name in ("A", "B", "C"):
        old.has(5, name, values=["m1"])
        new.has(5, name, values=["m1", "m2"])
    assert (old.facts["lost"], new.facts["lost"]) == (["m2"], [])


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
    assert new.replica(4, "A")["epochs"] == new.replica(4, "B")["epochs"]


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
        run.has(4, name, values=["m1", "m2"], epochs=[[0, 0], [1, 1]], high_watermark=2)
    assert run.facts["read"] == ["m1", "m2"]


def test_a_leader_below_min_isr_commits_with_the_old_rule_only() -> None:
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


def numbered(letter: str, first: int, last: int) -> list[str]:
    return [f"{letter}{number}" for number in range(first, last + 1)]


def test_kip_405_scenario_1_an_empty_follower_builds_its_history_from_the_tier() -> None:
    run = told("kip-405-empty-follower")
    epochs = [[0, 0], [2, 3], [4, 5], [6, 7]]
    run.has(1, "A", local_log_start_offset=3, log_start_offset=0, epochs=epochs, values=numbered("m", 3, 7))
    assert run.segments(1) == [(0, 2), (3, 5)]
    assert [one["epochs"] for one in run.steps[0]["tier"]] == [[[0, 0]], [[2, 3], [4, 5]]]
    run.has(2, "B", log_start_offset=0, local_log_start_offset=3, log_end_offset=3, epochs=[[0, 0]], values=[])
    run.has(3, "B", local_log_start_offset=3, epochs=epochs, values=numbered("m", 3, 7), high_watermark=8)
    run.has(4, "B", state="leader", local_log_start_offset=3)
    assert run.facts["read"] == numbered("m", 0, 7)


def test_kip_405_scenario_2_a_follower_behind_starts_again() -> None:
    run = told("kip-405-follower-behind")
    run.has(1, "B", state="stopped", values=numbered("m", 0, 3))
    run.has(1, "A", local_log_start_offset=0, values=numbered("m", 0, 9))
    assert run.facts["end_of_epoch"] == 5
    run.has(2, "A", local_log_start_offset=9, values=numbered("m", 9, 11))
    assert run.segments(2) == [(0, 2), (3, 5), (6, 8)]
    run.has(3, "B", log_end_offset=4, values=numbered("m", 0, 3), epochs=[[0, 0], [2, 3]])
    run.has(
        4,
        "B",
        log_start_offset=0,
        local_log_start_offset=9,
        log_end_offset=9,
        values=[],
        epochs=[[0, 0], [2, 3], [4, 5], [6, 7]],
    )
    run.has(5, "B", values=numbered("m", 9, 11), high_watermark=12)
    assert run.facts["read"] == numbered("m", 0, 11)


def test_kip_405_scenario_3_lost_records_do_not_come_back_from_the_tier() -> None:
    run = told("kip-405-lost-records")
    run.has(1, "B", values=numbered("m", 0, 3), high_watermark=4)
    assert run.segments(1) == [(0, 2)]
    run.has(2, "B", state="stopped", values=["m0"])
    run.has(3, "B", state="leader", values=["m0", *numbered("n", 1, 3)], epochs=[[0, 0], [3, 1]])
    run.has(4, "A", state="follower", values=["m0", *numbered("n", 1, 3)], epochs=[[0, 0], [3, 1]])
    for name in ("A", "B"):
        run.has(5, name, local_log_start_offset=3, high_watermark=9)
    both = [one["epochs"] for one in run.steps[3]["tier"] if (one["start_offset"], one["end_offset"]) == (0, 2)]
    assert both == [[[0, 0]], [[0, 0], [3, 1]]]
    assert run.facts["read"] == ["m0", *numbered("n", 1, 8)]


def test_kip_405_scenario_4_an_unclean_leader_does_not_take_from_the_tier_what_it_lost() -> None:
    run = told("kip-405-unclean-election")
    run.has(1, "A", isr=["A"], high_watermark=7, values=numbered("m", 0, 6))
    run.has(1, "B", log_end_offset=2)
    assert run.segments(1) == [(0, 2), (3, 5)]
    run.has(2, "B", state="leader", leader_epoch=1, isr=["B"], values=["m0", "m1", "n2", "n3"], epochs=[[0, 0], [1, 2]])
    run.has(3, "A", state="follower", values=["m0", "m1", "n2", "n3"], epochs=[[0, 0], [1, 2]])
    for name in ("A", "B"):
        run.has(4, name, local_log_start_offset=3, high_watermark=9)
    assert run.segments(4) == [(0, 2), (0, 2), (3, 5), (3, 5)]
    assert run.facts["read"] == ["m0", "m1", *numbered("n", 2, 8)]


def test_kip_405_scenario_5_each_leader_serves_its_own_history() -> None:
    run = told("kip-405-two-histories")
    assert run.segments(2) == [(0, 2), (0, 2), (3, 5), (3, 5)]
    run.has(2, "B", state="leader", local_log_start_offset=3, epochs=[[0, 0], [1, 2]])
    assert run.facts["read_from_B"] == ["m0", "m1", *numbered("n", 2, 8)]
    run.has(3, "A", state="leader", leader_epoch=2, local_log_start_offset=3, epochs=[[0, 0], [2, 7]])
    assert run.facts["read_from_A"] == numbered("m", 0, 9)
    run.has(4, "C", state="follower", epochs=[[0, 0], [2, 7]], values=numbered("m", 3, 9))


def test_a_leader_that_changes_in_mid_copy_leaves_no_hole_and_no_orphan() -> None:
    run = told("leader-changes-in-mid-copy")
    assert (run.segments(1), run.segments(1, finished=False)) == ([], [(0, 2)])
    run.has(2, "B", state="leader", leader_epoch=1)
    assert (run.segments(2), run.segments(2, finished=False)) == ([], [(0, 2)])
    assert [(one["copied_by"], one["is_finished"]) for one in run.steps[2]["tier"]] == [("B", True)]
    assert run.segments(4) == [(0, 2), (3, 5), (6, 8)]
    run.has(4, "B", local_log_start_offset=3)
    assert run.facts["read"] == numbered("m", 0, 9)
    assert run.facts["objects"] == 3


def test_an_empty_follower_takes_the_whole_history_or_nothing() -> None:
    run = told("empty-follower-joins")
    run.has(2, "B", log_end_offset=0, local_log_start_offset=0, epochs=[], values=[])
    run.has(3, "B", log_end_offset=8, local_log_start_offset=3, epochs=[[0, 0]], values=numbered("m", 3, 7))
    run.has(4, "B", state="leader", log_end_offset=8)
    assert run.answer(4, "m2") == 0
    assert (run.facts["retry"], run.facts["end"], run.facts["read"]) == (2, 8, numbered("m", 0, 7))


@pytest.mark.parametrize("scenario", scenarios().values(), ids=lambda each: each.name)
def test_a_scenario_tells_what_happens_and_what_is_learnt(scenario: Scenario) -> None:
    for rule in scenario.rules:
        run = told(scenario.name, rule)
        assert len(run.steps) >= 3
        assert run.facts
        texts = [run.beginning["opening"], run.end["lesson"], *(step["text"] for step in run.steps)]
        assert all(text.endswith((".", ".)")) and "  " not in text for text in texts)
        assert 2 <= run.beginning["opening"].count(". ") + 1 <= 6


def test_the_manual_lists_the_scenarios_in_their_order() -> None:
    table = [line.strip("| ").split(" | ") for line in MANUAL.read_text().splitlines() if line.startswith("| `")]
    assert [name.strip("`") for name, _, _ in table] == list(scenarios())
    assert all(source in scenarios()[name.strip("`")].source for name, _, source in table)
