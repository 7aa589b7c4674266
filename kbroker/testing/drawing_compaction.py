"""Draws the compacted topic of a seed: in some seeds there is a topic `c`, whose replicas are cleaned all the time.

A topic, its clients and settings of the cleaner are added to a plan that is otherwise unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from kbroker.testing.draws import Draws
from kbroker.testing.model_clients import ProducerPlan, ReaderPlan
from kbroker.testing.plan import Plan, TopicPlan

TOPIC: Final = "c"
_LONG_MS: Final = 7 * 86_400_000
"""No tombstone may go in a run, although a clock may jump by 30 days."""


def has_compaction(seed: int) -> bool:
    """Whether the plan of a seed has a compacted topic."""
    return Draws("cleaned topic", seed).chance(0.2)


def with_compaction(plan: Plan, topic: TopicPlan) -> Plan:
    """A plan with one more topic, which is compacted; `topic` has its name and replicas."""
    draws = Draws("compaction of", plan.seed)
    size = len(topic.replicas[0])
    tombstone_ms = draws.choice([1_000, _LONG_MS])
    configs: dict[str, Any] = {
        "cleanup_policy": "compact",
        "min_insync_replicas": min(size, 2),
        "segment_bytes": draws.choice([1_200, 2_000, 5_000]),
        "index_interval_bytes": draws.choice([0, 500, 4_096]),
        "min_cleanable_dirty_ratio": draws.choice([0.01, 0.3]),
        "min_compaction_lag_ms": draws.choice([0, 0, 500]),
        "delete_retention_ms": tombstone_ms,
        "file_delete_delay_ms": draws.choice([0, 1_000, 60_000]),
    }
    if draws.chance(0.3):
        configs["segment_ms"] = draws.choice([500, 2_000])
    if draws.chance(0.15):
        configs |= {"unclean_leader_election_enable": "true", "min_insync_replicas": 1}
    elif draws.chance(0.2):
        configs |= {"cleanup_policy": "compact,delete", "retention_bytes": draws.choice([5_000, 20_000])}
    partitions = tuple(range(len(topic.replicas)))
    producers = []
    for number in range(draws.between(1, 2)):
        is_idempotent = draws.chance(0.7)
        producers.append(
            ProducerPlan(
                name=f"producer-{TOPIC}{number}",
                topic=TOPIC,
                partitions=partitions,
                acks=-1 if is_idempotent or draws.chance(0.7) else 1,
                is_idempotent=is_idempotent,
                in_flight=draws.choice([1, 3]) if is_idempotent else 1,
                pause_ms=draws.choice([100, 400]),
                max_records=draws.choice([1, 4]),
                value_bytes=draws.choice([20, 200]),
                keys=draws.choice([2, 5, 20]),
                tombstones=draws.choice([0.05, 0.3]),
                tombstone_ms=tombstone_ms,
            )
        )
    reader = ReaderPlan(
        name=f"reader-{TOPIC}",
        topic=TOPIC,
        partitions=partitions,
        from_replica=draws.chance(0.4),
        pause_ms=draws.choice([0, 200]),
    )
    settings = {
        "log.cleaner.backoff.ms": draws.choice([200, 1_000]),
        "log.cleaner.io.max.bytes.per.second": draws.weighted([(1e9, 2), (20_000, 1)]),
    }
    work = plan.workload
    return replace(
        plan,
        settings={**plan.settings, **settings},
        topics=(*plan.topics, TopicPlan(TOPIC, topic.replicas, configs)),
        workload=replace(work, producers=(*work.producers, *producers), readers=(*work.readers, reader)),
    )
