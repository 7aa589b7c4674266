"""What a broker makes of valid and invalid record batches: the error code, the offset, and the stored bytes."""

from __future__ import annotations

import functools
import struct

from compat.card.client import Client
from compat.card.codec import Message
from compat.card.outcome import code_name
from compat.card.registry import Area
from compat.card.session import Topic
from compat.oracle.batches import Batch, Item, batch_of
from compat.oracle.produce_table import LOG_APPEND_TIME, ROWS, Row
from compat.oracle.test_produce import produce
from wire.compression import Codec, compress

AREA = Area("batches")
CODECS = {"gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def part_of(answer: Message) -> Message:
    """The only partition of a Produce answer."""
    part: Message = answer["Responses"][0]["PartitionResponses"][0]
    return part


def stored(client: Client, topic: Topic, *, partition: int = 0, offset: int = 0) -> bytes:
    """The bytes of a partition from an offset on."""
    wanted = {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": 1 << 22}
    asked: Message = {"ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 22, "SessionEpoch": -1}
    asked["Topics"] = [{"Topic": topic.name, "Partitions": [wanted]}]
    answer = client.call("Fetch", client.newest("Fetch", 12), asked)
    return bytes(answer["Responses"][0]["Partitions"][0]["Records"] or b"")


def _judged(row: Row, client: Client) -> None:
    configs = dict(row.configs)
    topic = client.shared_topic(("batches", row.configs), lambda: client.topic("batches", configs=configs))
    part = part_of(client.call("Produce", row.version, produce(topic.name, row.records)))
    part["BaseOffset"] = "none" if part["BaseOffset"] == -1 else "an offset"
    client.note("answer", part)


for _row in ROWS:
    AREA.add(
        _row.name.removeprefix("w7 "),
        functools.partial(_judged, _row),
        accepted=[code_name(code) for code in _row.ours] + ["True", "none", "-1", "[]"] if _row.ours else [],
        reason=f"Kafka's answer is not required: {_row.reason}",
    )


def _kept(batch: Batch, client: Client) -> None:
    topic = client.topic("stored")
    data = batch.encode()
    for number in (1, 2):
        client.note(f"answer {number}", part_of(client.call("Produce", 9, produce(topic.name, data))))
    client.note("the stored bytes", stored(client, topic))


KEPT = {
    "keys, null values and headers are kept": Batch(
        [Item(b"a", b"k", [("h", b"1"), ("h", None)], 5), Item(None, None, (), 0)]
    ),
    "empty keys and values are not null": Batch([Item(b"", b"", [("", b"")])]),
    "the attribute LogAppendTime is cleared": Batch(attributes=0x08),
    "the greatest timestamp is mended": Batch(max_timestamp=1_600_000_000_000),
    "the leader epoch is the broker's": Batch(leader_epoch=77),
    "unused attribute bits stay": Batch(attributes=0x80),
}
for _label, _batch in KEPT.items():
    AREA.add(_label, functools.partial(_kept, _batch))


def _compressed(codec: str, client: Client) -> None:
    items = [Item(b"value-%d" % place + b"x" * 200, b"key") for place in range(5)]
    records = b"".join(item.encode(place) for place, item in enumerate(items))
    data = Batch(items, codec=CODECS[codec], body=compress(CODECS[codec], records)).encode()
    topic = client.topic(codec)
    version = client.newest("Produce", 9)
    client.note("answer", part_of(client.call("Produce", version, produce(topic.name, data))))
    found = stored(client, topic)
    # The leader epoch is the broker's; everything else of the batch is the producer's.
    client.note("the stored batch is the sent one", found[:12] + found[16:] == data[:12] + data[16:])


for _codec in CODECS:
    AREA.add(f"a batch compressed by {_codec} is stored unchanged", functools.partial(_compressed, _codec))


def _recompressed(codec: str, client: Client) -> None:
    topic = client.topic("recompressed", configs={"compression.type": codec})
    sent = Batch([Item(b"x" * 300)] * 3, codec=1 if codec == "uncompressed" else 0)
    client.note("answer", part_of(client.call("Produce", 9, produce(topic.name, sent.encode()))))
    client.note("the codec of the stored batch", stored(client, topic)[22] & 7)


for _codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
    AREA.add(f"a topic's compression.type={_codec} is applied", functools.partial(_recompressed, _codec))


@AREA.row("LogAppendTime sets the greatest timestamp of the batch")
def _(client: Client) -> None:
    topic = client.topic("append-time", configs=dict(LOG_APPEND_TIME))
    batch = Batch([Item(), Item(timestamp_delta=9)])
    part = part_of(client.call("Produce", 9, produce(topic.name, batch.encode())))
    attributes, _, base, greatest = struct.unpack(">hiqq", stored(client, topic)[21:43])
    client.note("attributes", attributes)
    client.note("the base timestamp is the producer's", base == batch.base_timestamp)
    client.note("the greatest timestamp is that of the answer", greatest == part["LogAppendTimeMs"])


@AREA.row("a compacted topic refuses records without keys")
def _(client: Client) -> None:
    topic = client.topic("compacted", configs={"cleanup.policy": "compact"})
    for label, batch in (("without a key", batch_of(b"v")), ("with a key", Batch([Item(b"v", b"k")]).encode())):
        client.note(label, part_of(client.call("Produce", 9, produce(topic.name, batch))))
