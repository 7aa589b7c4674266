"""Shared by all attack programs: a real broker, a bystander whose longest wait counts, and the broker's memory.

An attack program defines one function and calls `main`:

    def attack(target: Target, draws: Draws) -> list[Measure]:
        target.create_topic("victim")
        with target.watched() as seen:                 # another client produces all the time
            ...                                        # the attack: target.client(), target.frame(...)
        return seen.measures(longest_ms=200, memory_mib=100)

    if __name__ == "__main__":
        sys.exit(main(__doc__, attack))

    python -m compat.torture.<program> --seed 7
    python -m compat.torture.<program> --broker kafka      the same attack on Apache Kafka

With `main(..., guests={...})` the broker has a listener with TLS and logins, and an authorizer (compat/secured.py). All
clients log in, the bystander too.

The program ends with one summary line. Its exit status is 1 if a bound is broken or the bystander is not served.

The bystander is a separate process, so that the interpreter of the attacking program does not add to its waits. It
sends one small Produce (acks=all) after the other, a millisecond apart, and measures each. Memory is the resident
memory of the broker and its child processes.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat.brokers import KbrokerProcess, address_of
from compat.kafka import KafkaNode
from compat.processes import peak_mib, reset_peak, resident_mib
from compat.secured import started
from compat.waiting import until
from kbroker.client.blocking import Connection
from kbroker.client.security import connect as secure_connect
from kbroker.client.security import tls_context
from kbroker.testing.draws import Draws
from tests.broker_process import connect
from wire.framing import encode_request_frame
from wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch

PRODUCE_VERSION = 9
CREATE_TOPICS_VERSION = 7
PAUSE_S = 0.001
SAMPLE_S = 0.02
# A reply that takes longer counts as not served.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of an attack and its bound. `is_timing`: it depends on the load of the machine."""

    name: str
    value: float
    at_most: float
    unit: str
    is_timing: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure is within its bound."""
        return self.value <= self.at_most

    def __str__(self) -> str:
        return f"{self.name} {self.value:.0f} {self.unit} (at most {self.at_most:g}{'' if self.holds else ', BROKEN'})"


@dataclass(slots=True)
class Seen:
    """The results of an attack; complete when the attack is over.

    Units   produced: acknowledged requests of the bystander; longest_ms: the longest of its waits;
            idle_mib, peak_mib: resident memory before the attack, and the peak during it
    """

    produced: int = 0
    longest_ms: float = 0.0
    idle_mib: float = 0.0
    peak_mib: float = 0.0

    def measures(
        self,
        *,
        longest_ms: float | None = None,
        memory_mib: float | None = None,
        resident_mib: float | None = None,
    ) -> list[Measure]:
        """The figures with a bound here; memory_mib bounds the growth of the idle broker, resident_mib its total."""
        added = self.peak_mib - self.idle_mib
        found = [
            longest_ms and Measure("longest Produce", self.longest_ms, longest_ms, "ms", is_timing=True),
            memory_mib and Measure("memory over idle", added, memory_mib, "MiB"),
            resident_mib and Measure("resident memory", self.peak_mib, resident_mib, "MiB"),
        ]
        return [measure for measure in found if measure]


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under attack. Shape: security are the settings of a client that may do everything, if it needs any."""

    broker: KbrokerProcess | KafkaNode
    security: Mapping[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        """The address of its listener."""
        return address_of(self.broker.bootstrap_servers)

    def client(self) -> Connection:
        """A new connection for typed requests, one at a time."""
        return client_of(self.address, self.security)

    def create_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic unless it exists, and wait until it accepts records."""
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=settings
        )
        with self.client() as client:
            client.socket.settimeout(120)
            request = CreateTopicsRequest(topics=[topic], timeout_ms=120_000)
            answer = client.ask(request, version=CREATE_TOPICS_VERSION)
            assert answer.topics[0].error_code in (0, 36), answer  # 36: it exists
            until(lambda: produce(client, name) == 0)

    @contextlib.contextmanager
    def watched(self, topic: str = "bystander") -> Iterator[Seen]:
        """Measure memory, and the waits of a bystander that produces to partition 0 of `topic`, during a block.

        The topic is created unless it is the target's own. A wait that began in the block counts to its end.

        Errors: NotServed if the bystander got an error, lost its connection or waited more than PATIENCE_S.
        """
        seen = Seen()
        if topic == "bystander":
            self.create_topic(topic)
        with _bystander(self.address, topic, self.security) as ask, _sampled(self.broker.pid, seen):
            ask()
            yield seen
            seen.produced, seen.longest_ms = ask()


def client_of(address: tuple[str, int], security: Mapping[str, Any]) -> Connection:
    """A new connection with these settings of a client."""
    if not security:
        return connect(*address)
    return secure_connect(address, security, timeout_ms=20_000, tls=tls_context(security))


class NotServed(RuntimeError):
    """The bystander was not served while the broker was under attack."""


def frame(request: object, version: int, *, client_id: str = "attacker") -> bytes:
    """A request's frame, to send whole or in pieces."""
    parts = encode_request_frame(request, version, correlation_id=1, client_id=client_id)
    return b"".join(part for part in parts if isinstance(part, bytes))


def produce(client: Connection, topic: str, value: bytes = b"x" * 100) -> int:
    """Produce one record to partition 0; returns the error code."""
    batch = build_batch([Record(offset=-1, timestamp=int(time.time() * 1000), key=None, value=value)])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[data])
    answer = client.ask(request, version=PRODUCE_VERSION)
    return int(answer.responses[0].partition_responses[0].error_code)


@contextlib.contextmanager
def _bystander(
    address: tuple[str, int], topic: str, security: Mapping[str, Any]
) -> Iterator[Callable[[], tuple[int, float]]]:
    """Run the bystander; yield a function that returns its results since the last call."""
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else "compat.torture.bystander"]
    process = subprocess.Popen(
        [*command, json.dumps([address, topic, security])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask() -> tuple[int, float]:
        with contextlib.suppress(BrokenPipeError):  # its last output is read below
            process.stdin.write("\n")
            process.stdin.flush()
        said = json.loads(process.stdout.readline() or '"the bystander died"')
        if isinstance(said, str):
            raise NotServed(said)
        produced, longest_ms = said
        return produced, longest_ms

    try:
        yield ask
    finally:
        process.kill()
        process.communicate()


def _produce_until_asked(address: tuple[str, int], topic: str, security: Mapping[str, Any]) -> None:
    """The bystander's process: produce, and answer each line on standard input with the results since the last."""
    client = client_of(address, security)
    client.socket.settimeout(PATIENCE_S)
    produced, longest_s = 0, 0.0
    while True:
        began = time.perf_counter()
        try:
            code = produce(client, topic)
        except OSError as error:
            print(json.dumps(f"not served after {time.perf_counter() - began:.1f} s: {error!r}"), flush=True)
            return
        if code != 0:
            print(json.dumps(f"refused with error code {code}"), flush=True)
            return
        produced += 1
        longest_s = max(longest_s, time.perf_counter() - began)
        if select.select([sys.stdin], [], [], PAUSE_S)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps([produced, longest_s * 1000]), flush=True)
            produced, longest_s = 0, 0.0


@contextlib.contextmanager
def _sampled(pid: int, seen: Seen) -> Iterator[None]:
    """Record the memory of a process and its children: once, then the peak until the block ends."""
    seen.idle_mib = seen.peak_mib = resident_mib(pid)
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            seen.peak_mib = max(seen.peak_mib, resident_mib(pid))

    reset_peak(pid)
    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        seen.peak_mib = max(seen.peak_mib, peak_mib(pid))


@dataclass(slots=True)
class Report:
    """The results of an attack; the last line of its program."""

    program: str
    measures: list[Measure] = field(default_factory=list)
    complaint: str | None = None

    def broken(self, *, with_timing: bool = True) -> list[str]:
        """The broken bounds, and whether the bystander was not served."""
        found = [str(one) for one in self.measures if not one.holds and (with_timing or not one.is_timing)]
        return found if self.complaint is None else [*found, self.complaint]

    def __str__(self) -> str:
        parts = [*map(str, self.measures), *([] if self.complaint is None else [self.complaint])]
        return f"{self.program}: {'; '.join(parts)}"


Attack = Callable[[Target, Draws], list[Measure]]


def run(
    attack: Attack,
    *,
    seed: int = 0,
    settings: Mapping[str, str] | None = None,
    is_kafka: bool = False,
    guests: Mapping[str, str] | None = None,
) -> Report:
    """Start a broker in a new directory, attack it and stop it. See the module about guests."""
    program = Path(inspect.getfile(attack)).stem
    with tempfile.TemporaryDirectory(prefix=f"{program}-") as scratch:
        directory = Path(scratch) / "broker"
        with _target(directory, settings or {}, guests, is_kafka=is_kafka) as target:
            try:
                return Report(program, attack(target, Draws("attack", seed)))
            except NotServed as error:
                return Report(program, complaint=f"the bystander was {error}")
            finally:
                broker = target.broker
                if broker.process is not None and broker.process.poll() is not None:
                    print(f"the broker has ended by itself:\n{broker.log_tail()}", flush=True)
                broker.kill()


@contextlib.contextmanager
def _target(
    directory: Path, settings: Mapping[str, str], guests: Mapping[str, str] | None, *, is_kafka: bool
) -> Iterator[Target]:
    if guests is not None:
        directory.mkdir()
        with started(directory, settings, guests=guests) as secured:
            yield Target(secured, secured.own())
        return
    broker: KbrokerProcess | KafkaNode
    if is_kafka:
        broker = KafkaNode(directory, overrides=settings)
    else:
        broker = KbrokerProcess(directory, overrides=[f"{key}={value}" for key, value in settings.items()])
    broker.start()
    yield Target(broker)


def main(
    doc: str | None,
    attack: Attack,
    *,
    settings: Mapping[str, str] | None = None,
    guests: Mapping[str, str] | None = None,
) -> int:
    """Run an attack program; returns its exit status. See the module about guests."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["kbroker", "kafka"] if guests is None else ["kbroker"]
    parser.add_argument("--broker", choices=kinds, default="kbroker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untimed", action="store_true", help="report waits, but do not judge them")
    options = parser.parse_args()
    report = run(attack, seed=options.seed, settings=settings, is_kafka=options.broker == "kafka", guests=guests)
    print(report)
    return 1 if report.broken(with_timing=not options.untimed) else 0


if __name__ == "__main__":
    _produce_until_asked(*json.loads(sys.argv[1]))
