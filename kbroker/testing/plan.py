"""Plans of simulated runs: what a cluster looks like, what clients do, and what goes wrong when.

A plan is drawn from a seed and is data only: it can be written to a file, cut down, and run again. Each part draws from
a stream of its own, so a plan without one act is otherwise unchanged.

Each seed allows some kinds of acts and not others (a swarm: a run in which everything may happen at once hides what two
faults do together), and one seed in eight has none at all.

Source: Groce et al., "Swarm testing" (ISSTA'12); the plans of FoundationDB's and TigerBeetle's simulators.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from kbroker.testing.cluster import CONTROLLER
from kbroker.testing.disk_nodes import POWER_LOSSES
from kbroker.testing.draws import Draws
from kbroker.testing.model_clients import GroupPlan, ProducerPlan, ReaderPlan, Workload

Values = Mapping[str, Any]
REQUESTS: Final = {"produce": 0, "fetch": 1, "list_offsets": 2, "metadata": 3, "offset_commit": 8, "join_group": 11}
REQUESTS_OF_BROKERS: Final = {"fetch": 1, "offset_for_leader_epoch": 23, "alter_partition": 56, "heartbeat": 63}
LONGEST_MS: Final = 12_000
_DAY_MS: Final = 86_400_000
_LEAST_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic; `replicas` has the broker ids of each partition."""

    name: str
    replicas: tuple[tuple[int, ...], ...]
    configs: Values

    @property
    def is_tiered(self) -> bool:
        """Whether its segments move to the tier."""
        return self.configs.get("remote_storage_enable") == "true"


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is done to the cluster.

    Shape  kind is a name in `kbroker.testing.acts`; nodes are what it is done to; values are its arguments
    Units  at_ms after the clients have begun; it ends for_ms later
    """

    kind: str
    at_ms: int
    for_ms: int
    nodes: tuple[int, ...] = ()
    values: Values = field(default_factory=dict)

    def __str__(self) -> str:
        nodes = f" of {', '.join(map(str, self.nodes))}" if self.nodes else ""
        values = "".join(f" {name}={value}" for name, value in self.values.items())
        return f"{self.at_ms / 1000:7.3f} s: {self.kind}{nodes} for {self.for_ms / 1000:.3f} s{values}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.

    Shape  drift is how much faster the wall clock of each broker runs than time, as a ratio; empty: not at all
    """

    seed: int
    brokers: int
    duration_ms: int
    settings: Values
    pace: Values
    topics: tuple[TopicPlan, ...]
    workload: Workload
    acts: tuple[Act, ...]
    drift: tuple[float, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.brokers} brokers, {self.duration_ms / 1000:.0f} s, network {dict(self.pace)}",
            *([f"  the wall clocks drift by {list(self.drift)}"] if self.drift else []),
            *(f"  {name}={value}" for name, value in self.settings.items()),
            *(f"  topic {topic.name} {list(topic.replicas)} {dict(topic.configs)}" for topic in self.topics),
            *(f"  {client}" for client in (*self.workload.producers, *self.workload.readers, *self.workload.groups)),
            *(f"  {act}" for act in self.acts),
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as text that `plan_of` reads."""
        return json.dumps(asdict(self), indent=1)


def plan_of(text: str) -> Plan:
    """The plan that `Plan.to_json` wrote. Errors: KeyError, TypeError or ValueError for another text."""
    found = json.loads(text)
    clients = found["workload"]
    return Plan(
        **{name: found[name] for name in ("seed", "brokers", "duration_ms", "settings", "pace")},
        topics=tuple(
            TopicPlan(**{**topic, "replicas": tuple(tuple(ids) for ids in topic["replicas"])})
            for topic in found["topics"]
        ),
        workload=Workload(
            producers=tuple(ProducerPlan(**_with_tuples(one)) for one in clients["producers"]),
            readers=tuple(ReaderPlan(**_with_tuples(one)) for one in clients["readers"]),
            groups=tuple(GroupPlan(**_with_tuples(one)) for one in clients["groups"]),
        ),
        acts=tuple(Act(**_with_tuples(act)) for act in found["acts"]),
        drift=tuple(found.get("drift", ())),
    )


def _with_tuples(found: Values) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def drawn_plan(seed: int) -> Plan:
    """The plan of a seed."""
    draws = Draws("topology", seed)
    brokers = draws.weighted([(3, 6), (2, 1), (4, 1)])
    duration_ms = draws.between(15, 45) * 1000
    topics = _topics(seed, brokers)
    return Plan(
        seed=seed,
        brokers=brokers,
        duration_ms=duration_ms,
        settings=_settings(seed),
        pace={
            "delay_ms": draws.choice([0.1, 0.5, 2]),
            "jitter_ms": draws.choice([0, 0.5, 5]),
            "split": draws.choice([0, 0, 0.05, 0.5]),
        },
        topics=topics,
        workload=_workload(seed, topics),
        acts=_acts(seed, brokers, duration_ms, is_tiered=any(topic.is_tiered for topic in topics)),
        drift=_drift(seed, brokers),
    )


def _drift(seed: int, brokers: int) -> tuple[float, ...]:
    """In a quarter of the runs the clocks of the brokers drift, by up to half a second in 1,000."""
    draws = Draws("drift", seed)
    if draws.chance(0.75):
        return ()
    return tuple(draws.between(-500, 500) / 1_000_000 for _ in range(brokers))


def _settings(seed: int) -> dict[str, object]:
    draws = Draws("settings", seed)
    session_ms = draws.choice([3_000, 9_000])
    return {
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
    }


def _topics(seed: int, brokers: int) -> tuple[TopicPlan, ...]:
    return tuple(_topic(Draws("topic", seed, name), name, brokers) for name in ("a", "b")[: 1 + Draws(seed).below(2)])


def _topic(draws: Draws, name: str, brokers: int) -> TopicPlan:
    size = min(brokers, 3)
    replicas = []
    for _ in range(draws.between(1, 2)):
        first = draws.below(brokers)
        replicas.append(tuple((first + number) % brokers + 1 for number in range(size)))
    configs: dict[str, object] = {
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
    return TopicPlan(name, tuple(replicas), {key: value for key, value in configs.items() if value is not None})


def _workload(seed: int, topics: Sequence[TopicPlan]) -> Workload:
    producers, readers, groups = [], [], []
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
    return Workload(producers=tuple(producers), readers=tuple(readers), groups=tuple(groups))


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
        "name": draws.choice(["write", "sync", "rename", "create"]),
        "path": draws.choice(["*", "*.log", "*checkpoint*", "*index"]),
        "error": draws.choice([5, 28]),
        "written": draws.choice([0, 17]),
    }


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of act: how often it is drawn, on how many nodes, and its values."""

    weight: int
    nodes: Callable[[Draws, int], tuple[int, ...]]
    values: Callable[[Draws, int], Values] = lambda _draws, _brokers: {}
    needs_tier: bool = False


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
    "disk-error": _Kind(2, _broker, _disk),
    "clock-jump": _Kind(
        2, _node, lambda draws, _: {"ms": draws.choice([-_DAY_MS, -5_000, 5_000, _DAY_MS, 30 * _DAY_MS])}
    ),
    "store-error": _Kind(3, _no_node, _store, needs_tier=True),
    "store-damage": _Kind(2, _no_node, _damage, needs_tier=True),
    "store-slow": _Kind(2, _no_node, lambda draws, _: {"ms": draws.choice([200, 3_000])}, needs_tier=True),
    "elect-preferred": _Kind(2, _no_node),
    "reassign": _Kind(2, _no_node, lambda draws, _: {"turn": draws.between(1, 3)}),
}


def _acts(seed: int, brokers: int, duration_ms: int, *, is_tiered: bool) -> tuple[Act, ...]:
    draws = Draws("swarm", seed)
    if draws.chance(1 / 8):
        return ()
    allowed = [name for name, kind in KINDS.items() if (is_tiered or not kind.needs_tier) and draws.chance(0.4)]
    if not allowed:
        allowed = ["kill"]
    found = []
    for number in range(draws.between(1, 10)):
        own = Draws("act", seed, number)
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


def smaller(plan: Plan) -> list[Plan]:
    """Plans that are a little smaller: fewer acts first, then fewer clients and topics, then simpler settings."""
    found = []
    acts = plan.acts
    for size in (len(acts) // 2, len(acts) // 4, 1):
        if size:
            found += [replace(plan, acts=acts[:start] + acts[start + size :]) for start in range(0, len(acts), size)]
    if plan.duration_ms > _LEAST_MS and (not acts or acts[-1].at_ms < plan.duration_ms // 2):
        found.append(replace(plan, duration_ms=plan.duration_ms // 2))
    work = plan.workload
    for name in ("producers", "readers", "groups"):
        clients = getattr(work, name)
        for number in range(len(clients)):
            rest = clients[:number] + clients[number + 1 :]
            if rest or name != "producers":
                found.append(replace(plan, workload=replace(work, **{name: rest})))
    for topic in plan.topics if len(plan.topics) > 1 else ():
        rest = replace(
            work,
            **{
                name: tuple(client for client in getattr(work, name) if client.topic != topic.name)
                for name in ("producers", "readers", "groups")
            },
        )
        if rest.producers:
            topics = tuple(other for other in plan.topics if other is not topic)
            found.append(replace(plan, topics=topics, workload=rest))
    if plan.drift:
        found.append(replace(plan, drift=()))
    quiet = {"delay_ms": 0.1, "jitter_ms": 0, "split": 0}
    if plan.pace != quiet:
        found.append(replace(plan, pace=quiet))
    found += [
        replace(plan, settings={name: value for name, value in plan.settings.items() if name != dropped})
        for dropped in plan.settings
    ]
    for number, act in enumerate(acts):
        if act.for_ms > 100:
            shorter = replace(act, for_ms=max(100, act.for_ms // 4))
            found.append(replace(plan, acts=(*acts[:number], shorter, *acts[number + 1 :])))
    return found
