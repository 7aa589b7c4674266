"""A real broker under load, killed repeatedly with `kill -9`: no acknowledged record may be lost, moved or duplicated.

    python -m compat.torture.kill9                    kbroker, on a temporary directory
    python -m compat.torture.kill9 --broker kafka     Apache Kafka 4.3.1, to verify the checkers
    python -m compat.torture.kill9 --command '...' --bootstrap-server 127.0.0.1:9092
                                                      any command that runs a broker in the foreground

Some restarts are killed before the broker answers, because an interrupted recovery must leave a disk that the next one
can recover. The run is bounded by the number of records, of kills, and by time. ARCHITECTURE.md promises that
acknowledged data survives the death of the process at Kafka's default settings, which sync nothing for that. Exit
status 1 if K1-K4 find something; the history is kept then.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Protocol

from compat.brokers import KbrokerProcess, StartFailed, address_of, await_answer, end
from compat.kafka.node import KafkaNode
from compat.torture.load import Plan, Recorder, create_topic, read_back, run_load
from kbroker.testing.checkers import Finding, check_history
from kbroker.testing.draws import Draws
from kbroker.testing.history import Function, Type


class KillableBroker(Protocol):
    """A broker in its own process whose data survive it."""

    process: subprocess.Popen[bytes] | None

    @property
    def bootstrap_servers(self) -> str: ...
    def start(self, *, timeout_s: float = ...) -> float: ...
    def kill(self) -> None: ...


class CommandBroker:
    """A broker that a command runs in the foreground, at a fixed address."""

    def __init__(self, command: str, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.process: subprocess.Popen[bytes] | None = None
        self._command = shlex.split(command)

    def start(self, *, timeout_s: float = 60) -> float:
        """Start it and wait until it answers. Returns the seconds until then. Errors: StartFailed."""
        began = time.monotonic()
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        await_answer(address_of(self.bootstrap_servers), self.process, timeout_s=timeout_s)
        return time.monotonic() - began

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None, "not started"
        end(self.process, signal_number=signal.SIGKILL)


class Killer:
    """Kills and restarts the broker at drawn moments of the load."""

    def __init__(self, broker: KillableBroker, plan: Plan, *, kills: int, interrupted: float) -> None:
        self.kills = 0
        self.interruptions = 0
        self.slowest_start_s = 0.0
        self._broker = broker
        self._interrupted = interrupted
        self._draws = Draws("kill9", plan.seed)
        total = plan.producers * plan.records
        # One kill in each of equal parts of the load, so that none of them meets an idle broker.
        self._moments = [(number * total + self._draws.below(total)) // (kills + 1) for number in range(1, kills + 1)]

    def disturb(self, acknowledged: int) -> None:
        if not self._moments or acknowledged < self._moments[0]:
            return
        self._moments.pop(0)
        self._broker.kill()
        self.kills += 1
        while self._draws.chance(self._interrupted):
            self._interrupt_start()
        self.slowest_start_s = max(self.slowest_start_s, self._broker.start())

    def _interrupt_start(self) -> None:
        """Start it and kill it during its start, most often in its recovery."""
        old = self._broker.process

        def kill() -> None:
            process = self._broker.process
            if process is not None and process is not old:
                process.kill()

        timer = threading.Timer(self._draws.between(100, 600) / 1000, kill)
        timer.start()
        try:
            self._broker.start()
        except StartFailed:
            self.interruptions += 1
        finally:
            timer.join()
        self._broker.kill()


def torture(
    broker: KillableBroker,
    plan: Plan,
    recorder: Recorder,
    *,
    kills: int,
    interrupted: float = 0.3,
    timeout_s: float = 300,
) -> tuple[list[Finding], Killer]:
    """Load the started broker, kill it `kills` times, read everything back, and judge the history.

    Errors: TimeoutError if the load does not end; AssertionError if the run proved nothing.
    """
    create_topic(broker.bootstrap_servers, plan)
    killer = Killer(broker, plan, kills=kills, interrupted=interrupted)
    run_load(broker.bootstrap_servers, plan, recorder, disturb=killer.disturb, timeout_s=timeout_s)
    read_back(broker.bootstrap_servers, plan, recorder)
    if not recorder.complaints:
        least = int(plan.producers * plan.records * 0.9)
        assert killer.kills == kills, f"only {killer.kills} kills happened"
        assert recorder.acknowledged() > least, f"only {recorder.acknowledged()} sends were acknowledged"
        assert plan.readers == 0 or recorder.counts[Function.POLL, Type.OK] > 0, "nothing was read during the kills"
    complaints = [Finding("K1", "client", "", -1, complaint) for complaint in recorder.complaints]
    return [*complaints, *check_history(recorder.history())], killer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["kbroker", "kafka"], default="kbroker")
    parser.add_argument("--command", help="your own broker, with --bootstrap-server")
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT", default="127.0.0.1:9092")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--interrupted", type=float, default=0.3, help="share of restarts that are killed too")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--producers", type=int, default=5)
    parser.add_argument("--records", type=int, default=10_000, help="for each producer")
    parser.add_argument("--payload-bytes", type=int, default=300)
    parser.add_argument("--segment-bytes", type=int, help="of the topic; small ones put kills into rolls")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    plan = Plan(
        f"kill9-{options.seed}", partitions=options.partitions, producers=options.producers, records=options.records,
        payload_bytes=options.payload_bytes, seed=options.seed,
        topic_config={"segment.bytes": str(options.segment_bytes)} if options.segment_bytes else {},
    )  # fmt: skip
    directory = Path(tempfile.mkdtemp(prefix="kill9-"))
    broker: KillableBroker
    if options.command:
        broker = CommandBroker(options.command, options.bootstrap_server)
    else:
        broker = KafkaNode(directory / "broker") if options.broker == "kafka" else KbrokerProcess(directory / "broker")
    recorder = Recorder()
    began = time.monotonic()
    broker.start()
    try:
        findings, killer = torture(
            broker, plan, recorder, kills=options.kills, interrupted=options.interrupted, timeout_s=options.timeout
        )
    finally:
        broker.kill()
        history = directory / "history.jsonl"
        history.write_text(recorder.text())
    for finding in findings[:50]:
        print(finding)
    print(
        f"{len(findings)} findings; {recorder.acknowledged()} acknowledged, {killer.kills} kills,"
        f" {killer.interruptions} restarts killed, slowest start {killer.slowest_start_s:.2f} s,"
        f" {time.monotonic() - began:.0f} s in all; history {history}"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
