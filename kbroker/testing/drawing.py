"""Draws the plan of a seed.

Each part draws from a stream of its own, so a plan without one act is otherwise unchanged. Each seed allows some kinds
of acts and not others (a swarm: a run in which everything may happen at once hides what two faults do together), and
one seed in eight has none at all.

Source: Groce et al., "Swarm testing" (ISSTA'12); the plans of FoundationDB's and TigerBeetle's simulators.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kbroker.testing.cluster import CONTROLLER
from kbroker.testing.composed_acts import FAR_AHEAD_MS
from kbroker.testing.disk_nodes import POWER_LOSSES
from kbroker.testing.drawing_compaction import TOPIC as COMPACTED
from kbroker.testing.drawing_compaction import has_compaction, with_compaction
from kbroker.testing.drawing_transactions import TOPIC, has_transactions, with_transactions
from kbroker.testing.draws import Draws
from kbroker.testing.model_clients import DeleterPlan, GroupPlan, ProducerPlan, ReaderPlan, Workload
from kbroker.testing.plan import REQUESTS, REQUESTS_OF_BROKERS, SYNCS_ALL, Act, Plan, TopicPlan, Values

LONGEST_MS: Final = 12_000
_DAY_MS: Final = 86_400_000


def drawn_plan(seed: int) -> Plan:
    """The plan of a seed."""
    draws = Draws("topology", seed)
    brokers = draws.weighted([(3, 6), (2, 1), (4, 1)])
    duration_ms = draws.between(15, 45) * 1000
    topics, settings = _topics(seed, brokers), _settings(seed)
    plan = Plan(
        seed=seed,
        brokers=brokers,
        duration_ms=duration_ms,
        settings=settings,
        pace={
            "delay_ms": draws.choice([0.1, 0.5, 2]),
            "jitter_ms": draws.choice([0, 0.5, 5]),
            "split": draws.choice([0, 0, 0.05, 0.5]),
        },
        topics=topics,
        workload=_workload(seed, topics),
        acts=drawn_acts(seed, brokers=brokers, duration_ms=duration_ms, able=abilities(topics, settings)),
        drift=_drift(seed, brokers),
    )
    if has_transactions(seed):
        plan = with_transactions(plan, _topic(Draws("topic", seed, TOPIC), TOPIC, brokers))
    if has_compaction(seed):
        plan = with_compaction(plan, _topic(Draws("topic", seed, COMPACTED), COMPACTED, brokers))
    return plan


def _drift(seed: int, brokers: int) -> tuple[float, ...]:
    """In a quarter of the runs the clocks of the brokers drift, by up to half a second in 1,000."""
    draws = Draws("drift", seed)
    if draws.chance(0.75):
        return ()
    return tuple(draws.between(-500, 500) / 1_000_000 for _ in range(brokers))


def _settings(seed: int) -> dict[str, object]:
    draws = Draws("settings", seed)
    session_ms = draws.choice([3_000, 9_000])
    found: dict[str, object] = {
        "replica.lag.time.max.ms": draws.choice([2_000, 10_000]),
        "broker.session.timeout.ms": session_ms,
        "broker.heartbeat.interval.ms": session_ms // 4,
        "replica.fetch.wait.max.ms": draws.choice([100, 500]),
        "replica.high.watermark.checkpoint.interval.ms": draws.choice([500, 5_000]),
        "offsets.topic.num.partitions": draws.choice([1, 3]),
        "offsets.retention.check.interval.ms": 1_000,
        "group.initial.rebalance.delay.ms": draws.choice([0, 500]),
        "group.min.session.timeout.ms": 1_000,
        "remote.log.manager.task.interval.ms": draws.choice([200, 1_000]),
        "log.retention.check.interval.ms": draws.choice([500, 2_000]),
        "log.initial.task.delay.ms": 500,
        "metadata.log.max.record.bytes.between.snapshots": draws.choice([2_000, 20_000_000]),
        "unclean.leader.election.interval.ms": 1_000,
        "log.flush.offset.checkpoint.interval.ms": draws.choice([1_000, 60_000]),
    }
    return found | ({SYNCS_ALL: 1} if draws.chance(0.2) else {})


def _topics(seed: int, brokers: int) -> tuple[TopicPlan, ...]:
    return tuple(_topic(Draws("topic", seed, name), name, brokers) for name in ("a", "b")[: 1 + Draws(seed).below(2)])


def _topic(draws: Draws, name: str, brokers: int) -> TopicPlan:
    size = min(brokers, 3)
    replicas = []
    for _ in range(draws.between(1, 2)):
        first = draws.below(brokers)
        replicas.append(tuple((first + number) % brokers + 1 for number in range(size)))
    configs: dict[str, Any] = {
        "min_insync_replicas": min(size, 2),
        "segment_bytes": draws.choice([5_000, 20_000, 1 << 20]),
        "index_interval_bytes": draws.choice([0, 500, 4_096]),
        "flush_messages": draws.weighted([(None, 3), (1, 1)]),
    }
    if draws.chance(0.5):
        configs |= {
            "segment_bytes": draws.choice([5_000, 20_000]),
            "remote_storage_enable": "true",
            "local_retention_bytes": draws.choice([1, 10_000, 100_000]),
        }
    if draws.chance(0.35 if "remote_storage_enable" in configs else 0.15):
        configs |= {"unclean_leader_election_enable": "true", "min_insync_replicas": 1}
    if draws.chance(0.2):
        configs |= {
            "segment_bytes": min(5_000, configs["segment_bytes"]),
            "retention_bytes": max(draws.choice([10_000, 40_000]), configs.get("local_retention_bytes", 0)),
        }
    return TopicPlan(name, tuple(replicas), {key: value for key, value in configs.items() if value is not None})


def _workload(seed: int, topics: Sequence[TopicPlan]) -> Workload:
    producers, readers, groups, deleters = [], [], [], []
    for topic in topics:
        draws = Draws("clients", seed, topic.name)
        partitions = tuple(range(len(topic.replicas)))
        for number in range(draws.between(1, 2)):
            is_idempotent = draws.chance(0.7)
            producers.append(
                ProducerPlan(
                    name=f"producer-{topic.name}{number}",
                    topic=topic.name,
                    partitions=partitions,
                    acks=-1 if is_idempotent or draws.chance(0.7) else 1,
                    is_idempotent=is_idempotent,
                    in_flight=draws.choice([1, 3, 5]) if is_idempotent else 1,
                    pause_ms=draws.choice([200, 500, 2_000]),
                    max_records=draws.choice([1, 4]),
                    value_bytes=draws.choice([20, 200, 800]),
                )
            )
        readers.append(
            ReaderPlan(
                name=f"reader-{topic.name}",
                topic=topic.name,
                partitions=partitions,
                from_replica=draws.chance(0.3),
                pause_ms=draws.choice([0, 200]),
            )
        )
        if draws.chance(0.5):
            groups.append(
                GroupPlan(
                    name=f"group-{topic.name}",
                    members=draws.between(1, 2),
                    topic=topic.name,
                    partitions=len(partitions),
                    commit_every_ms=draws.choice([200, 1_000]),
                    leaves=draws.chance(0.3),
                    commits_late=True,
                    watchers=1,
                )
            )
        own = Draws("groups", seed, topic.name)
        if own.chance(0.4):
            groups.append(
                GroupPlan(
                    name=f"standalone-{topic.name}",
                    members=own.between(1, 2),
                    topic=topic.name,
                    partitions=len(partitions),
                    commit_every_ms=own.choice([200, 1_000]),
                    is_standalone=True,
                    watchers=1,
                )
            )
        own = Draws("deleter", seed, topic.name)
        if own.chance(0.2):
            deleters.append(
                DeleterPlan(
                    name=f"deleter-{topic.name}",
                    topic=topic.name,
                    partitions=partitions,
                    every_ms=own.choice([1_000, 5_000]),
                    rest=own.choice([0, 5, 50]),
                )
            )
    return Workload(producers=tuple(producers), readers=tuple(readers), groups=tuple(groups), deleters=tuple(deleters))


# Acts


def _power(draws: Draws, _brokers: int) -> Values:
    return {"loss": draws.choice(POWER_LOSSES).value}


def _pace(draws: Draws, _brokers: int) -> Values:
    return {"delay_ms": draws.choice([20, 100, 400]), "jitter_ms": draws.choice([0, 50]), "split": 0.1}


def _frame(draws: Draws, _brokers: int) -> Values:
    is_client = draws.chance(0.6)
    names = list(REQUESTS if is_client else REQUESTS_OF_BROKERS)
    return {
        "fault": draws.choice(["delay", "repeat", "drop-reply"]),
        "from": "client" if is_client else "node",
        "request": draws.choice(names),
        "delay_ms": draws.choice([10, 1_000, 10_000]),
        "times": draws.between(1, 5),
    }


def _store(draws: Draws, _brokers: int) -> Values:
    return {
        "operation": draws.choice(["*", "copy", "read", "index", "delete"]),
        "is_applied": draws.chance(0.3),
        "damage": "",
        "times": draws.choice([1, 3, -1]),
    }


def _damage(draws: Draws, _brokers: int) -> Values:
    return {
        "operation": draws.choice(["read", "index"]),
        "is_applied": False,
        "damage": draws.choice(["truncated", "wrong"]),
        "times": draws.between(1, 3),
    }


def _disk(draws: Draws, _brokers: int) -> Values:
    return {
        "name": draws.weighted([("write", 1), ("sync", 3), ("rename", 1), ("create", 1)]),
        "path": draws.weighted([("*", 1), ("*.log", 3), ("*checkpoint*", 1), ("*index", 1)]),
        "error": draws.choice([5, 28]),
        "written": draws.choice([0, 17]),
        # The node also loses its power at the end, if the error has not ended it.
        "loss": draws.choice(POWER_LOSSES).value if draws.chance(0.5) else "",
    }


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of act: how often it is drawn, on how many nodes, and its values."""

    weight: int
    nodes: Callable[[Draws, int], tuple[int, ...]]
    values: Callable[[Draws, int], Values] = lambda _draws, _brokers: {}
    needs: str = ""


def _broker(draws: Draws, brokers: int) -> tuple[int, ...]:
    return (draws.between(1, brokers),)


def _node(draws: Draws, brokers: int) -> tuple[int, ...]:
    return (CONTROLLER,) if draws.chance(0.2) else _broker(draws, brokers)


def _two(draws: Draws, brokers: int) -> tuple[int, ...]:
    first, second = _broker(draws, brokers)[0], _node(draws, brokers)[0]
    if first == second:
        second = first % brokers + 1
    return (first, second) if draws.chance(0.5) else (second, first)


def _no_node(_draws: Draws, _brokers: int) -> tuple[int, ...]:
    return ()


KINDS: Final[Mapping[str, _Kind]] = {
    "kill": _Kind(6, _node),
    "power-loss": _Kind(4, _node, _power),
    "restart": _Kind(3, _node),
    "cut": _Kind(4, _two),
    "cut-both-ways": _Kind(3, _two),
    "isolate": _Kind(3, _node),
    "slow-link": _Kind(2, _two, _pace),
    "reset": _Kind(2, _node),
    "frame": _Kind(5, _no_node, _frame),
    "slow-disk": _Kind(2, _node, lambda draws, _: {"slow_ms": draws.choice([50, 500, 3_000])}),
    "disk-error": _Kind(4, _node, _disk),
    "clock-jump": _Kind(
        2, _node, lambda draws, _: {"ms": draws.choice([-_DAY_MS, -5_000, 5_000, _DAY_MS, FAR_AHEAD_MS])}
    ),
    "store-error": _Kind(6, _no_node, _store, needs="tier"),
    "store-damage": _Kind(2, _no_node, _damage, needs="tier"),
    "store-slow": _Kind(2, _no_node, lambda draws, _: {"ms": draws.choice([200, 3_000])}, needs="tier"),
    "blackout": _Kind(4, _no_node, _power, needs="syncs"),
    "overtake": _Kind(8, _no_node, lambda draws, _: {"turn": draws.below(6), "ends": draws.chance(0.7)}, needs="lossy"),
    "kill-copier": _Kind(4, _no_node, needs="tier"),
    "ghost-fetch": _Kind(2, _broker),
    "elect-preferred": _Kind(2, _no_node),
    "reassign": _Kind(2, _no_node, lambda draws, _: {"turn": draws.between(1, 3)}),
}


def abilities(topics: Sequence[TopicPlan], settings: Values) -> set[str]:
    """What acts may need."""
    found = {"tier" for topic in topics if topic.is_tiered} | {"lossy" for topic in topics if topic.is_lossy}
    return found | {"", *(["syncs"] if settings.get(SYNCS_ALL) == 1 else [])}


def drawn_acts(*key: int | str, brokers: int, duration_ms: int, able: Container[str]) -> tuple[Act, ...]:
    """The acts of a seed, or of another key, in the first three quarters of a time."""
    draws = Draws("swarm", *key)
    if draws.chance(1 / 8):
        return ()
    allowed = [name for name, kind in KINDS.items() if draws.chance(0.6 if kind.needs else 0.4) and kind.needs in able]
    if not allowed:
        allowed = ["kill"]
    found = []
    for number in range(draws.between(1, 12)):
        own = Draws("act", *key, number)
        name = own.weighted([(name, KINDS[name].weight) for name in allowed])
        kind = KINDS[name]
        found.append(
            Act(
                kind=name,
                at_ms=own.below(duration_ms * 3 // 4),
                for_ms=own.choice([100, 1_000, 4_000, LONGEST_MS]),
                nodes=kind.nodes(own, brokers),
                values=kind.values(own, brokers),
            )
        )
    return tuple(sorted(found, key=lambda act: act.at_ms))
