"""A cluster under load and faults: `python -m compat.cluster.storm`.

Idempotent producers, a transactional producer and readers of committed records, all of librdkafka, run while a scenario
kills, pauses or cuts off nodes. Then everything is healed; the cluster must come back to full ISRs. An observer records
what the nodes answer and store. K1-K8 and K11 judge the history, and all replicas must be equal byte for byte.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compat.cluster.main_job import PATIENCE_S
from compat.cluster.namespaces import Network
from compat.cluster.nodes import FIRST_CONTROLLER, KAFKA, KBROKER, QUICK_SESSIONS, Node, ProcessCluster
from compat.cluster.observing import Observer, note_disks
from compat.torture.load import Plan, Recorder, create_topic, read_back, run_load
from compat.torture.load_transactions import LoadTransactions, note_markers, read_committed_back
from compat.waiting import until
from kbroker.testing.checkers import Finding, check_history
from kbroker.testing.cluster_checker import check_cluster
from kbroker.testing.history import Function, Type
from kbroker.testing.transaction_checker import check_transactions

TOPIC: Final = "storm"
SETTINGS: Final = {
    **QUICK_SESSIONS,
    "replica.lag.time.max.ms": "5000",
    "replica.socket.timeout.ms": "3000",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.request.timeout.ms": "1000",
}
LOAD: Final = Plan(TOPIC, partitions=3, producers=3, readers=2, pause_s=0.02)
LIGHT: Final = replace(LOAD, pause_s=0.1)
"""For CI, where the load would otherwise take half of the CPU time of a run."""
QUIET_S: Final = 2.0
"""The load runs this long before the first fault and after each."""


@dataclass
class Stage:
    """What a scenario acts on."""

    cluster: ProcessCluster
    network: Network | None
    observer: Observer | None = None

    def leader(self, partition: int = 0, *, but: int | None = None) -> int:
        """The leader of a partition, as a running broker sees it; waits until it is known, and is not `but`."""
        found = -1

        def known() -> bool:
            nonlocal found
            for broker, node in self.cluster.brokers.items():
                if node.is_running and broker != but:
                    try:
                        found = self.cluster.leader(TOPIC, partition, ask=broker)
                    except (OSError, AssertionError):
                        continue
                    if found not in (-1, but):
                        return True
            return False

        until(known, patience_s=PATIENCE_S)
        return found

    def others(self, broker: int) -> list[int]:
        """The other brokers."""
        return [each for each in self.cluster.brokers if each != broker]

    def await_isr(self, *expected: int, partition: int | None = None, ask: int) -> None:
        """Wait until these brokers are the ISR of a partition, or with None of any partition, as a broker sees it."""

        def reached() -> bool:
            parts = self.cluster.partitions(ask, TOPIC)
            isrs = [set(part["IsrNodes"]) for part in parts if partition in (None, part["PartitionIndex"])]
            return set(expected) in isrs

        until(reached, each_s=0.1, patience_s=PATIENCE_S)

    def await_full(self) -> None:
        """All faults are over: wait until every partition has all replicas in sync."""
        if self.observer is not None:
            self.observer.heal()
        self.cluster.await_brokers(*self.cluster.brokers)
        self.cluster.await_isrs(None, *self.cluster.brokers, patience_s=PATIENCE_S)


def replace_leader(
    stage: Stage, disable: Callable[[Node], None], enable: Callable[[Node], None], *, partition: int = 0
) -> None:
    """Disable the leader of a partition until another one leads and some time has passed."""
    leader = stage.leader(partition)
    node = stage.cluster.brokers[leader]
    disable(node)
    stage.leader(partition, but=leader)
    time.sleep(QUIET_S)
    enable(node)
    stage.await_full()


def killed_leaders(stage: Stage) -> None:
    """R1: kill -9 of the leader, three times in a row."""
    for _ in range(3):
        replace_leader(stage, Node.kill, Node.start)


def paused_leaders(stage: Stage) -> None:
    """R2: SIGSTOP of the leader until another one leads, then SIGCONT."""
    for _ in range(2):
        replace_leader(stage, Node.pause, Node.resume)


def leader_without_followers(stage: Stage) -> None:
    """R3: the leader is cut off from its followers, not from the controllers."""
    assert stage.network is not None
    leader = stage.leader()
    for other in stage.others(leader):
        stage.network.cut(leader, other)
    stage.await_isr(leader, partition=0, ask=leader)
    time.sleep(QUIET_S)
    stage.network.heal()
    stage.await_full()


def leader_without_controllers(stage: Stage) -> None:
    """R4: the leader is cut off from the controllers only: fenced, and another one leads."""
    assert stage.network is not None
    leader = stage.leader()
    for controller in stage.cluster.controllers:
        stage.network.cut(leader, controller)
    stage.leader(but=leader)
    time.sleep(QUIET_S)
    stage.network.heal()
    stage.await_full()


def one_way_cut(stage: Stage) -> None:
    """R5: a follower hears the leader, but the leader does not hear the follower; then the followers are cut off from
    each other.
    """
    assert stage.network is not None
    leader = stage.leader()
    first, second = stage.others(leader)
    stage.network.cut(first, leader, one_way=True)
    stage.await_isr(leader, second, partition=0, ask=leader)
    time.sleep(QUIET_S)
    stage.network.heal()
    stage.await_full()
    leader = stage.leader()
    first, second = stage.others(leader)
    stage.network.cut(first, second)
    stage.await_isr(leader, first, ask=leader)  # of the partition that `first` leads
    time.sleep(QUIET_S)
    stage.network.heal()
    stage.await_full()


def rolling_restart(stage: Stage) -> None:
    """R10: a clean restart of each broker."""
    for node in stage.cluster.brokers.values():
        node.stop()
        node.start()
        stage.await_full()


def killed_controllers(stage: Stage) -> None:
    """C1: kill -9 of the active controller, and of a leader as soon as that controller starts again; twice."""
    for _ in range(2):
        active = stage.cluster.active_controller()
        stage.cluster.controllers[active].kill()
        time.sleep(QUIET_S)
        stage.cluster.controllers[active].start()
        leader = stage.leader()
        stage.cluster.brokers[leader].kill()
        stage.leader(but=leader)
        stage.cluster.brokers[leader].start()
        stage.await_full()


SCENARIOS: Final[dict[str, Callable[[Stage], None]]] = {
    each.__name__: each
    for each in (
        *(killed_leaders, paused_leaders, rolling_restart, killed_controllers),
        *(leader_without_followers, leader_without_controllers, one_way_cut),
    )
}
NEED_A_NETWORK: Final = {"leader_without_followers", "leader_without_controllers", "one_way_cut"}


def run_load_while(stage: Stage, plan: Plan, recorder: Recorder, act: Callable[[], None], *, timeout_s: float) -> None:
    """Run the load of a plan while another thread acts, with a quiet time before and after it.

    Errors  AssertionError, with the logs of all nodes, if acting fails
    """
    failures: list[BaseException] = []
    over = threading.Event()

    def act_and_end() -> None:
        try:
            time.sleep(QUIET_S)
            act()
            time.sleep(QUIET_S)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)
        finally:
            over.set()

    actor = threading.Thread(target=act_and_end)
    servers = stage.cluster.bootstrap_servers
    with LoadTransactions(servers, plan, recorder):
        actor.start()
        try:
            run_load(servers, plan, recorder, is_over=over.is_set, timeout_s=timeout_s)
        finally:
            actor.join()
    if failures:
        logs = "\n".join(f"--- node {node.node_id}\n{node.log_tail()}" for node in stage.cluster.nodes)
        raise AssertionError(f"{failures[0]}\n{logs}") from failures[0]


def judge_clients(stage: Stage, plan: Plan, recorder: Recorder) -> list[Finding]:
    """K1 to K5 and K11: read everything back, and judge what the clients saw."""
    read_committed_back(stage.cluster.bootstrap_servers, plan, recorder)
    read_back(stage.cluster.bootstrap_servers, plan, recorder)
    for partition in range(plan.partitions):
        with stage.cluster.connect(stage.leader(partition)) as connection:
            note_markers(connection, plan.topic, partition, recorder, source="leader")
    findings = [Finding("K1", "client", "", -1, complaint) for complaint in recorder.complaints]
    history = recorder.history()
    ended = {kind.value: recorder.counts.get((Function.TXN, kind), 0) for kind in Type}
    assert ended["ok"] > 0, f"no transaction was committed: {ended} {recorder.complaints}"
    return findings + check_history(history) + check_transactions(history)


def storm(
    directory: Path,
    scenario: str,
    *,
    controllers: Sequence[str] = (KBROKER,),
    brokers: Sequence[str] = (KBROKER,) * 3,
    recorder: Recorder,
    load: Plan = LOAD,
) -> list[Finding]:
    """Run one scenario on a new cluster and judge it. Errors: AssertionError if the cluster does not come back."""
    with ExitStack() as stack:
        ids = [*range(FIRST_CONTROLLER, FIRST_CONTROLLER + len(controllers)), *range(1, len(brokers) + 1)]
        network = stack.enter_context(Network(*ids)) if scenario in NEED_A_NETWORK else None
        cluster = stack.enter_context(
            ProcessCluster(directory, controllers=controllers, brokers=brokers, settings=SETTINGS, network=network)
        )
        cluster.start()
        plan = replace(load, replicas=len(brokers))
        create_topic(cluster.bootstrap_servers, plan)
        stage = Stage(cluster, network)
        stage.await_full()
        with Observer(cluster, TOPIC, plan.partitions, recorder) as stage.observer:
            run_load_while(stage, plan, recorder, lambda: SCENARIOS[scenario](stage), timeout_s=300)
        stage.observer = None
        stage.await_full()
        findings = judge_clients(stage, plan, recorder)
        for partition in range(plan.partitions):
            if not cluster.replicas_become_equal(TOPIC, [partition]):
                findings.append(Finding("K7", "replicas", f"{TOPIC}-{partition}", -1, "the replicas differ"))
        for node in cluster.brokers.values():
            node.stop()  # which writes the leader-epoch checkpoints of a kbroker broker
        note_disks(cluster, TOPIC, plan.partitions, recorder)
        findings += check_cluster(recorder.history())
        assert recorder.acknowledged() > 100, f"only {recorder.acknowledged()} sends were acknowledged"
        return findings


def main() -> int:
    """Run scenarios and print the findings."""
    parser = argparse.ArgumentParser(prog="python -m compat.cluster.storm", description=__doc__)
    parser.add_argument("--controllers", default=KBROKER, help=f"comma-separated: {KBROKER} or {KAFKA} (default one)")
    parser.add_argument("--brokers", default=",".join([KBROKER] * 3), help="likewise, three brokers")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause-s", type=float, default=LOAD.pause_s, help="between two sends of a producer")
    parser.add_argument("--out", type=Path, help="write the history of the last scenario to this file")
    options = parser.parse_args()
    load = replace(LOAD, seed=options.seed, pause_s=options.pause_s)
    total = 0
    for scenario in options.scenarios.split(","):
        recorder = Recorder()
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kbroker-storm-") as directory:
            findings = storm(
                Path(directory), scenario, controllers=options.controllers.split(","),
                brokers=options.brokers.split(","), recorder=recorder, load=load,
            )  # fmt: skip
        if options.out is not None:
            options.out.write_text(recorder.text())
        for finding in findings[:20]:
            print(finding)
        took = time.monotonic() - began
        print(f"{scenario}: {len(findings)} findings, {recorder.acknowledged()} acknowledged, {took:.0f} s", flush=True)
        total += len(findings)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
