"""Draws the transactions of a seed: half of the seeds have a topic `t` that is written in transactions.

A topic, clients and acts are added to a plan that is otherwise unchanged, so seeds without transactions keep their
runs. With `transaction.version` 0 or 1 no request of a transaction arrives twice or very late: an EndTxn, a marker or
a TxnOffsetCommit of the same epoch would then count for the next transaction. KIP-890 describes this; it is why version
2 exists.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kbroker.testing.draws import Draws
from kbroker.testing.model_clients import GroupPlan, ReaderPlan, TransactionsPlan, Workload
from kbroker.testing.plan import TRANSACTION_REQUESTS, Act, Plan, TopicPlan, Values

TOPIC: Final = "t"
STATES: Final = ("ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT")
_FROM_NODES: Final = ("write_txn_markers", "add_partitions_to_txn")
_LONGEST_MS: Final = 12_000
_PATIENCE_MS: Final = 1_000


def has_transactions(seed: int) -> bool:
    """Whether the plan of a seed has transactions."""
    return Draws("transactions", seed).chance(0.5)


def with_transactions(plan: Plan, topic: TopicPlan) -> Plan:
    """A plan with transactions on one more topic."""
    draws = Draws("transactions of", plan.seed)
    version = draws.weighted([(0, 1), (2, 2)])
    configs = {name: value for name, value in topic.configs.items() if name != "unclean_leader_election_enable"}
    topic = replace(topic, configs={**configs, "min_insync_replicas": min(len(topic.replicas[0]), 2)})
    settings = {
        "transaction.state.log.num.partitions": draws.choice([1, 3]),
        "transaction.state.log.replication.factor": min(plan.brokers, 3),
        "transaction.state.log.min.isr": draws.choice([1, 2]),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    }
    work = _with_clients(plan, topic, draws)
    acts = _with_acts(plan, work, version) if plan.acts else ()
    if any(act.values.get("request") == "produce" and "sender" in act.values for act in acts):
        writers = (replace(one, patience_ms=_PATIENCE_MS) for one in work.transactions)
        work = replace(work, transactions=tuple(writers))
    return replace(
        plan,
        settings={**plan.settings, **settings},
        topics=(*plan.topics, topic),
        workload=work,
        acts=acts,
        transaction_version=version,
        group_version=1,
    )


def _with_clients(plan: Plan, topic: TopicPlan, draws: Draws) -> Workload:
    partitions = tuple(range(len(topic.replicas)))
    writers = [
        TransactionsPlan(
            name=f"writer-{number}",
            topic=topic.name,
            partitions=partitions,
            producers=draws.weighted([(1, 2), (2, 1)]),
            timeout_ms=draws.choice([2_000, 10_000]),
            pause_ms=draws.choice([300, 1_000, 2_000]),
            max_batches=draws.choice([2, 4]),
            aborts=draws.choice([0.1, 0.4]),
            dies=draws.choice([0, 0.05]),
            stalls=draws.choice([0, 0.05]),
            takeover_ms=draws.choice([500, 5_000]),
        )
        for number in range(draws.between(1, 2))
    ]
    # K11 demands that each partition is written.
    writers[0] = replace(writers[0], max_batches=4, producers=1, stalls=0, pause_ms=min(writers[0].pause_ms, 1_000))
    readers = [
        ReaderPlan(name=f"{name}-t", topic=topic.name, partitions=partitions, reads_committed=committed,
                   from_replica=draws.chance(0.4), pause_ms=200)
        for name, committed in (("committed", True), ("uncommitted", False))
    ]  # fmt: skip
    source = plan.topics[0]
    copiers = [
        GroupPlan(
            name="copiers",
            members=draws.between(1, 2),
            topic=source.name,
            partitions=len(source.replicas),
            commit_every_ms=draws.choice([500, 1_000]),
            leaves=draws.chance(0.3),
            watchers=1,
            writes_to=topic.name,
            outputs=len(partitions),
            timeout_ms=draws.choice([2_000, 10_000]),
        )
    ]
    work = plan.workload
    groups = [
        replace(group, is_consumer=not group.is_standalone and Draws("protocol", plan.seed, group.name).chance(0.5))
        for group in work.groups
    ]
    return replace(
        work,
        transactions=tuple(writers),
        readers=(*work.readers, *readers),
        groups=(*groups, *(copiers if draws.chance(0.6) else [])),
    )


def _with_acts(plan: Plan, work: Workload, version: int) -> tuple[Act, ...]:
    found = list(plan.acts)
    upgrades = version < 2 and Draws("upgrade", plan.seed).chance(0.4)
    for number in range(Draws("acts of transactions", plan.seed).below(6)):
        own = Draws("act of transactions", plan.seed, number)
        kind = own.weighted([("frame", 3), ("kill-coordinator", 3), ("move-coordinators", 1)])
        found.append(
            Act(
                kind=kind,
                at_ms=own.below(plan.duration_ms * 3 // 4),
                for_ms=own.choice([100, 1_000, 4_000, _LONGEST_MS]),
                values=_frame(own, version) if kind == "frame" else _coordinators(own, kind),
            )
        )
    composed = Draws("composed acts of transactions", plan.seed)
    if composed.chance(0.7):
        # The classic protocol has fewer seeds, and more that a late request can break.
        likely = 1 if version >= 2 else 3
        kind = composed.weighted(
            [("late-markers", likely), ("frame", likely), ("lose-decision", 1), ("restart-in-transaction", 1)]
        )
        for _ in range(composed.between(1, 3)):
            at_ms = composed.below(plan.duration_ms * 3 // 4)
            values = _late_produce(composed, work) if kind == "frame" else {}
            found.append(Act(kind=kind, at_ms=at_ms, for_ms=4_000 if kind == "frame" else 100, values=values))
    elif version >= 2:
        for _ in range(composed.between(2, 4)):
            values = {"request": composed.choice(["end_txn", "write_txn_markers"]), "turns": composed.between(1, 2)}
            at_ms = composed.below(plan.duration_ms * 3 // 4)
            found.append(Act(kind="late-repetition", at_ms=at_ms, for_ms=100, values=values))
    if upgrades:
        at_ms = Draws("time of the upgrade", plan.seed).below(plan.duration_ms // 2)
        found.append(Act(kind="raise-transaction-version", at_ms=at_ms, for_ms=100))
    return tuple(sorted(found, key=lambda act: act.at_ms))


def _frame(draws: Draws, version: int) -> Values:
    request = draws.choice(list(TRANSACTION_REQUESTS))
    from_node = request in _FROM_NODES and (request == "write_txn_markers" or draws.chance(0.5))
    is_fenced = version >= 2
    return {
        "fault": draws.choice(["delay", "repeat", "drop-reply"] if is_fenced else ["delay", "drop-reply"]),
        "from": "node" if from_node else "client",
        "request": request,
        "delay_ms": draws.choice([10, 1_000, 10_000] if is_fenced else [10, 1_000]),
        "times": draws.between(1, 5),
    }


def _late_produce(draws: Draws, work: Workload) -> Values:
    """A batch arrives when its producer has given it up and has aborted the transaction."""
    return {
        "fault": "delay",
        "from": "client",
        "sender": f"{draws.choice(work.transactions).name}-0",
        "request": "produce",
        "delay_ms": _PATIENCE_MS + draws.choice([200, 1_000]),
        "times": draws.between(1, 2),
    }


def _coordinators(draws: Draws, kind: str) -> Values:
    if kind == "kill-coordinator":
        return {"state": draws.choice(STATES)}
    return {"turn": draws.between(1, 3)}
