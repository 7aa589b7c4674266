"""Frames of stored records: those of the metadata log, and keys and values of coordinator topics."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from wire.errors import Malformed
from wire.stored import groups, metadata, tiered
from wire.stored.frame import (
    decode_key,
    decode_record,
    decode_value,
    encode_key,
    encode_record,
    encode_value,
    record_types,
)

RECORDS = record_types(metadata)
KEYS = record_types(groups, "Key")
TOPIC = metadata.TopicRecord(name="orders", topic_id=UUID(int=5))


def test_a_metadata_record_starts_with_frame_version_type_and_version() -> None:
    assert encode_record(TOPIC, 0) == b"\x01\x02\x00" + b"\x07orders" + UUID(int=5).bytes + b"\x00"
    assert decode_record(encode_record(TOPIC, 0), RECORDS) == (TOPIC, 0)


def test_every_record_type_of_the_metadata_log_is_found() -> None:
    assert set(RECORDS) == set(range(29)) - {6, 13, 16}
    assert set(record_types(tiered)) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x01\x02",
        b"\x00\x02\x00" + encode_record(TOPIC, 0)[3:],
        b"\x02\x02\x00" + encode_record(TOPIC, 0)[3:],
        b"\x01\x1d\x00" + encode_record(TOPIC, 0)[3:],
        b"\x01\x02\x01" + encode_record(TOPIC, 0)[3:],
        encode_record(TOPIC, 0) + b"\x00",
        encode_record(TOPIC, 0)[:-1],
        b"\xff\xff\xff\xff\xff\xff",
    ],
)
def test_w4_other_frames_types_versions_and_lengths_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_record(data, RECORDS)


def test_keys_start_with_a_type_and_values_with_a_version() -> None:
    key = groups.OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_key(key) == b"\x00\x01" + b"\x00\x01g\x00\x01t" + struct.pack(">i", 3)
    assert decode_key(encode_key(key), KEYS) == key
    value: Any = groups.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1, leader_epoch=2)
    assert encode_value(value, 3)[:2] == b"\x00\x03"
    assert decode_value(groups.OffsetCommitValue, encode_value(value, 3)) == value


def test_keys_of_a_later_broker_are_skipped() -> None:
    assert decode_key(b"\x03\xe7later", KEYS) is None


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x03\xe7later", b"\xff\xff"])
def test_w4_cut_values_and_unknown_versions_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_value(groups.OffsetCommitValue, data)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x01\x00\x05g"])
def test_w4_cut_keys_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_key(data, KEYS)
