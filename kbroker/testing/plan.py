"""Plans of simulated runs: what a cluster looks like, what clients do, and what goes wrong when.

A plan is data only: it can be written to a file, cut down, and run again. `kbroker.testing.drawing` draws one from a
seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from kbroker.testing.model_clients import (
    DeleterPlan,
    GroupPlan,
    ProducerPlan,
    ReaderPlan,
    TransactionsPlan,
    Workload,
)

Values = Mapping[str, Any]
REQUESTS: Final = {"produce": 0, "fetch": 1, "list_offsets": 2, "metadata": 3, "offset_commit": 8, "join_group": 11}
REQUESTS_OF_BROKERS: Final = {"fetch": 1, "offset_for_leader_epoch": 23, "alter_partition": 56, "heartbeat": 63}
TRANSACTION_REQUESTS: Final = {
    "init_producer_id": 22, "add_partitions_to_txn": 24, "add_offsets_to_txn": 25, "end_txn": 26,
    "write_txn_markers": 27, "txn_offset_commit": 28,
}  # fmt: skip
CLIENTS: Final = ("producers", "readers", "groups", "deleters", "transactions")
SYNCS_ALL: Final = "log.flush.interval.messages"
"""With the value 1 no loss of power may lose an acknowledged record."""
LOOK_EACH_MS: Final = 50
_WRITERS: Final = ("producers", "transactions")
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

    @property
    def is_lossy(self) -> bool:
        """Whether an unclean election may lose its records."""
        return self.configs.get("unclean_leader_election_enable") == "true"

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner removes older records of a key."""
        return "compact" in self.configs.get("cleanup_policy", "")

    @property
    def is_limited(self) -> bool:
        """Whether retention deletes its oldest records."""
        return "retention_bytes" in self.configs


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

    Shape  drift is how much faster the wall clock of each broker runs than time, as a ratio; empty: not at all;
           transaction_version and group_version are the levels of features from the start on
    Units  invariants are checked every look_each_ms, and brokers are asked what they know every tenth time
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
    look_each_ms: int = LOOK_EACH_MS
    transaction_version: int = 0
    group_version: int = 0

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.brokers} brokers, {self.duration_ms / 1000:.0f} s, network {dict(self.pace)}",
            *([f"  the wall clocks drift by {list(self.drift)}"] if self.drift else []),
            *([f"  transaction.version={self.transaction_version}"] if self.workload.transactions else []),
            *(f"  {name}={value}" for name, value in self.settings.items()),
            *(f"  topic {topic.name} {list(topic.replicas)} {dict(topic.configs)}" for topic in self.topics),
            *(f"  {client}" for name in CLIENTS for client in getattr(self.workload, name)),
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
            deleters=tuple(DeleterPlan(**_with_tuples(one)) for one in clients.get("deleters", ())),
            transactions=tuple(TransactionsPlan(**_with_tuples(one)) for one in clients.get("transactions", ())),
        ),
        acts=tuple(Act(**_with_tuples(act)) for act in found["acts"]),
        drift=tuple(found.get("drift", ())),
        look_each_ms=found.get("look_each_ms", LOOK_EACH_MS),
        transaction_version=found.get("transaction_version", 0),
        group_version=found.get("group_version", 0),
    )


def _with_tuples(found: Values) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


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
    for name in CLIENTS:
        clients = getattr(work, name)
        for number in range(len(clients)):
            rest = clients[:number] + clients[number + 1 :]
            smaller_work = replace(work, **{name: rest})
            # K11 demands that each partition is written.
            if name not in _WRITERS or _writes(smaller_work, clients[number].topic):
                found.append(replace(plan, workload=smaller_work))
    for topic in plan.topics if len(plan.topics) > 1 else ():
        rest = replace(
            work,
            **{
                name: tuple(
                    client
                    for client in getattr(work, name)
                    if topic.name not in (client.topic, getattr(client, "writes_to", ""))
                )
                for name in CLIENTS
            },
        )
        if any(getattr(rest, name) for name in _WRITERS):
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


def _writes(work: Workload, topic: str) -> bool:
    return any(client.topic == topic for name in _WRITERS for client in getattr(work, name))
