"""Clusters of kbroker under faults, on Apache Kafka's controllers: nothing acknowledged is lost, replicas are equal.

`python -m compat.cluster.storm` runs the same with other nodes. The judge is tested on a cluster that loses data.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.brokers import in_ci
from compat.cluster.main_job import run
from compat.cluster.namespaces import is_available
from compat.cluster.nodes import KAFKA, KBROKER, QUICK_SESSIONS, ProcessCluster
from compat.cluster.storm import LIGHT, NEED_A_NETWORK, SCENARIOS, Stage, storm
from compat.kafka import libraries
from compat.kafka.libraries import executable
from compat.torture.load import Recorder

ROWS = {
    "killed_leaders": "r1",
    "paused_leaders": "r2",
    "leader_without_followers": "r3",
    "leader_without_controllers": "r4",
    "one_way_cut": "r5",
    "rolling_restart": "r10",
    "killed_controllers": "c1",
}


@pytest.fixture(autouse=True)
def _java() -> None:
    libraries()


def network_or_skip(scenario: str) -> None:
    if scenario in NEED_A_NETWORK and not is_available():
        assert not in_ci(), "CI must be able to make network namespaces"
        pytest.skip("network namespaces need root, ip and iptables")


@pytest.mark.parametrize("scenario", [pytest.param(name, id=f"{ROWS[name]}-{name}") for name in SCENARIOS])
def test_the_promises_hold_under_apache_kafkas_controllers(tmp_path: Path, scenario: str) -> None:
    """R1, R2, R3, R4, R5, R10 and C1, judged by K1, K2, K3, K4, K5, K6, K7, K8 and K11."""
    network_or_skip(scenario)
    controllers = [KAFKA] * (3 if scenario == "killed_controllers" else 1)
    recorder = Recorder()
    assert storm(tmp_path, scenario, controllers=controllers, recorder=recorder, load=LIGHT) == []
    assert recorder.acknowledged() > 1_000


def test_r1_the_promises_hold_in_mixed_clusters(tmp_path: Path) -> None:
    """K1, K2, K3, K4, K5, K6, K7, K8 and K11: what a broker of Apache Kafka does is no finding.

    `make soak` runs the same with brokers of Apache Kafka only.
    """
    brokers = (KAFKA, KBROKER, KBROKER)
    recorder = Recorder()
    assert storm(tmp_path, "killed_leaders", controllers=[KAFKA], brokers=brokers, recorder=recorder, load=LIGHT) == []


def test_the_judge_finds_a_replica_that_lost_its_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: all brokers stop and lose nine tenths of their logs before they start again."""

    def cut_all_tails(stage: Stage) -> None:
        nodes = stage.cluster.brokers.values()
        for node in nodes:
            node.kill()
        for node in nodes:
            for log in node.data.glob("storm-*/*.log"):
                with log.open("r+b") as file:
                    file.truncate(log.stat().st_size // 10)
            node.start()
        stage.await_full()

    monkeypatch.setitem(SCENARIOS, "cut_all_tails", cut_all_tails)
    recorder = Recorder()
    findings = storm(tmp_path, "cut_all_tails", controllers=[KAFKA], recorder=recorder)
    found = {finding.check for finding in findings}
    assert found & {"K1", "K2", "K3", "K4"}
    assert "K6" in found, "the observer has not seen that high watermarks went back"


@pytest.mark.parametrize("brokers", [(KBROKER,) * 3, (KAFKA, KBROKER, KBROKER)], ids=["kbroker", "mixed"])
def test_r1_a_real_log_goes_through_five_dead_leaders_exactly_once(tmp_path: Path, brokers: tuple[str, ...]) -> None:
    executable("kcat", hint="install kcat 1.7.1")
    with ProcessCluster(tmp_path, controllers=[KAFKA], brokers=brokers, settings=QUICK_SESSIONS) as cluster:
        result = run(cluster)
    assert result.good, result
