"""One simulated run: a cluster is started, clients work, a plan's acts happen, everything is mended, and the checkers
judge what clients and disks say.

The trace is every delivery of the network, every operation of the tier, every start and end of a node, every act and
every log event, with its virtual time. Equal plans give equal traces (K16); its digest stands for it.
"""

from __future__ import annotations

import signal
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from types import FrameType
from typing import Final

import trio

from kbroker.metadata.parts import GROUP_VERSION_FEATURE, TRANSACTION_VERSION_FEATURE
from kbroker.runtime.env import RealEnv
from kbroker.testing.acts import perform
from kbroker.testing.checkers import Finding
from kbroker.testing.cluster import MemoryCluster, memory_cluster
from kbroker.testing.composed_acts import revive
from kbroker.testing.determinism import run as run_deterministically
from kbroker.testing.event_lines import EventLine
from kbroker.testing.history import to_line
from kbroker.testing.invariants import Invariants
from kbroker.testing.judging import become_healthy, read_everything, verdict
from kbroker.testing.model_clients import observe, run_workload
from kbroker.testing.network import Pace
from kbroker.testing.plan import SYNCS_ALL, Act, Plan
from kbroker.testing.recorder import History
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

HEALTHY_WITHIN_MS: Final = 60_000
"""Kafka's controller and clients take up to 30 s for some steps after the last fault."""
REAL_LIMIT_S: Final = 120
"""A run that takes longer does not end; plus a tenth of the time that it simulates."""
_KEEP_ALIVE_S: Final = 0.5

Trace = Callable[[str], object]


class Stuck(Exception):
    """A run took more real time than it may."""


@dataclass(slots=True)
class Outcome:
    """What a run found.

    Units  simulated_ms and real_ms are the time from the first start to the last check
    """

    plan: Plan
    findings: list[Finding] = field(default_factory=list)
    digest: str = ""
    simulated_ms: int = 0
    real_ms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    excused: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether no promise was broken."""
        return not self.findings

    def has(self, check: str, kind: str) -> bool:
        """Whether this promise was broken in this way."""
        return any(found.check == check and found.kind == kind for found in self.findings)


def run_plan(plan: Plan, *, trace: Trace | None = None, limit_s: int = REAL_LIMIT_S) -> Outcome:
    """Run a plan; `trace` gets each line. In the main thread of a process: a signal ends a run that does not end."""
    outcome = Outcome(plan)
    digest = blake2b(digest_size=8)

    def record(*what: object) -> None:
        line = f"{trio.current_time():.4f} {' '.join(map(str, what))}"
        digest.update(line.encode())
        if trace is not None:
            trace(line)

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise Stuck(f"the run has not ended after {limit_s} s")

    clock = RealEnv()
    began = clock.now_ms()
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(limit_s + plan.duration_ms // 10_000)
    try:
        run_deterministically(_run, plan, outcome, record, seed=plan.seed)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome.findings.append(Finding("run", "ended-by-error", "", -1, "".join(traceback.format_exception(error))))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    outcome.digest = digest.hexdigest()
    outcome.real_ms = clock.now_ms() - began
    return outcome


async def _run(plan: Plan, outcome: Outcome, record: Callable[..., object]) -> None:
    is_tiered = any(topic.is_tiered for topic in plan.topics)
    async with memory_cluster(
        plan.brokers, settings=plan.settings, seed=plan.seed, pace=Pace(**plan.pace), has_tier=is_tiered, asserts=False
    ) as cluster:
        cluster.trace = cluster.network.trace = cluster.store.trace = record
        cluster.events.listener = record
        for node, drift in zip(cluster.brokers, plan.drift, strict=False):
            node.drift(drift)
        for topic in plan.topics:
            await cluster.create_topic(topic.name, replicas=topic.replicas, **topic.configs)
        levels = {TRANSACTION_VERSION_FEATURE: plan.transaction_version, GROUP_VERSION_FEATURE: plan.group_version}
        raised = [FeatureUpdateKey(feature=name, max_version_level=level) for name, level in levels.items() if level]
        if raised:
            await cluster.ask(cluster.brokers[0], UpdateFeaturesRequest(feature_updates=raised))
        history = History(
            lossy=frozenset(topic.name for topic in plan.topics if topic.is_lossy),
            compacted=frozenset(topic.name for topic in plan.topics if topic.is_compacted),
        )
        try:
            await _judged(plan, cluster, history, outcome)
        finally:
            outcome.simulated_ms = round(trio.current_time() * 1000)
            outcome.excused = sorted(history.excused)
            outcome.counts = Counter(f"{event.function}-{event.type}" for event in history.events)
    for event in history.events:
        record("history", to_line(event))


async def _judged(plan: Plan, cluster: MemoryCluster, history: History, outcome: Outcome) -> None:
    stopping = trio.Event()
    names = [topic.name for topic in plan.topics]
    async with trio.open_nursery() as watching:
        partitions = [(topic.name, index) for topic in plan.topics for index in range(len(topic.replicas))]
        watching.start_soon(partial(observe, cluster, history, partitions, each_ms=10 * plan.look_each_ms))
        syncs_all = plan.settings.get(SYNCS_ALL) == 1
        invariants = Invariants(cluster, history, look_each_ms=plan.look_each_ms, syncs_all=syncs_all)
        watching.start_soon(invariants.watch, partitions)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_work, plan, cluster, history, stopping)
            async with trio.open_nursery() as acting:
                for act in plan.acts:
                    acting.start_soon(_perform_later, cluster, act)
                await trio.sleep(plan.duration_ms / 1000)
            cluster.heal()
            nursery.start_soon(_keep_alive, cluster, stopping)
            history.heal()
            await become_healthy(cluster, history, names, HEALTHY_WITHIN_MS)
            stopping.set()
        await read_everything(cluster, history, plan.topics)
        watching.cancel_scope.cancel()
    outcome.findings += verdict(history, patience_ms=HEALTHY_WITHIN_MS)
    outcome.findings += unexpected(plan, cluster)


async def _work(plan: Plan, cluster: MemoryCluster, history: History, stopping: trio.Event) -> None:
    await run_workload(cluster, plan.workload, history, seed=plan.seed, stopping=stopping)


async def _keep_alive(cluster: MemoryCluster, stopping: trio.Event) -> None:
    """Start every node that has ended, also one that still ends because of an earlier fault."""
    while not stopping.is_set():
        for node in cluster.nodes.values():
            await revive(node)
        with trio.move_on_after(_KEEP_ALIVE_S):
            await stopping.wait()


async def _perform_later(cluster: MemoryCluster, act: Act) -> None:
    await trio.sleep(act.at_ms / 1000)
    await perform(cluster, act)


def unexpected(plan: Plan, cluster: MemoryCluster) -> list[Finding]:
    """Bugs that no checker of histories can see: requests that met one, tracebacks, and nodes that ended by themselves
    although the plan has no disk-error on them.
    """
    found = [Finding("run", "fault", "", -1, fault) for fault in cluster.faults]
    found += [Finding("run", "traceback", "", -1, str(line)) for line in cluster.events.lines if _is_bug(line)]
    uncleanable = (line for line in cluster.events.lines if line.event.startswith("cannot clean a log"))
    found += [Finding("run", "uncleanable", "", -1, str(line)) for line in uncleanable]
    # A snapshot has its name only when it is durable.
    damaged = (line for line in cluster.events.lines if line.event.endswith("using the previous snapshot"))
    found += [Finding("K8", "damaged-snapshot", "", -1, str(line)) for line in damaged]
    excused = {node for act in plan.acts if act.kind == "disk-error" for node in act.nodes}
    for node, failure in cluster.failures:
        if node not in excused:
            found.append(Finding("run", "node-failed", "", -1, failure))
    return found


def _is_bug(line: EventLine) -> bool:
    return "traceback" in line.fields
