"""Consumer groups with every client: ownership, committed offsets, and each record processed once.

Records are written when the group is stable, so each must arrive at the one member that owns its partition.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from compat.brokers import Broker
from compat.clients import filling
from compat.clients.conftest import NewTopic
from compat.clients.members import CLIENTS, LATEST_S, Got, Member, await_assignment
from compat.oracle.groups import await_coordinator

PARTITIONS, EACH = 6, 40
MIXED = ("kafka-python", "confluent-kafka", "aiokafka")
COOPERATIVE = ("kafka-python", "confluent-kafka")


@pytest.fixture
def group(broker: Broker, new_topic_name: Callable[[str], str]) -> str:
    """An unused group with an available coordinator."""
    name = new_topic_name("group")
    await_coordinator(broker.bootstrap_servers, name)
    return name


def fill(broker: Broker, topic: str, first: int = 0, count: int = EACH) -> None:
    """Write numbered records to each partition."""
    values = {
        partition: [b"%d:%d" % (partition, first + number) for number in range(count)]
        for partition in range(PARTITIONS)
    }
    filling.fill(broker.bootstrap_servers, topic, values)


@pytest.fixture
def topic(broker: Broker, new_topic: NewTopic) -> str:
    """Six partitions of forty records; each value names its place."""
    name = new_topic("shared", partitions=PARTITIONS)
    fill(broker, name)
    return name


class Seat:
    """A member in its own thread, as clients are used: it polls, records what it got, and commits that at once."""

    def __init__(self, make: Callable[[], Member], settled: threading.Condition) -> None:
        self.got: list[Got] = []
        self.owns: set[int] = set()
        self.changes: list[tuple[str, frozenset[int]]] = []
        self.turns = 0
        self._make, self._settled = make, settled
        self._asked: queue.SimpleQueue[tuple[Callable[[Member], Any], Future[Any]]] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            member = self._make()
            self.changes = member.changes
            try:
                while not self._leaving.is_set():
                    self._turn(member)
            finally:
                member.close()
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _turn(self, member: Member) -> None:
        while not self._asked.empty():
            question, answer = self._asked.get()
            answer.set_result(question(member))
        found = member.poll()
        for record in found:
            assert record.value == b"%d:%d" % (record.partition, record.offset)
        ends = {record.partition: (record.offset + 1, f"after {record.offset}") for record in found}
        if ends:
            member.commit(ends)
        with self._settled:
            self.got += found
            self.owns = member.assignment()
            self.turns += 1
            self._settled.notify_all()

    def check(self) -> None:
        """Raise the exception that ended its thread."""
        if self._ended.done():
            self._ended.result()

    def ask(self, question: Callable[[Member], Any]) -> Any:
        """Call a function with the member between two polls."""
        answer: Future[Any] = Future()
        self._asked.put((question, answer))
        return answer.result(LATEST_S)

    def committed(self) -> dict[int, tuple[int, str]]:
        """The committed offsets of its group."""
        found: dict[int, tuple[int, str]] = self.ask(lambda member: member.committed(range(PARTITIONS)))
        return found

    def leave(self) -> None:
        """Close the member and wait until it is closed."""
        self._leaving.set()
        self._ended.result(LATEST_S)


class Team:
    """The members of one group, and the records of members that have left."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.seats: list[Seat] = []
        self._where = (broker.bootstrap_servers, group, topic)
        self._settled = threading.Condition()
        self._former: list[Got] = []

    def join(self, client: str, **more: Any) -> Seat:
        """A new member."""
        self.seats.append(Seat(lambda: CLIENTS[client](*self._where, **more), self._settled))
        return self.seats[-1]

    def leave(self, seat: Seat) -> None:
        """Close a member."""
        seat.leave()
        self.seats.remove(seat)
        self._former += seat.got

    def all_got(self) -> list[Got]:
        return [*self._former, *itertools.chain.from_iterable(seat.got for seat in self.seats)]

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + LATEST_S
        with self._settled:
            while not reached():
                for seat in self.seats:
                    seat.check()
                reported = [sorted(seat.owns) for seat in self.seats], len(self.all_got())
                assert time.monotonic() < deadline, f"not reached: {reported}"
                self._settled.wait(0.2)

    def share(self, *counts: int) -> None:
        """Wait until all partitions are owned, each by one member, and the members own these counts."""
        every = list(range(PARTITIONS))
        self.until(
            lambda: (
                sorted(itertools.chain.from_iterable(seat.owns for seat in self.seats)) == every
                and [len(seat.owns) for seat in self.seats] == list(counts)
            )
        )

    def turns(self, count: int) -> None:
        """Wait until each member has polled this many times more."""
        marks = [(seat, seat.turns + count) for seat in self.seats]
        self.until(lambda: all(seat.turns >= mark for seat, mark in marks))

    def complete(self, count: int) -> None:
        """Wait until this many records of each partition arrived, each once, and in order at each member."""
        self.until(lambda: len(self.all_got()) >= count * PARTITIONS)
        self.turns(1)
        found = Counter((record.partition, record.offset) for record in self.all_got())
        assert found == Counter((partition, offset) for partition in range(PARTITIONS) for offset in range(count))
        for seat in self.seats:
            for partition in range(PARTITIONS):
                offsets = [record.offset for record in seat.got if record.partition == partition]
                assert offsets == sorted(offsets)


@pytest.fixture
def team(broker: Broker, group: str, topic: str) -> Iterator[Team]:
    """A group on the topic; its remaining members leave at the end."""
    made = Team(broker, group, topic)
    yield made
    for seat in made.seats:
        with contextlib.suppress(Exception):
            seat.leave()


@pytest.mark.parametrize("clients", [*itertools.product(CLIENTS, repeat=1), MIXED], ids="+".join)
def test_members_that_come_and_go_process_each_record_once(
    broker: Broker, topic: str, team: Team, clients: Sequence[str]
) -> None:
    first = team.join(clients[0])
    team.share(6)
    team.complete(EACH)
    for client, counts in ((clients[1 % len(clients)], [3, 3]), (clients[2 % len(clients)], [2, 2, 2])):
        team.join(client)
        team.share(*counts)
    before = [len(seat.got) for seat in team.seats]
    fill(broker, topic, EACH)
    team.complete(2 * EACH)
    for seat, place in zip(team.seats, before, strict=True):
        new = Counter(record.partition for record in seat.got[place:])
        assert new == dict.fromkeys(seat.owns, EACH)
    assert first.committed() == dict.fromkeys(range(PARTITIONS), (2 * EACH, f"after {2 * EACH - 1}"))
    team.leave(first)
    team.share(3, 3)
    fill(broker, topic, 2 * EACH)
    team.complete(3 * EACH)
    team.leave(team.seats[0])
    team.share(6)
    assert team.seats[0].committed() == dict.fromkeys(range(PARTITIONS), (3 * EACH, f"after {3 * EACH - 1}"))


@pytest.mark.parametrize("client", CLIENTS)
def test_offsets_and_metadata_committed_by_one_client_serve_another(
    broker: Broker, group: str, topic: str, client: str
) -> None:
    where = (broker.bootstrap_servers, group, topic)
    committed = {0: (0, ""), 1: (17, "a note"), 3: (EACH, "\u00fcml\u00e4ut \u2713"), 5: (39, "n" * 4000)}
    writer = CLIENTS[client](*where)
    await_assignment(writer, set(range(PARTITIONS)))
    writer.commit(committed)
    writer.close()
    for reading in CLIENTS:
        reader = CLIENTS[reading](*where)
        try:
            found: list[Got] = []
            deadline = time.monotonic() + LATEST_S
            beginnings = {index: committed.get(index, (0, ""))[0] for index in range(PARTITIONS)}
            while len(found) < sum(EACH - first for first in beginnings.values()):
                assert time.monotonic() < deadline, (reading, found)
                found += reader.poll()
            for partition, first in beginnings.items():
                offsets = [record.offset for record in found if record.partition == partition]
                assert offsets == list(range(first, EACH)), (reading, partition)
            if reading in {client, "kafka-python", "aiokafka"}:
                assert reader.committed(range(PARTITIONS)) == committed
            reader.seek(1, committed[1][0])
            again: list[Got] = []
            while len(again) < EACH - 17:
                assert time.monotonic() < deadline, (reading, again)
                again += reader.poll()
            assert [(each.partition, each.offset) for each in again] == [(1, number) for number in range(17, EACH)]
        finally:
            reader.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_the_next_member_begins_at_the_automatic_commit(broker: Broker, group: str, topic: str, client: str) -> None:
    where = (broker.bootstrap_servers, group, topic)
    found: list[Got] = []
    deadline = time.monotonic() + LATEST_S
    reader = CLIENTS[client](*where, enable_auto_commit=True, auto_commit_interval_ms=50)
    whole = dict.fromkeys(range(PARTITIONS), EACH)
    reported: dict[int, int] = {}
    while reported != whole:
        assert time.monotonic() < deadline, reported
        found += reader.poll()
        if len(found) == EACH * PARTITIONS:
            reported = {partition: offset for partition, (offset, _) in reader.committed(range(PARTITIONS)).items()}
    reader.close()
    fill(broker, topic, EACH, 5)
    successor = CLIENTS[client](*where)
    try:
        more: list[Got] = []
        while len(more) < 5 * PARTITIONS:
            assert time.monotonic() < deadline, more
            more += successor.poll()
        assert sorted((each.partition, each.offset) for each in more) == [
            (partition, EACH + number) for partition in range(PARTITIONS) for number in range(5)
        ]
    finally:
        successor.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_static_member_returns_to_its_partitions_without_a_rebalance(
    broker: Broker, topic: str, team: Team, client: str
) -> None:
    patient = {"session_timeout_ms": 60_000}
    first, second = team.join(client, instance="one", **patient), team.join(client, instance="two", **patient)
    team.share(3, 3)
    team.complete(EACH)
    owned, changes = set(first.owns), len(second.changes)
    team.leave(first)
    team.turns(2)
    assert len(second.owns) == 3
    fill(broker, topic, EACH)
    back = team.join(client, instance="one", **patient)
    team.share(3, 3)
    team.complete(2 * EACH)
    assert back.owns == owned
    assert len(second.changes) == changes


@pytest.mark.parametrize("client", COOPERATIVE)
def test_a_cooperative_member_revokes_only_moving_partitions(
    broker: Broker, topic: str, team: Team, client: str
) -> None:
    first = team.join(client, cooperative=True)
    team.share(6)
    team.complete(EACH)
    before = len(first.changes)

    def given_up() -> list[frozenset[int]]:
        return [partitions for what, partitions in first.changes[before:] if what == "revoked" and partitions]

    second = team.join(client, cooperative=True)
    team.share(3, 3)
    assert given_up() == [frozenset(second.owns)]
    # kafka-python 3.0.12 owns its remaining partitions, but never fetches from them again, on Apache Kafka as well.
    fetches = client != "kafka-python"
    if fetches:
        fill(broker, topic, EACH)
        team.complete(2 * EACH)
    team.leave(second)
    team.share(6)
    assert len(given_up()) == 1
    if fetches:
        fill(broker, topic, 2 * EACH)
        team.complete(3 * EACH)
