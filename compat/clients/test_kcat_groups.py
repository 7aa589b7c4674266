"""kcat -G: balanced consumers of librdkafka 1.x, which use the oldest group API versions in use."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from compat.brokers import Broker, end
from compat.clients import filling
from compat.clients.conftest import NewTopic
from compat.conftest import Kcat
from compat.kafka.libraries import executable
from compat.oracle.groups import await_coordinator, fetching, offsets_of
from compat.oracle.raw import connected

PARTITIONS, EACH, LATEST_S = 4, 50, 30.0


class KcatMember:
    """One `kcat -G`: its output, and the partitions that it reports."""

    def __init__(self, servers: str, group: str, topic: str, changed: threading.Condition) -> None:
        settings = ("auto.offset.reset=earliest", "session.timeout.ms=6000", "heartbeat.interval.ms=100")
        command = [executable("kcat", hint="install kcat 1.7.1"), "-b", servers, "-u", "-f", r"%p:%o:%s\n"]
        command += [argument for setting in settings for argument in ("-X", setting)]
        self.process = subprocess.Popen(
            [*command, "-G", group, topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.got: list[tuple[int, int]] = []
        self.owns: set[int] = set()
        self._changed = changed
        self._readers = [
            threading.Thread(target=self._read, args=(stream, note), daemon=True)
            for stream, note in ((self.process.stdout, self._record), (self.process.stderr, self._assigned))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterator[str], note: Callable[[str], None]) -> None:
        for line in stream:
            with self._changed:
                note(line)
                self._changed.notify_all()

    def _record(self, line: str) -> None:
        partition, offset, value = line.strip().split(":")
        assert value == f"{partition}-{offset}"
        self.got.append((int(partition), int(offset)))

    def _assigned(self, line: str) -> None:
        if " rebalanced " in line:
            _, _, reported = line.partition("): ")
            named = {int(number) for number in re.findall(r"\[(\d+)\]", reported)}
            self.owns = named if reported.startswith("assigned") else self.owns - named

    def stop(self) -> None:
        """SIGINT: it commits, leaves and ends."""
        end(self.process, signal_number=signal.SIGINT)
        for reader in self._readers:
            reader.join()


@pytest.fixture
def scene(
    broker: Broker, kcat: Kcat, new_topic: NewTopic, new_topic_name: Callable[[str], str]
) -> Iterator[tuple[str, str, Callable[[], KcatMember]]]:
    """A group, a topic, and a function that starts one more kcat."""
    assert callable(kcat)
    group, topic = new_topic_name("kcat"), new_topic("kcat", partitions=PARTITIONS)
    await_coordinator(broker.bootstrap_servers, group)
    changed, members = threading.Condition(), list[KcatMember]()

    def join() -> KcatMember:
        members.append(KcatMember(broker.bootstrap_servers, group, topic, changed))
        return members[-1]

    yield group, topic, join
    for member in members:
        end(member.process, signal_number=signal.SIGKILL)


def until(reached: Callable[[], bool], *members: KcatMember) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + LATEST_S
    with members[0]._changed:
        while not reached():
            reported = [(sorted(member.owns), len(member.got)) for member in members]
            assert time.monotonic() < deadline, f"not reached: {reported}"
            members[0]._changed.wait(0.2)


def fill(broker: Broker, topic: str, first: int) -> None:
    numbers = range(first, first + EACH)
    values = {part: [b"%d-%d" % (part, number) for number in numbers] for part in range(PARTITIONS)}
    filling.fill(broker.bootstrap_servers, topic, values)


def test_kcats_share_a_topic_and_continue_at_the_committed_offsets(
    broker: Broker, scene: tuple[str, str, Callable[[], KcatMember]]
) -> None:
    group, topic, join = scene
    fill(broker, topic, 0)
    first = join()
    until(lambda: len(first.got) == PARTITIONS * EACH, first)
    second = join()
    until(lambda: len(first.owns) == len(second.owns) == 2 and not first.owns & second.owns, first, second)
    fill(broker, topic, EACH)
    until(lambda: len(first.got + second.got) == 2 * PARTITIONS * EACH, first, second)
    assert {partition for partition, _ in second.got} == second.owns
    first.stop()
    until(lambda: len(second.owns) == PARTITIONS, second)
    fill(broker, topic, 2 * EACH)
    until(lambda: len(first.got + second.got) == 3 * PARTITIONS * EACH, first, second)
    second.stop()
    every = {(partition, offset) for partition in range(PARTITIONS) for offset in range(3 * EACH)}
    assert Counter(first.got + second.got) == Counter(every)
    with connected(broker.bootstrap_servers) as connection:
        committed = offsets_of(connection.call("OffsetFetch", 7, fetching(group, None)))
    assert {partition: offset for partition, (offset, _) in committed.items()} == dict.fromkeys(
        range(PARTITIONS), 3 * EACH
    )
    fill(broker, topic, 3 * EACH)
    third = join()
    until(lambda: len(third.got) == PARTITIONS * EACH, third)
    assert min(offset for _, offset in third.got) == 3 * EACH
