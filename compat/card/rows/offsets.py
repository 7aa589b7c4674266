"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import functools

from compat.card.client import Client
from compat.card.registry import Area
from compat.card.session import ABSENT, Topic
from compat.oracle.batches import GZIP, Batch, Item
from compat.oracle.test_offsets import DATES, SPECIAL, START, delete, ending, listing
from compat.oracle.test_produce import produce

AREA = Area("offsets")


def dated(client: Client) -> Topic:
    """Partition 0: twelve records in three batches; 1 is empty; 2 is 0 with the first five records deleted."""

    def make() -> Topic:
        topic = client.topic("offsets", partitions=3)
        version = client.newest("Produce", 9)
        for partition in (0, 2):
            for number, codec in enumerate([0, GZIP, 0]):
                items = [Item(b"v", timestamp_delta=1000 * place) for place in range(4)]
                items[1].timestamp_delta = 9000 if number == 1 else 1000
                batch = Batch(items, base_timestamp=START + 4000 * number, codec=codec)
                client.call("Produce", version, produce(topic.name, batch.encode(), partition=partition))
        client.call("DeleteRecords", client.newest("DeleteRecords", 2), delete(topic.name, 2, 5))
        return topic

    return client.shared_topic("dated", make)


NAMES = {
    -1: "latest", -2: "earliest", -3: "greatest timestamp", -4: "earliest local", -5: "latest tiered",
    -6: "earliest pending upload", -7: "minus seven", -(2**63): "the least integer",
}  # fmt: skip


def _at(timestamp: int, client: Client) -> None:
    topic = dated(client)
    newest = client.newest("ListOffsets", 11)
    for version in range(1, 12):
        if version > newest:
            client.skip(f"version {version}")
            continue
        answer = client.call("ListOffsets", version, listing(topic.name, timestamp))
        client.note(f"version {version}", answer["Topics"])


for _timestamp in SPECIAL:
    AREA.add(f"the offset of {NAMES[_timestamp]} ({_timestamp})", functools.partial(_at, _timestamp))
for _timestamp in DATES:
    _shown = f"{_timestamp - START} ms after the first record" if 0 < _timestamp < 2**62 else str(_timestamp)
    AREA.add(f"the offset of a timestamp: {_shown}", functools.partial(_at, _timestamp))


@AREA.row("committed reads find the same offsets without transactions")
def _(client: Client) -> None:
    topic = dated(client)
    for timestamp in (-1, -2, START + 1500):
        message = {**listing(topic.name, timestamp), "IsolationLevel": 1}
        client.note(f"timestamp {timestamp}", client.call("ListOffsets", 7, message)["Topics"])


@AREA.row("a leader epoch is compared")
def _(client: Client) -> None:
    topic = dated(client)
    for epoch in (-1, 0, 1):
        message = listing(topic.name, -1, 0, CurrentLeaderEpoch=epoch)
        client.note(f"epoch {epoch}", client.call("ListOffsets", 4, message)["Topics"])


@AREA.row("unknown and repeated partitions")
def _(client: Client) -> None:
    topic = dated(client)
    for label, message in {
        "unknown partitions": listing(topic.name, -1, 0, 3, -1),
        "an unknown topic": listing(ABSENT, -1, 0),
        "a name that no topic can have": listing("../x", -1, 0),
        "a partition twice": listing(topic.name, -1, 1, 1),
    }.items():
        client.note(label, client.call("ListOffsets", 5, message)["Topics"])


@AREA.row("the end of a leader epoch")
def _(client: Client) -> None:
    topic = dated(client)
    for epoch in (-1, 0, 1, 7):
        for current in (-1, 0, 1):
            message = ending(topic.name, epoch, 0, current=current)
            answer = client.call("OffsetForLeaderEpoch", 4, message)
            client.note(f"epoch {epoch}, current {current}", answer["Topics"])
    client.note("an unknown partition", client.call("OffsetForLeaderEpoch", 4, ending(topic.name, 0, 3))["Topics"])
    unknown = ending(ABSENT, 0, 0)
    client.note("an unknown topic", client.call("OffsetForLeaderEpoch", 4, unknown)["Topics"])


@AREA.row("records are deleted up to an offset")
def _(client: Client) -> None:
    topic = client.topic("deleted")
    for _number in range(3):
        client.call("Produce", 9, produce(topic.name, Batch([Item(), Item()]).encode()))
    for number, offset in enumerate((2, 3, 1, -2, 7, -1, 0, 6)):
        answer = client.call("DeleteRecords", 2, delete(topic.name, 0, offset))["Topics"]
        client.note(f"{number}: up to {offset}", answer)
        start = client.call("ListOffsets", 5, listing(topic.name, -2, 0))["Topics"]
        client.note(f"{number}: earliest after that", start)
    client.note("an unknown partition", client.call("DeleteRecords", 2, delete(topic.name, 1, 0))["Topics"])
    unknown = delete(ABSENT, 0, 0)
    client.note("an unknown topic", client.call("DeleteRecords", 2, unknown)["Topics"])


@AREA.row("records of a compacted topic cannot be deleted")
def _(client: Client) -> None:
    topic = client.topic("compacted", configs={"cleanup.policy": "compact"})
    client.note("answer", client.call("DeleteRecords", 2, delete(topic.name, 0, 0))["Topics"])
