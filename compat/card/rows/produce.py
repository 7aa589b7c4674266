"""Produce: acks, several partitions, missing topics, and the batches of idempotent producers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from compat.card.client import UNKNOWN_ID, Client
from compat.card.codec import encode_request
from compat.card.registry import Area
from compat.card.rows.batches import part_of, stored
from compat.card.session import ABSENT
from compat.oracle.batches import Batch, Item, batch_of
from compat.oracle.conftest import kind
from compat.oracle.produce_table import STORIES, Step
from compat.oracle.test_produce import produce

AREA = Area("produce")
GOOD = batch_of(b"value")


def _version(version: int, client: Client) -> None:
    topic = client.topic("produced")
    message = produce(topic.name, GOOD)
    message["TopicData"][0]["TopicId"] = topic.id
    client.note("first", client.call("Produce", version, message))
    client.note("second", client.call("Produce", version, message))


for _number in range(3, 14):
    AREA.add(f"version {_number} appends a batch", functools.partial(_version, _number))


@AREA.row("acks of 1, all and others")
def _(client: Client) -> None:
    topic = client.topic("acks")
    for acks in (1, -1, 2, -2, 77):
        client.note(f"acks {acks}", part_of(client.call("Produce", 9, produce(topic.name, GOOD, acks=acks))))


@AREA.row("acks of 0 get no answer, and the batch is stored")
def _(client: Client) -> None:
    topic = client.topic("acks-0")
    connection = client.connection()
    client.send(connection, "Produce", 9, produce(topic.name, GOOD, acks=0))
    client.send(connection, "Metadata", 1, {"Topics": []})
    client.note("the next answer is that to the next request", client.receive(connection, "Metadata", 1)["Topics"])
    client.note("the stored bytes", stored(client, topic))


@AREA.row("acks of 0 to an unknown topic close the connection")
def _(client: Client) -> None:
    frame = encode_request("Produce", 9, produce(ABSENT, GOOD, acks=0))
    client.note("reaction", client.reaction(frame))


@AREA.row("an unknown topic, partition and topic id")
def _(client: Client) -> None:
    topic = client.topic("known")
    client.note("topic", client.call("Produce", 9, produce(ABSENT, GOOD)))
    client.note("name", client.call("Produce", 9, produce("../x", GOOD)))
    for partition in (1, -1):
        client.note(f"partition {partition}", client.call("Produce", 9, produce(topic.name, GOOD, partition=partition)))
    by_id = produce(topic.name, GOOD)
    by_id["TopicData"][0]["TopicId"] = UNKNOWN_ID
    client.note("topic id", client.call("Produce", 13, by_id))


@AREA.row("one partition that fails does not stop the others")
def _(client: Client) -> None:
    topic = client.topic("mixed", partitions=2)
    message = produce(topic.name, GOOD)
    wrong = GOOD[:-1] + b"\xff"
    message["TopicData"][0]["PartitionData"] = [
        {"Index": index, "Records": records} for index, records in ((0, wrong), (1, GOOD), (7, GOOD))
    ]
    client.note("answer", client.call("Produce", 9, message))


def _null(client: Client) -> None:
    frame = encode_request("Produce", 9, produce(client.topic("null").name, None))
    client.note("reaction", kind(client.ask(frame, timeout_s=1.5)))
    client.note("the broker answers others afterwards", client.is_alive())


AREA.add(
    "null records", _null, accepted=["reply", "close"],
    reason="Kafka fails internally and never answers; any answer is better",
)  # fmt: skip


@AREA.row("too few replicas in sync refuse acks of all")
def _(client: Client) -> None:
    topic = client.topic("min-isr", configs={"min.insync.replicas": "2"})
    for acks in (1, -1):
        client.note(f"acks {acks}", part_of(client.call("Produce", 9, produce(topic.name, GOOD, acks=acks))))


@AREA.row("an internal topic refuses clients")
def _(client: Client) -> None:
    client.group()
    records = Batch([Item(b"v", b"k")]).encode()
    for name in ("__consumer_offsets", "__transaction_state"):
        partitions = [{"Index": 1_000_000, "Records": records}]
        message = {**produce(name, None), "TopicData": [{"Name": name, "PartitionData": partitions}]}
        client.note(name, part_of(client.call("Produce", 9, message)))


def producer_id(client: Client) -> int:
    """A new producer id."""
    message = {"TransactionalId": None, "TransactionTimeoutMs": 60_000}
    version = client.newest("InitProducerId", 4)
    found: list[int] = []

    def is_given() -> bool:
        answer = client.call("InitProducerId", version, message)
        if answer["ErrorCode"] == 0:
            found.append(answer["ProducerId"])
        return bool(found)

    client.until(is_given, "InitProducerId gives no producer id")
    return found[0]


def _story(steps: Sequence[Step], client: Client) -> None:
    topic, own = client.topic("idempotent"), producer_id(client)
    version = client.newest("Produce", 9)
    for number, step in enumerate(steps, 1):
        batch = Batch(
            [Item(b"%d" % step.sequence)] * step.count, producer_id=own, producer_epoch=step.epoch,
            base_sequence=step.sequence,
        )  # fmt: skip
        part = part_of(client.call("Produce", version, produce(topic.name, batch.encode())))
        label = f"batch {number}: epoch {step.epoch}, sequence {step.sequence}, {step.count} records"
        client.note(label, {key: part[key] for key in ("ErrorCode", "BaseOffset")})


for _label, _steps in STORIES.items():
    AREA.add(f"idempotence: {_label}", functools.partial(_story, _steps))


@AREA.row("producers of a partition are described")
def _(client: Client) -> None:
    topic, own = client.topic("described"), producer_id(client)
    batch = Batch([Item(), Item()], producer_id=own, producer_epoch=0, base_sequence=0)
    client.call("Produce", client.newest("Produce", 9), produce(topic.name, batch.encode()))
    asked = {"Topics": [{"Name": topic.name, "PartitionIndexes": [0, 9]}]}
    answer = client.call("DescribeProducers", 0, asked)
    for part in answer["Topics"][0]["Partitions"]:
        for producer in part["ActiveProducers"]:
            producer["LastTimestamp"] = (
                "the batch's" if producer["LastTimestamp"] == batch.base_timestamp else "another"
            )
    client.note("answer", answer)


@AREA.row("InitProducerId gives each caller another id")
def _(client: Client) -> None:
    one, two = producer_id(client), producer_id(client)
    client.note("they differ", one != two)
    for label, (own, epoch) in {"an id without an epoch": (7, -1), "an epoch without an id": (-1, 3)}.items():
        asked = {"TransactionalId": None, "TransactionTimeoutMs": 60_000, "ProducerId": own, "ProducerEpoch": epoch}
        client.note_code(label, client.call("InitProducerId", 4, asked)["ErrorCode"])
    empty = {"TransactionalId": "", "TransactionTimeoutMs": 60_000}
    client.note_code("an empty transactional id", client.call("InitProducerId", 4, empty)["ErrorCode"])


@AREA.row("the broker answers while a large request arrives slowly")
def _(client: Client) -> None:
    frame = encode_request("Produce", 9, produce(client.topic("slow").name, batch_of(b"x" * 100_000)))
    connection = client.connection()
    connection.send(frame[:50_000])
    client.session.exchange(client.deadline, "ApiVersions", 0, {})
    connection.send(frame[50_000:])
    client.note("answer", part_of(client.receive(connection, "Produce", 9)))
