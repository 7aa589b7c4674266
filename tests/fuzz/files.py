"""The files of a data directory and of the tier: indexes, snapshots of producers, checkpoints, identities, manifests.

Text files are read as the broker reads them: bytes that are not UTF-8 are malformed. Numbers that a broker
cannot have written must be refused, because they would stop the broker later.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

from kbroker.controller.quorum_state import parse_quorum_state
from kbroker.metadata.errors import UnusableMetadata
from kbroker.storage.checkpoint import format_lines, parse_offsets
from kbroker.storage.files import FilePool
from kbroker.storage.formatting import CLEAN_SHUTDOWN, parse_identity, parse_partition_metadata, read_clean_shutdown
from kbroker.storage.index import CorruptIndex, Index, OffsetIndex, TimeIndex
from kbroker.storage.leader_epoch import LeaderEpochs, format_epochs, parse_epochs
from kbroker.storage.producer_state import ProducerState, format_snapshot, parse_snapshot, snapshot_rows
from kbroker.storage.transaction_index import AbortedTransaction, TransactionIndex
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteStorageError, TopicIdPartition
from kbroker.tiered.indexes import checked_offsets, checked_times, checked_transactions
from kbroker.tiered.layout import FINISHED, MANIFEST, Manifest, object_name, parse_object_name
from kbroker.tiered.metadata_topic import decode_event, encode_event
from kbroker.tiered.minio_connections import parse_xml
from kbroker.tiered.registry import parse_partitions
from tests.fuzz.target import Target
from wire.crc32c import crc32c

MAX_INT32, MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
_SEGMENT = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=2)),
    start_offset=100,
    end_offset=1_000_000,
    max_timestamp_ms=1 << 41,
    broker_id=1,
    event_timestamp_ms=1,
    segment_leader_epochs=((0, 100),),
    segment_size_in_bytes=1 << 30,
    state=FINISHED,
)


def _disk_with(path: str, data: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    directory = path.rpartition("/")[0]
    if directory:
        disk.make_directory(directory)
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.close()
    return disk


def _index(kind: type[Index]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        index = kind(FilePool(_disk_with("/index", data)), "/index")
        try:
            entries = index.entries
            assert entries * index._entry.size <= len(data)
            found = index.read_all()
            assert len(found) == entries
            index.last()
            index.first()
            index.check_order()
            for target in (-1, 0, 1, 1 << 20, MAX_INT32):
                floor = index.floor(target)
                assert floor == max(
                    (entry for entry in found if entry[0] <= target), default=None, key=lambda one: one[0]
                )
            index.truncate_below(1 << 20)
            assert all(entry[0] < 1 << 20 for entry in index.read_all())
        except CorruptIndex:
            return

    return read


def _transactions(data: bytes) -> None:
    index = TransactionIndex(FilePool(_disk_with("/index", data)), "/index")
    try:
        found, _ = index.between(0, MAX_INT64)
        assert len(found) <= len(data) // 34
    except CorruptIndex:
        return


def _remote(check: Callable[[bytes, RemoteLogSegmentMetadata], bytes]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        try:
            checked = check(data, _SEGMENT)
        except CorruptIndex:
            return
        assert data.startswith(checked)

    return read


def _snapshot(data: bytes) -> None:
    if data and data[0] & 1:  # with a valid checksum
        body = data[7:]
        data = struct.pack(">hI", 1, crc32c(body)) + body
    try:
        entries = parse_snapshot(data)
        rows = list(snapshot_rows(data))
    except ValueError:
        return
    assert len(entries) <= len(rows) <= len(data) // 46
    again = format_snapshot(entries)
    assert bytes(format_snapshot(parse_snapshot(again))) == bytes(again)
    state = ProducerState()
    state.restore(1 << 40, entries)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        try:
            parse(data.decode())
        except ValueError:
            return

    return read


def _epochs(text: str) -> None:
    entries = parse_epochs(text)
    assert all(0 <= epoch <= MAX_INT32 and 0 <= start <= MAX_INT64 for epoch, start in entries), entries
    assert parse_epochs(format_epochs(entries)) == entries
    assert LeaderEpochs(entries).entries == entries


def _offsets(text: str) -> None:
    for (_, partition), offset in parse_offsets(text).items():
        struct.pack(">iq", partition, offset)


def _identity(text: str) -> None:
    struct.pack(">i", parse_identity(text).node_id)


def _quorum_state(data: bytes) -> None:
    try:
        state = parse_quorum_state(data, "quorum-state")
    except UnusableMetadata:
        return
    assert -1 <= state.leader_epoch <= MAX_INT32, state


def _clean_shutdown(data: bytes) -> None:
    epoch = read_clean_shutdown(_disk_with(f"/d/{CLEAN_SHUTDOWN}", data), "/d")
    struct.pack(">q", epoch)


def _manifest(data: bytes) -> None:
    try:
        found = Manifest.parse(data)
    except RemoteStorageError:
        return
    assert Manifest.parse(found.to_bytes()) == found
    try:
        named = Manifest.parse_named(data, object_name(found.metadata, MANIFEST))
    except (RemoteStorageError, ValueError):
        return
    decode_event(encode_event(named.metadata))


def _partitions(text: str) -> None:
    found, removed = parse_partitions(text)
    for one in found:
        struct.pack(">i", one.partition)
    assert removed <= {one.topic_id for one in found}


def _object_name(text: str) -> None:
    found = parse_object_name(text)
    if found is not None:
        assert found.start_offset >= 0


def _xml(data: bytes) -> None:
    try:
        parse_xml(data)
    except SyntaxError:  # ElementTree.ParseError
        return


_READERS: tuple[Callable[[bytes], None], ...] = (
    _index(OffsetIndex),
    _index(TimeIndex),
    _transactions,
    _remote(checked_offsets),
    _remote(checked_times),
    _remote(checked_transactions),
    _snapshot,
    _text(_epochs),
    _text(_offsets),
    _text(_identity),
    _text(parse_partition_metadata),
    _quorum_state,
    _clean_shutdown,
    _manifest,
    _text(_partitions),
    _text(_object_name),
    _xml,
)


def read_file(data: bytes) -> None:
    """Byte 0 chooses the kind of file."""
    if data:
        _READERS[data[0] % len(_READERS)](data[1:])


def _seeds() -> Iterator[bytes]:
    offsets = b"".join(struct.pack(">ii", 10 * number, 4096 * number) for number in range(1, 9))
    times = b"".join(struct.pack(">qi", (1 << 40) + number, 10 * number) for number in range(1, 9))
    aborted = [AbortedTransaction(7, 100 + number, 110 + number, 100) for number in range(0, 40, 10)]
    transactions = b"".join(struct.pack(">hqqqq", 0, *one) for one in aborted)
    for kind in (0, 3):
        yield bytes([kind]) + offsets
        yield bytes([kind]) + offsets + bytes(64)
        yield bytes([kind + 1]) + times
        yield bytes([kind + 1]) + times + bytes(96)
        yield bytes([kind + 2]) + transactions
    rows = b"".join(struct.pack(">qhiqiqiq", 7, 1, 10 + number, 100 + number, 0, 1 << 40, 0, -1) for number in range(3))
    yield b"\x06\x01" + bytes(6) + struct.pack(">i", 3) + rows
    identifier = "AAAAAAAAAAAAAAAAAAAAAQ"
    yield b"\x07" + format_epochs([(0, 0), (3, 100), (7, 1_000)]).encode()
    yield b"\x08" + format_lines(["orders 0 100", "orders 1 -1"]).encode()
    yield b"\x09" + f"#c\nversion=1\ncluster.id=x\nnode.id=1\ndirectory.id={identifier}\n".encode()
    yield b"\x0a" + f"version: 0\ntopic_id: {identifier}".encode()
    yield b'\x0b{"leaderId":1,"leaderEpoch":3,"votedId":-1,"currentVoters":[{"voterId":1}],"data_version":0}'
    yield b'\x0c{"version":0,"brokerEpoch":17}'
    yield b"\x0d" + Manifest(_SEGMENT, "c", {}).to_bytes()
    yield b"\x0e" + f"0\n2\n{identifier} 0 orders\n{identifier} 1 orders removed\n".encode()
    yield b"\x0f" + f"orders-0/{100:020d}-{identifier}.log".encode()
    yield b"\x10<Error><Code>NoSuchKey</Code></Error>"
    yield b"\x07" + format_lines(["0 1_000", "99999999999 2000"]).encode()
    yield b"\x07" + format_lines(["-5 7"]).encode()
    yield b"\x08" + format_lines([f"orders 0 {'9' * 30}"]).encode()
    yield b"\x09" + f"version=1\ncluster.id=x\nnode.id={1 << 40}\ndirectory.id={identifier}\n".encode()
    yield b'\x0b{"leaderId":1,"leaderEpoch":99999999999999,"votedId":-1,"data_version":0}'
    yield b'\x0c{"version":0,"brokerEpoch":Infinity}'
    yield b"\x0d" + Manifest(replace(_SEGMENT, end_offset=1 << 70), "c", {}).to_bytes()
    for kind in (11, 12, 13):
        yield bytes([kind]) + b"[" * 2_000
        yield bytes([kind]) + b'{"a":' * 400


TARGETS = (Target("files", read_file, _seeds, lines=(20_000, 100), allocated=(1 << 20, 1024), weight=2.0),)
