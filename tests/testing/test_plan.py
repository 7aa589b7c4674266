"""Plans are data: equal for equal seeds, the same after a file, and reducible."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from kbroker.testing.acts import ACTS
from kbroker.testing.calm import CALM_MS, calm_plan
from kbroker.testing.drawing import KINDS, drawn_plan
from kbroker.testing.plan import CLIENTS, TRANSACTION_REQUESTS, Plan, plan_of, smaller

SEEDS = range(300)


def weight(plan: Plan) -> tuple[int, ...]:
    """How large a plan is, in the order of what a reader wants to have less of."""
    work = plan.workload
    return (
        len(plan.acts) + len(plan.topics) + sum(len(getattr(work, name)) for name in CLIENTS),
        plan.duration_ms + sum(act.for_ms for act in plan.acts),
        len(plan.settings) + len(plan.drift) + sum(map(bool, plan.pace.values())),
    )


def test_a_seed_gives_the_same_plan_in_every_process() -> None:
    plans = "\n".join(drawn_plan(seed).to_json() for seed in SEEDS)
    program = f"from kbroker.testing.drawing import *\nfor seed in {SEEDS}: print(drawn_plan(seed).to_json())"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert ran.stdout.strip() == plans


def test_every_seed_has_another_plan() -> None:
    assert len({str(drawn_plan(seed)) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_survives_a_file(seed: int) -> None:
    assert plan_of(drawn_plan(seed).to_json()) == drawn_plan(seed)


def test_every_kind_of_act_is_drawn_and_can_begin() -> None:
    drawn = {act.kind for seed in SEEDS for act in drawn_plan(seed).acts}
    assert drawn == set(ACTS) > set(KINDS)


def test_half_of_the_plans_have_transactions_of_both_protocols() -> None:
    versions = Counter(plan.transaction_version for seed in SEEDS if (plan := drawn_plan(seed)).workload.transactions)
    assert versions.keys() == {0, 2}
    assert len(SEEDS) / 3 < versions.total() < 2 * len(SEEDS) / 3


def test_requests_of_one_epoch_arrive_neither_twice_nor_late() -> None:
    """KIP-890: before transaction.version 2 they could count for the next transaction."""
    frames = [
        act.values
        for seed in SEEDS
        for act in drawn_plan(seed).acts
        if act.kind == "frame" and act.values["request"] in TRANSACTION_REQUESTS
        if drawn_plan(seed).transaction_version == 0
    ]
    assert len(frames) > 20
    assert not [values for values in frames if values["fault"] == "repeat" or values["delay_ms"] > 1_000]


def test_a_request_meets_a_later_transaction_only_if_each_one_has_an_epoch() -> None:
    plans = [plan for seed in SEEDS if (plan := drawn_plan(seed)) and "late-repetition" in {a.kind for a in plan.acts}]
    assert len(plans) > 10
    assert {plan.transaction_version for plan in plans} == {2}
    drawn = {(a.values["request"], a.values["turns"]) for p in plans for a in p.acts if a.kind == "late-repetition"}
    assert len(drawn) == 4, "each request, one and two transactions late"


def test_some_plans_have_a_compacted_topic_that_is_written_with_keys() -> None:
    plans = [plan for plan in map(drawn_plan, SEEDS) if any(topic.is_compacted for topic in plan.topics)]
    assert len(SEEDS) / 8 < len(plans) < len(SEEDS) / 4
    for plan in plans:
        compacted = {topic.name for topic in plan.topics if topic.is_compacted}
        assert {one.topic for one in plan.workload.producers if one.keys} == compacted
    policies = {topic.configs["cleanup_policy"] for plan in plans for topic in plan.topics if topic.is_compacted}
    assert policies == {"compact", "compact,delete"}


def test_the_clocks_of_some_runs_drift() -> None:
    drifting = sum(bool(drawn_plan(seed).drift) for seed in SEEDS)
    assert len(SEEDS) / 8 < drifting < len(SEEDS) / 2


def test_calm_plans_have_bursts_of_faults_all_the_time() -> None:
    plan = next(plan for plan in map(calm_plan, SEEDS) if plan.acts)
    assert plan_of(plan.to_json()) == plan
    assert plan.duration_ms == CALM_MS
    assert len({act.at_ms // 600_000 for act in plan.acts}) > 6
    assert max(act.at_ms + act.for_ms for act in plan.acts) < CALM_MS


def test_some_seeds_have_no_acts() -> None:
    quiet = sum(not drawn_plan(seed).acts for seed in SEEDS)
    assert len(SEEDS) / 20 < quiet < len(SEEDS) / 4


@pytest.mark.parametrize("seed", range(20))
def test_reduced_plans_are_smaller(seed: int) -> None:
    plan = drawn_plan(seed)
    found = smaller(plan)
    assert found
    for one in found:
        assert any(less < more for less, more in zip(weight(one), weight(plan), strict=True))
        assert one.workload.producers or one.workload.transactions
