"""Fetch: sizes, waiting, ends, epochs, isolation and sessions."""

from __future__ import annotations

import functools
import time

from compat.card.client import UNKNOWN_ID, Client
from compat.card.codec import Message
from compat.card.registry import Area
from compat.card.session import ABSENT, Topic
from compat.oracle.batches import Batch, Item, batch_of
from compat.oracle.test_fetch import parts, wanted, whole_batches
from compat.oracle.test_produce import produce

AREA = Area("fetch")
ROUNDS, PARTITIONS = 6, 3
LONG_MS = 120_000


def filled(client: Client) -> Topic:
    """Three partitions; 0 and 1 have six batches of 3 records, about 1,100 bytes each; 2 is empty."""

    def make() -> Topic:
        topic = client.topic("fetch", partitions=PARTITIONS)
        version = client.newest("Produce", 9)
        for number in range(ROUNDS):
            batch = Batch([Item(b"%d-%d" % (number, place) + b"x" * 350) for place in range(3)]).encode()
            for partition in (0, 1):
                client.call("Produce", version, produce(topic.name, batch, partition=partition))
        return topic

    return client.shared_topic("filled", make)


def fetch(topic: Topic, version: int, *partitions: Message, **more: object) -> Message:
    """A full fetch of some partitions; by topic id from version 13 on."""
    key = {"TopicId": topic.id} if version >= 13 else {"Topic": topic.name}
    message: Message = {"MaxWaitMs": 0, "MinBytes": 0, "Topics": [{**key, "Partitions": list(partitions)}]}
    return {**message, "ReplicaId": -1, "SessionEpoch": -1, **more}


def fetched(client: Client, version: int, message: Message) -> Message:
    """An answer with whole batches only: Kafka may cut the last one, which clients drop."""
    answer = client.call("Fetch", version, message)
    for part in parts(answer).values():
        part["Records"] = whole_batches(part["Records"] or b"")
    return answer


def _version(version: int, client: Client) -> None:
    topic = filled(client)
    client.note("answer", fetched(client, version, fetch(topic, version, wanted(0), wanted(1, 7), wanted(2))))


for _number in range(4, 19):
    AREA.add(f"version {_number} reads three partitions", functools.partial(_version, _number))


def _limited(whole: int, client: Client) -> None:
    topic = filled(client)
    for limit in (0, 1, 1_000, 2_500, 2**31 - 1):
        message = fetch(topic, 12, wanted(2), wanted(0, 4, limit=limit), wanted(1, limit=limit), MaxBytes=whole)
        client.note(f"PartitionMaxBytes {limit}", fetched(client, 12, message))


for _whole in (0, 1, 1_000, 2_500, 9_000, 2**31 - 1):
    AREA.add(f"MaxBytes of {_whole}", functools.partial(_limited, _whole))


def _offset(offset: int, client: Client) -> None:
    topic = filled(client)
    for version in (4, 11, 12, 17):
        client.note(f"version {version}", fetched(client, version, fetch(topic, version, wanted(0, offset))))


for _number in (5, 17, 18, 19, 1000, -1, 2**63 - 1):
    AREA.add(f"from offset {_number} of 18 records", functools.partial(_offset, _number))


@AREA.row("the current leader epoch is compared")
def _(client: Client) -> None:
    topic = filled(client)
    for version in (9, 12, 17):
        for epoch in (-1, 0, 1, 7):
            answer = fetched(client, version, fetch(topic, version, wanted(0, CurrentLeaderEpoch=epoch)))
            client.note(f"version {version}, epoch {epoch}", parts(answer)[0])


@AREA.row("a diverging epoch is reported")
def _(client: Client) -> None:
    topic = filled(client)
    for last in (-1, 0, 1, 5):
        for offset in (0, 18, 25):
            answer = fetched(client, 12, fetch(topic, 12, wanted(0, offset, LastFetchedEpoch=last)))
            client.note(f"last epoch {last}, offset {offset}", parts(answer)[0])


@AREA.row("unknown partitions, topics and ids fail alone")
def _(client: Client) -> None:
    topic = filled(client)
    for partition in (3, -1, 2**31 - 1):
        client.note(f"partition {partition}", fetched(client, 12, fetch(topic, 12, wanted(partition), wanted(0))))
    for name in (ABSENT, "../x", ""):
        client.note(f"topic {name!r}", fetched(client, 12, fetch(Topic(name, bytes(16)), 12, wanted(0))))
    for label, unknown in (("the zero id", bytes(16)), ("an unknown id", UNKNOWN_ID)):
        client.note(label, fetched(client, 17, fetch(Topic("", unknown), 17, wanted(0))))


@AREA.row("a batch above every limit is returned completely")
def _(client: Client) -> None:
    topic = client.topic("large")
    for batch in (batch_of(b"x" * 900_000), batch_of(b"y")):
        client.call("Produce", 9, produce(topic.name, batch))
    client.note("answer", fetched(client, 12, fetch(topic, 12, wanted(0, limit=10), MaxBytes=10)))


@AREA.row("an empty fetch waits for MaxWaitMs")
def _(client: Client) -> None:
    topic, began = filled(client), time.monotonic()
    client.note("answer", fetched(client, 12, fetch(topic, 12, wanted(2), MaxWaitMs=400, MinBytes=1)))
    client.note("it took at least 300 ms", time.monotonic() - began >= 0.3)


@AREA.row("a fetch with an error or enough bytes does not wait")
def _(client: Client) -> None:
    topic = filled(client)
    # A broker that waits uses up the row's time.
    for label, part in (("enough bytes", wanted(0)), ("out of range", wanted(0, 99))):
        client.note(label, parts(fetched(client, 12, fetch(topic, 12, part, MaxWaitMs=LONG_MS, MinBytes=1)))[0])


@AREA.row("a waiting fetch is woken by an append")
def _(client: Client) -> None:
    topic, reader = client.topic("woken"), client.connection()
    client.send(reader, "Fetch", 12, fetch(topic, 12, wanted(0), MaxWaitMs=LONG_MS, MinBytes=1))
    client.note("it waits", client.is_silent(reader, timeout_s=0.2))
    client.call("Produce", 9, produce(topic.name, batch_of(b"awaited")))
    client.note("answer", client.receive(reader, "Fetch", 12))


@AREA.row("a fetch waits until MinBytes are there")
def _(client: Client) -> None:
    topic, reader = client.topic("min-bytes"), client.connection()
    client.send(reader, "Fetch", 12, fetch(topic, 12, wanted(0), MaxWaitMs=LONG_MS, MinBytes=150))
    client.call("Produce", 9, produce(topic.name, batch_of(b"one")))
    client.note("it still waits after one batch", client.is_silent(reader, timeout_s=0.3))
    client.call("Produce", 9, produce(topic.name, batch_of(b"x" * 150)))
    client.note("answer", client.receive(reader, "Fetch", 12))


@AREA.row("both isolation levels read to the end without transactions")
def _(client: Client) -> None:
    topic = filled(client)
    for isolation in (0, 1):
        client.note(
            f"level {isolation}", fetched(client, 12, fetch(topic, 12, wanted(0, 15), IsolationLevel=isolation))
        )


class FetchSession:
    """One fetch session."""

    def __init__(self, client: Client, version: int) -> None:
        self.client, self.version, self.id = client, version, 0

    def fetch(
        self, topic: Topic, epoch: int, *partitions: Message, forget: tuple[int, ...] = (), session: int | None = None
    ) -> Message:
        """Fetch with this session, or with a given id."""
        key = {"TopicId": topic.id} if self.version >= 13 else {"Topic": topic.name}
        answer = fetched(self.client, self.version, {
            "ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "SessionEpoch": epoch,
            "SessionId": self.id if session is None else session,
            "Topics": [{**key, "Partitions": list(partitions)}] if partitions else [],
            "ForgottenTopicsData": [{**key, "Partitions": list(forget)}] if forget else [],
        })  # fmt: skip
        if epoch == 0:
            self.id = answer["SessionId"]
        return answer


def _session(version: int, client: Client) -> None:
    topic, other, session = client.topic("session"), filled(client), FetchSession(client, version)
    client.call("Produce", 9, produce(topic.name, batch_of(b"first")))
    client.note("opened", session.fetch(topic, 0, wanted(0)))
    client.note("nothing new", session.fetch(topic, 1, wanted(0, 1)))
    client.call("Produce", 9, produce(topic.name, batch_of(b"second")))
    client.note("an append shows", session.fetch(topic, 2))
    client.note("nothing new again", session.fetch(topic, 3, wanted(0, 2)))
    client.note("a partition is added", session.fetch(other, 4, wanted(1, 15)))
    client.note("and forgotten", session.fetch(other, 5, forget=(1,)))
    client.note("closed", session.fetch(topic, -1, wanted(0)))
    client.note("used after that", session.fetch(topic, 1, wanted(0)))


for _number in (7, 12, 13, 17):
    AREA.add(f"a session of version {_number} returns only changes", functools.partial(_session, _number))


@AREA.row("wrong session ids and epochs")
def _(client: Client) -> None:
    topic, session = filled(client), FetchSession(client, 12)
    session.fetch(topic, 0, wanted(0, 18))
    client.note("a wrong epoch", session.fetch(topic, 5, wanted(0)))
    client.note("an unknown session", session.fetch(topic, 1, wanted(0), session=12345))
    client.note("session 0 with an epoch", session.fetch(topic, 1, wanted(0), session=0))
    client.note("the session has survived", session.fetch(topic, 1, wanted(0, 18)))


@AREA.row("a partition's error in a session is repeated")
def _(client: Client) -> None:
    topic, session = filled(client), FetchSession(client, 12)
    client.note("opened", session.fetch(topic, 0, wanted(0, 99), wanted(9)))
    client.note("again", session.fetch(topic, 1))
    client.note("mended", session.fetch(topic, 2, wanted(0, 18)))
