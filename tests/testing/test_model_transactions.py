"""Model clients with transactions, and those of KIP-848: a cluster without faults gives no findings after real work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.testing.model_clients import GroupPlan, ProducerPlan, ReaderPlan, TransactionsPlan, Workload
from kbroker.testing.plan import Plan, TopicPlan, plan_of
from kbroker.testing.searching import in_child
from kbroker.testing.simulated_run import Outcome

pytestmark = pytest.mark.long

WRITER = TransactionsPlan(name="writer", topic="t", partitions=(0, 1), timeout_ms=2_000, pause_ms=300, aborts=0.3)
WORKLOAD = Workload(
    producers=(ProducerPlan(name="producer", topic="a", partitions=(0,), pause_ms=300),),
    readers=(
        ReaderPlan(name="reader-a", topic="a", partitions=(0,)),
        ReaderPlan(name="committed", topic="t", partitions=(0, 1), reads_committed=True),
        ReaderPlan(name="uncommitted", topic="t", partitions=(0, 1), from_replica=True),
    ),
    groups=(
        GroupPlan(
            name="copiers",
            members=2,
            topic="a",
            partitions=1,
            leaves=True,
            watchers=1,
            writes_to="t",
            outputs=2,
            timeout_ms=2_000,
        ),
    ),
    transactions=(WRITER,),
)
PLAN = Plan(
    seed=1,
    brokers=3,
    duration_ms=8_000,
    settings={
        "transaction.state.log.num.partitions": 2,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        "group.min.session.timeout.ms": 1_000,
        "group.initial.rebalance.delay.ms": 0,
    },
    pace={"delay_ms": 0.5, "jitter_ms": 0.5, "split": 0},
    topics=(
        TopicPlan("a", ((1, 2, 3),), {"min_insync_replicas": 2}),
        TopicPlan("t", ((1, 2, 3), (2, 3, 1)), {"min_insync_replicas": 2}),
    ),
    workload=WORKLOAD,
    acts=(),
)


def judged(plan: Plan) -> Outcome:
    outcome = in_child(plan)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    return outcome


@pytest.mark.parametrize("version", [0, 2])
def test_k5_transactions_without_faults_break_no_promise(version: int) -> None:
    counts = judged(replace(PLAN, transaction_version=version)).counts
    assert counts["txn-ok"] > 10
    assert counts["send-ok"] > counts["txn-ok"]
    assert counts["commit-ok"] > 5
    assert counts["stable-ok"] > 5
    assert counts["final-info"] > counts["txn-ok"], "a marker for each transaction at least"


@pytest.mark.parametrize("version", [0, 2])
def test_k11_transactions_of_fenced_dead_and_stalled_producers_are_aborted(version: int) -> None:
    writer = replace(WRITER, producers=2, dies=0.2, stalls=0.2, takeover_ms=1_000)
    work = replace(WORKLOAD, groups=(), transactions=(writer,))
    counts = judged(replace(PLAN, workload=work, transaction_version=version)).counts
    assert counts["init-ok"] > 4
    assert counts["txn-fail"] + counts["send-fail"] > 0, "nobody was fenced"


def test_k10_members_of_kip_848_share_partitions_and_commit() -> None:
    group = GroupPlan(
        name="consumers", members=3, topic="t", partitions=2, commit_every_ms=300, leaves=True, watchers=1,
        is_consumer=True,
    )  # fmt: skip
    counts = judged(replace(PLAN, workload=replace(WORKLOAD, groups=(group,)), group_version=1)).counts
    assert counts["own-ok"] > 4
    assert counts["commit-ok"] > 10
    assert counts["committed-ok"] > 10


def test_a_plan_with_transactions_survives_a_file() -> None:
    plan = replace(PLAN, transaction_version=2)
    assert plan_of(plan.to_json()) == plan
    assert "transaction.version=2" in str(plan)
