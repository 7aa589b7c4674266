"""Kafka's answers to a Produce, row by row (W5): the error code, and further codes that are allowed here, with the
reason.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass

from compat.oracle.batches import GZIP, LZ4, SNAPPY, ZSTD, Batch, Item, batch_of

NONE, CORRUPT_MESSAGE, UNKNOWN_TOPIC, MESSAGE_TOO_LARGE, INVALID_TOPIC, RECORD_LIST_TOO_LARGE = 0, 2, 3, 10, 17, 18
INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP, OUT_OF_ORDER, INVALID_PRODUCER_EPOCH = 21, 32, 45, 47
UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD = 76, 87
# Java throws while it decompresses such a batch, and a client retries after -1.
NEVER_MINUS_ONE = "an error that the client cannot mend must not look like one of the broker's"


@dataclass(frozen=True)
class Row:
    """A batch (or any bytes) and Kafka's answer to it; `ours` are further codes that kbroker may return, with a
    reason.
    """

    name: str
    records: bytes | None
    code: int
    ours: tuple[int, ...] = ()
    reason: str = ""
    version: int = 9
    configs: tuple[tuple[str, str], ...] = ()


def _lz4_garbage() -> bytes:
    return Batch(codec=LZ4, body=b"this is no LZ4 frame").encode()


LOG_APPEND_TIME = (("message.timestamp.type", "LogAppendTime"),)
_NEAR = (("message.timestamp.before.max.ms", "1000"), ("message.timestamp.after.max.ms", "1000"))
FUTURE = 4_000_000_000_000
GOOD = batch_of(b"value")
# A bit flip after the checksum was computed, as by a bad disk or cable.
FLIPPED = GOOD[:-2] + bytes([GOOD[-2] ^ 1]) + GOOD[-1:]

ROWS = [
    Row("a good batch", GOOD, NONE),
    Row("no bytes", b"", INVALID_RECORD),
    Row("a wrong checksum", FLIPPED, CORRUPT_MESSAGE),
    Row("a checksum of zero", Batch(crc=0).encode(), CORRUPT_MESSAGE),
    Row("a batch cut short", GOOD[:-3], INVALID_RECORD),
    Row("a batch cut in its header", GOOD[:30], INVALID_RECORD),
    Row("a length that is too large", Batch(batch_length=1000).encode(), INVALID_RECORD),
    Row("a length that is too small", Batch(batch_length=20).encode(), CORRUPT_MESSAGE),
    Row("a negative length", Batch(batch_length=-1).encode(), CORRUPT_MESSAGE),
    Row("bytes after the batch", GOOD + b"surplus", NONE, (INVALID_RECORD,), "the bytes are lost either way"),
    Row("two batches", GOOD + GOOD, INVALID_RECORD),
    Row("magic 0", Batch(magic=0).encode(), INVALID_RECORD, (CORRUPT_MESSAGE,), "no such record is readable"),
    Row("magic 1", Batch(magic=1).encode(), INVALID_RECORD, (CORRUPT_MESSAGE,), "no such record is readable"),
    Row("magic 3", Batch(magic=3).encode(), CORRUPT_MESSAGE),
    Row("a base offset that is not 0", Batch(base_offset=5).encode(), INVALID_RECORD),
    Row("no records", Batch([], last_offset_delta=-1).encode(), INVALID_RECORD),
    Row("a count above the last offset delta", Batch(record_count=2).encode(), INVALID_RECORD),
    Row("a last offset delta above the count", Batch(last_offset_delta=1).encode(), INVALID_RECORD),
    Row("a count above the records", Batch(record_count=2, last_offset_delta=1).encode(), INVALID_RECORD),
    Row(
        "a count below the records",
        Batch([Item(), Item()], record_count=1, last_offset_delta=0).encode(),
        INVALID_RECORD,
    ),
    Row("a negative count", Batch(record_count=-1, last_offset_delta=-2).encode(), INVALID_RECORD),
    Row("a control batch", Batch(attributes=0x20).encode(), INVALID_RECORD),
    Row("a record longer than the batch", Batch(body=b"\x7e\x00\x00\x00\x01\x02v\x00").encode(), INVALID_RECORD),
    Row("a negative record length", Batch(body=b"\x01\x00\x00\x00\x01\x02v\x00").encode(), INVALID_RECORD),
    Row("w7 a header count of 2^31-1", Batch([Item(header_count=2**31 - 1)]).encode(), INVALID_RECORD),
    Row("a negative header count", Batch([Item(header_count=-1)]).encode(), INVALID_RECORD),
    Row("a negative header key", Batch(body=b"\x12\x00\x00\x00\x01\x02v\x02\x01\x01").encode(), INVALID_RECORD),
    Row("unused attribute bits", Batch(attributes=0x80).encode(), NONE),
    Row(
        "inner offsets with a gap",
        Batch([Item(delta=0), Item(delta=5)], last_offset_delta=1).encode(),
        NONE,
        (INVALID_RECORD,),
        "consumers would see an offset that another record has",
    ),
    Row(
        "the same in a gzip batch",
        Batch([Item(delta=0), Item(delta=5)], last_offset_delta=1, codec=GZIP).encode(),
        -1,
        (INVALID_RECORD,),
        NEVER_MINUS_ONE,
    ),
    Row("a gzip batch", Batch([Item(b"x" * 1000), Item()], codec=GZIP).encode(), NONE),
    Row(
        "a gzip batch with a count too high",
        Batch(codec=GZIP, record_count=2, last_offset_delta=1).encode(),
        INVALID_RECORD,
    ),
    Row(
        "a gzip block with bytes after its records",
        Batch(codec=GZIP, body=gzip.compress(Item().encode(0) + b"abc")).encode(),
        INVALID_RECORD,
    ),
    Row(
        "an invalid gzip block",
        Batch(codec=GZIP, body=b"no gzip").encode(),
        -1,
        (INVALID_RECORD, CORRUPT_MESSAGE),
        NEVER_MINUS_ONE,
    ),
    Row(
        "a gzip block cut short",
        Batch(codec=GZIP, body=gzip.compress(Item().encode(0))[:-9]).encode(),
        -1,
        (INVALID_RECORD, CORRUPT_MESSAGE),
        NEVER_MINUS_ONE,
    ),
    Row(
        "an invalid snappy block",
        Batch(codec=SNAPPY, body=b"no snappy block").encode(),
        -1,
        (INVALID_RECORD, CORRUPT_MESSAGE),
        NEVER_MINUS_ONE,
    ),
    Row("an invalid LZ4 block", _lz4_garbage(), -1, (INVALID_RECORD, CORRUPT_MESSAGE), NEVER_MINUS_ONE),
    Row(
        "an invalid zstd block",
        Batch(codec=ZSTD, body=b"no zstd").encode(),
        -1,
        (INVALID_RECORD, CORRUPT_MESSAGE),
        NEVER_MINUS_ONE,
    ),
    Row("codec 5", Batch(codec=5).encode(), -1, (UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD), NEVER_MINUS_ONE),
    Row("codec 7", Batch(codec=7).encode(), -1, (UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD), NEVER_MINUS_ONE),
    Row("zstd below version 7", Batch(codec=ZSTD, body=b"any").encode(), UNSUPPORTED_COMPRESSION_TYPE, version=6),
    Row("above max.message.bytes", batch_of(b"x" * 1_048_588), MESSAGE_TOO_LARGE),
    Row(
        "above max.message.bytes with a wrong checksum",
        batch_of(b"x" * 1_048_588)[:-1] + b"\xff",
        MESSAGE_TOO_LARGE,
    ),
    Row(
        "above a topic's max.message.bytes",
        batch_of(b"x" * 2000),
        MESSAGE_TOO_LARGE,
        configs=(("max.message.bytes", "1000"),),
    ),
    Row("as large as max.message.bytes", batch_of(b"x" * (1_048_588 - 61 - 11)), NONE),
    Row(
        "above segment.bytes",
        batch_of(b"x" * 1_100_000),
        RECORD_LIST_TOO_LARGE,
        configs=(("segment.bytes", "1048576"), ("max.message.bytes", "2000000")),
    ),
    Row("the attribute LogAppendTime", Batch(attributes=0x08).encode(), NONE),
    Row(
        "the attribute LogAppendTime on such a topic",
        Batch(attributes=0x08).encode(),
        INVALID_TIMESTAMP,
        configs=LOG_APPEND_TIME,
    ),
    Row("CreateTime on a LogAppendTime topic", GOOD, NONE, configs=LOG_APPEND_TIME),
    Row("no timestamp", Batch(base_timestamp=-1, max_timestamp=-1).encode(), NONE),
    Row(
        "no timestamp and the attribute LogAppendTime",
        Batch(base_timestamp=-1, max_timestamp=-1, attributes=0x08).encode(),
        INVALID_TIMESTAMP,
    ),
    Row("a wrong greatest timestamp", Batch(max_timestamp=1_700_000_099_000).encode(), NONE),
    Row("a timestamp two centuries ahead", Batch(base_timestamp=FUTURE * 2).encode(), INVALID_TIMESTAMP),
    Row("a timestamp before message.timestamp.before.max.ms", GOOD, INVALID_TIMESTAMP, configs=_NEAR),
    Row(
        "a producer id without a sequence",
        Batch(producer_id=5, producer_epoch=0, base_sequence=-1).encode(),
        INVALID_RECORD,
    ),
    Row(
        "a transactional batch without a transactional id",
        Batch(producer_id=5, producer_epoch=0, base_sequence=0, attributes=0x10).encode(),
        53,
        (48, 87, 35),
        "transactions are not implemented",
    ),
]


@dataclass(frozen=True)
class Step:
    """One batch of an idempotent producer, and its expected code."""

    sequence: int
    code: int
    count: int = 1
    epoch: int = 0


STORIES = {
    "in order": [Step(0, NONE), Step(1, NONE, 3), Step(4, NONE)],
    "a gap": [Step(0, NONE), Step(2, OUT_OF_ORDER)],
    "any start": [Step(1000, NONE), Step(1001, NONE)],
    "a duplicate is acknowledged with its old offset": [
        Step(0, NONE),
        Step(1, NONE),
        Step(0, NONE),
        Step(1, NONE),
        Step(2, NONE),
    ],
    "five batches are remembered": [*(Step(n, NONE) for n in range(6)), Step(1, NONE), Step(0, OUT_OF_ORDER)],
    "a part of a batch": [Step(0, NONE, 3), Step(1, OUT_OF_ORDER, 2), Step(0, OUT_OF_ORDER, 2), Step(3, NONE)],
    "the sequence wraps": [Step(2**31 - 2, NONE, 2), Step(0, NONE), Step(2**31 - 2, NONE, 2)],
    "the sequence wraps inside a batch": [Step(2**31 - 1, NONE, 3), Step(2, NONE)],
    "a new epoch starts at 0": [
        Step(0, NONE),
        Step(1, OUT_OF_ORDER, epoch=1),
        Step(0, NONE, epoch=1),
        Step(1, NONE, epoch=1),
    ],
    "an old epoch": [Step(0, NONE, epoch=5), Step(1, INVALID_PRODUCER_EPOCH, epoch=4), Step(1, NONE, epoch=5)],
}
