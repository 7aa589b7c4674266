"""How fast a simulated cluster runs: three brokers, one controller, a light load, one core.

python -m tests.bench.bench_simulation
"""

from __future__ import annotations

from kbroker.testing.model_clients import GroupPlan, ProducerPlan, ReaderPlan, Workload
from kbroker.testing.plan import Plan, TopicPlan
from kbroker.testing.simulated_run import run_plan

ROUNDS = 3
SIMULATED_S = 300
LIGHT = Plan(
    seed=1,
    brokers=3,
    duration_ms=SIMULATED_S * 1000,
    settings={},
    pace={"delay_ms": 0.5, "jitter_ms": 0.5, "split": 0},
    topics=(TopicPlan("a", ((1, 2, 3), (2, 3, 1)), {"min_insync_replicas": 2}),),
    workload=Workload(
        producers=(ProducerPlan(name="producer", topic="a", partitions=(0, 1), pause_ms=500, max_records=5),),
        readers=(ReaderPlan(name="reader", topic="a", partitions=(0, 1)),),
        groups=(GroupPlan(name="group", members=1, topic="a", partitions=2, commit_every_ms=1_000),),
    ),
    acts=(),
)


def main() -> None:
    for _ in range(ROUNDS):
        outcome = run_plan(LIGHT)
        assert outcome.is_clean, outcome.findings
        print(
            f"{outcome.simulated_ms / 1000:.0f} simulated s in {outcome.real_ms / 1000:.1f} s:"
            f" {outcome.simulated_ms / outcome.real_ms:.0f} x, {outcome.counts['send-ok']} records"
        )


if __name__ == "__main__":
    main()
