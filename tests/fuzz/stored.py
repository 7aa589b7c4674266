"""Records that brokers store for each other: the metadata log and its snapshots, the tier's metadata, groups,
transactions, control records, and what consumers exchange through the coordinator.

A broker writes them, but their reader must survive a damaged disk, a newer writer and a hostile member.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from compat.schemas.filler import full, sparse
from kbroker.controller.records import decode_value as decode_metadata
from kbroker.controller.snapshots import read_snapshot
from kbroker.coordinator.consumer.migrating import decoded, subscription_of
from kbroker.coordinator.consumer.records import decode_consumer_record
from kbroker.coordinator.records import decode_record as decode_group
from kbroker.coordinator.transactions.records import decode_record as decode_transaction
from kbroker.metadata.errors import UnusableMetadata
from kbroker.storage.control_records import read_control
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import RemoteLogSegmentMetadata, RemoteStorageError
from kbroker.tiered.layout import MANIFEST, object_name, stored_size
from kbroker.tiered.metadata_topic import decode_event, encode_event, read_events
from tests.fuzz.batches import NOW_MS, with_valid_head
from tests.fuzz.target import Target
from tests.wire.generated import declared_classes
from wire.errors import Malformed
from wire.record_batch import Record, build_batch
from wire.schema import schema_of
from wire.stored import consumer_protocol, control, groups, metadata, tiered, transactions
from wire.stored.consumer_protocol import ConsumerProtocolAssignment
from wire.stored.frame import decode_record, encode_key, encode_record, encode_value, record_types

_METADATA = record_types(metadata)
_TIERED = record_types(tiered)


def _read_metadata(data: bytes) -> None:
    try:
        record = decode_metadata(data)
    except UnusableMetadata:
        return
    _check_again(record, data, _METADATA)


def _check_again(record: Any, data: bytes, types: dict[int, type]) -> None:
    _, version = decode_record(data, types)
    again = encode_record(record, version)
    assert len(again) <= len(data)
    second, _ = decode_record(again, types)
    assert encode_record(second, version) == again


def _read_snapshot(data: bytes) -> None:
    """Batches with one byte before each size (255 at most), which get valid heads if the first byte is odd."""
    disk = SimulatedDisk()
    parts, position = [], 1
    while position < len(data):
        size = data[position]
        batch = bytearray(data[position + 1 : position + 1 + size])
        parts.append(bytes(with_valid_head(batch, codec=None) if data[0] & 1 else batch))
        position += 1 + size
    file = disk.open("/snapshot", create=True)
    file.pwrite(b"".join(parts), 0)
    file.close()
    try:
        read_snapshot(disk, "/snapshot")
    except (Malformed, UnusableMetadata):
        return


def _read_event(data: bytes) -> None:
    try:
        event = decode_event(data)
    except Malformed:
        return
    assert hash(decode_event(encode_event(event))) == hash(event)
    if isinstance(event, RemoteLogSegmentMetadata):
        try:  # any client may write to the metadata topic
            stored_size(event)
            object_name(event, MANIFEST)
        except RemoteStorageError:
            return


def _read_events(data: bytes) -> None:
    found = read_events(
        bytes(with_valid_head(bytearray(data), codec=None)), 0, end_offset=1 << 40, partition=0, partition_count=1
    )
    assert found.next_offset >= 0
    for (first, count, _), (second, _, _) in itertools.pairwise(found.skipped):
        assert first + count <= second


def _keyed(decode: Callable[[bytes, bytes | None], Any]) -> Callable[[bytes], None]:
    """A record with a key: byte 0 is the size of the key; a value of one byte 255 is a tombstone."""

    def read(data: bytes) -> None:
        if not data:
            return
        key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
        try:
            record = decode(key, None if value == b"\xff" else value)
        except Malformed:
            return
        if record is not None:
            repr(record)

    return read


def _read_control(data: bytes) -> None:
    if not data:
        return
    try:
        read_control(Record(key=data[1 : 1 + data[0]], value=data[1 + data[0] :]))
    except Malformed:
        return


def _read_subscription(data: bytes) -> None:
    for read in (subscription_of, lambda one: decoded(ConsumerProtocolAssignment, one)):
        try:
            read(data)
        except Malformed:
            continue


_READERS: tuple[Callable[[bytes], None], ...] = (
    _read_metadata,
    _read_event,
    _read_events,
    _keyed(decode_group),
    _keyed(decode_consumer_record),
    _keyed(decode_transaction),
    _read_control,
    _read_subscription,
    _read_snapshot,
)


def read_stored(data: bytes) -> None:
    """Byte 0 chooses the kind of record."""
    if data:
        _READERS[data[0] % len(_READERS)](data[1:])


def _both(module: Any, suffix: str = "") -> Iterator[tuple[Any, int]]:
    """Two values of each class of a module in each version."""
    for cls in declared_classes():
        if cls.__module__ == module.__name__ and cls.__name__.endswith(suffix):
            versions = schema_of(cls).versions
            for version in range(versions.lowest, versions.highest + 1):
                yield full(cls, version), version
                yield sparse(cls, version), version


def _seeds() -> Iterator[bytes]:
    for value, version in _both(metadata):
        yield b"\x00" + encode_record(value, version)
    for value, version in _both(tiered, "Record"):
        if schema_of(type(value)).record_type is not None:
            record = encode_record(value, version)
            yield b"\x01" + record
            yield b"\x02" + build_batch([Record(timestamp=NOW_MS, value=record)])
    for kinds, module in ((b"\x03\x04", groups), (b"\x05", transactions)):
        values = {type(value).__name__: (value, version) for value, version in _both(module, "Value")}
        for key, _ in _both(module, "Key"):
            head = encode_key(key)
            found = values.get(type(key).__name__.removesuffix("Key") + "Value")
            for kind in kinds:
                yield bytes([kind, len(head)]) + head + b"\xff"
                if found is not None:
                    yield bytes([kind, len(head)]) + head + encode_value(*found)
    for number, cls in enumerate((control.EndTxnMarker, control.LeaderChangeMessage, control.SnapshotHeaderRecord)):
        yield bytes([6, 4, 0, 0, 0, number + 1]) + encode_value(full(cls, 0), 0)
    for value, version in _both(consumer_protocol, "n") or _both(consumer_protocol, "t"):
        yield b"\x07" + encode_value(value, version)
    record = build_batch([Record(timestamp=NOW_MS, key=b"\0\0\0\3", value=bytes(10))], is_control=True)
    footer = build_batch([Record(timestamp=NOW_MS, key=b"\0\0\0\4", value=b"\0\0")], is_control=True, base_offset=1)
    yield b"\x08\x01" + bytes([len(record)]) + record + bytes([len(footer)]) + footer


TARGETS = (Target("stored", read_stored, _seeds, allocated=(1 << 20, 1024), weight=2.0),)
