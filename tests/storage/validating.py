"""Batches to validate, and calls that expect a refusal."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c

from kbroker.storage.log_config import LogConfig
from kbroker.storage.validation import (
    ProducedBatch,
    validate_produced,
)
from wire.compression import Codec
from wire.errors import KafkaError
from wire.record_batch import Record, RecordBatch, build_batch, with_payload

NOW = 1_700_000_000_000
HOUR = 3_600_000
CONFIG = LogConfig()
APPEND_TIME = replace(CONFIG, message_timestamp_type="LogAppendTime")
COMPACTED = replace(CONFIG, cleanup_policy=frozenset({"compact", "delete"}))
ONE = [Record(timestamp=NOW, value=b"value")]
THREE = [Record(timestamp=NOW + i, key=b"k", value=b"v" * i, headers=(("h", None),)) for i in range(3)]


def check(
    records: bytes | bytearray | memoryview | None, config: LogConfig = CONFIG, *, version: int = 9
) -> ProducedBatch:
    return validate_produced(records, api_version=version, config=config, timestamp_ms=NOW, partition="orders-0")


def refusal(
    records: bytes | bytearray | memoryview | None, config: LogConfig = CONFIG, *, version: int = 9
) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        check(records, config, version=version)
    return caught.value


def changed(built: bytes, position: int, value: bytes, *, new_crc: bool = True) -> bytes:
    data = bytearray(built)
    data[position : position + len(value)] = value
    if new_crc:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def of_payload(payload: bytes, *, codec: int = 0, count: int = 1) -> bytes:
    header = build_batch([], base_timestamp=NOW, max_timestamp=NOW, last_offset_delta=count - 1, record_count=count)
    return bytes(with_payload(RecordBatch(header), payload, codec))


GOOD = build_batch(ONE)
ZSTD = build_batch(ONE, codec=Codec.ZSTD)
