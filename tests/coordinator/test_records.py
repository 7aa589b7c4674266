"""The bytes in `__consumer_offsets`. The expected bytes come from GroupCoordinatorRecordSerde of Apache Kafka 4.3.1."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.coordinator.common.ports import partition_for
from kbroker.coordinator.records import (
    GroupRecord,
    OffsetRecord,
    StoredRecord,
    decode_record,
    group_tombstone,
    offset_tombstone,
)
from wire.codec import encode
from wire.errors import Malformed
from wire.stored.frame import encode_value
from wire.stored.groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSET_KEY = "0001000a6f72646572732d61707000066f726465727300000003"
GROUP_KEY = "0002000a6f72646572732d617070"
GROUP_VALUE = (
    "00030008636f6e73756d657200000007000572616e676500036d2d310000018bcfe56800000000"
    "0100036d2d310003692d31000163000a2f3132372e302e302e3100007530000027100000000200010000000102"
)
KEY = OffsetCommitKey(group="orders-app", topic="orders", partition=3)
COMMITTED_MS = 1_700_000_000_000

KAFKAS: list[tuple[str, StoredRecord, str, str | None]] = [
    (
        "an offset of a topic with an id",
        OffsetRecord(
            KEY,
            OffsetCommitValue(
                offset=42, leader_epoch=5, metadata="note", commit_timestamp=COMMITTED_MS, topic_id=UUID(int=1)
            ),
        ),
        OFFSET_KEY,
        "0004000000000000002a00000005056e6f74650000018bcfe5680001001000000000000000000000000000000001",
    ),
    (
        "an offset",
        OffsetRecord(KEY, OffsetCommitValue(offset=42, metadata="", commit_timestamp=COMMITTED_MS)),
        OFFSET_KEY,
        "0004000000000000002affffffff010000018bcfe5680000",
    ),
    (
        "an offset with its own retention",
        OffsetRecord(
            KEY,
            OffsetCommitValue(
                offset=42,
                leader_epoch=5,
                metadata="note",
                commit_timestamp=COMMITTED_MS,
                expire_timestamp=COMMITTED_MS + 60_000,
            ),
        ),
        OFFSET_KEY,
        "0001000000000000002a00046e6f74650000018bcfe568000000018bcfe65260",
    ),
    ("an offset's tombstone", offset_tombstone("orders-app", "orders", 3), OFFSET_KEY, None),
    ("a group's tombstone", group_tombstone("orders-app"), GROUP_KEY, None),
    (
        "a group",
        GroupRecord(
            GroupMetadataKey(group="orders-app"),
            GroupMetadataValue(
                protocol_type="consumer",
                generation=7,
                protocol="range",
                leader="m-1",
                current_state_timestamp=COMMITTED_MS,
                members=[
                    MemberMetadata(
                        member_id="m-1",
                        group_instance_id="i-1",
                        client_id="c",
                        client_host="/127.0.0.1",
                        rebalance_timeout=30_000,
                        session_timeout=10_000,
                        subscription=b"\0\1",
                        assignment=b"\2",
                    )
                ],
            ),
        ),
        GROUP_KEY,
        GROUP_VALUE,
    ),
]


@pytest.mark.parametrize(("record", "key", "value"), [row[1:] for row in KAFKAS], ids=[row[0] for row in KAFKAS])
def test_records_have_the_bytes_that_apache_kafka_writes(record: StoredRecord, key: str, value: str | None) -> None:
    assert record.key.hex() == key
    assert (None if record.value is None else record.value.hex()) == value


@pytest.mark.parametrize(("record", "key", "value"), [row[1:] for row in KAFKAS], ids=[row[0] for row in KAFKAS])
def test_records_are_read_back(record: StoredRecord, key: str, value: str | None) -> None:
    found = decode_record(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert found is not None
    assert (found.key, found.value) == (record.key, record.value)


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_every_version_are_read(version: int) -> None:
    value = OffsetCommitValue(offset=42, metadata="note", commit_timestamp=COMMITTED_MS)
    found = decode_record(bytes.fromhex(OFFSET_KEY), encode_value(value, version))
    assert found == OffsetRecord(KEY, value)


@pytest.mark.parametrize("version", range(5))
def test_groups_of_every_version_are_read(version: int) -> None:
    value = GroupMetadataValue(protocol_type="", generation=3, protocol=None, leader=None, members=[])
    found = decode_record(bytes.fromhex(GROUP_KEY), encode_value(value, version))
    assert found == GroupRecord(GroupMetadataKey(group="orders-app"), value)


def test_offsets_with_the_first_version_of_keys_are_read() -> None:
    value = LegacyOffsetCommitValue(offset=42, metadata="note", commit_timestamp=COMMITTED_MS)
    found = decode_record(b"\0\0" + encode(KEY, 0), encode_value(value, 0))
    assert found == OffsetRecord(KEY, OffsetCommitValue(offset=42, metadata="note", commit_timestamp=COMMITTED_MS))
    assert decode_record(b"\0\0" + encode(KEY, 0), None) == OffsetRecord(KEY, None)


@pytest.mark.parametrize("record_type", [3, 8, 16, 25, 0x7FFF])
def test_records_of_other_group_types_decode_to_none(record_type: int) -> None:
    assert decode_record(record_type.to_bytes(2, "big") + b"whatever", b"\0\0whatever") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0", None),
        (b"\0\1\0", None),
        (bytes.fromhex(OFFSET_KEY), b""),
        (bytes.fromhex(OFFSET_KEY), b"\0\x05\0"),
        (bytes.fromhex(GROUP_KEY), b"\0\3\0\x08con"),
    ],
    ids=["empty key", "half a type", "truncated key", "empty value", "unknown version", "truncated value"],
)
def test_invalid_records_are_malformed(key: bytes, value: bytes | None) -> None:
    with pytest.raises(Malformed):
        decode_record(key, value)


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("", 0),
        ("a", 47),
        ("orders-app", 5),
        ("console-consumer-12345", 6),
        ("grün", 49),
        ("\U0001f600 group", 6),
        ("x" * 300, 14),
        ("polygenelubricants", 0),  # hashes to the smallest int32
    ],
)
def test_partition_for_agrees_with_apache_kafka(group_id: str, partition: int) -> None:
    assert partition_for(group_id, 50) == partition
