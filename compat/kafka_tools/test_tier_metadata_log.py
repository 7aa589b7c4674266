"""`__remote_log_metadata`: Kafka's DumpLogSegments decodes kbroker's records, and `kbroker dump-log` prints exactly the
same lines for records of both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from compat.conftest import KafkaTool
from compat.kafka_tools.test_dump_log_equality import compare, kafka_lines
from compat.tiered.site import ONLY_THE_ACTIVE_ONE, TIERED, WAIT_S, Records, Site
from kbroker.runtime.disk import RealDisk
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.testing.remote_metadata import DELETED, DELETING, FINISHED, ORDERS, segment_metadata, update_to
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.lifecycle import MetadataEvent, RemoteLogMetadataCache
from kbroker.tiered.metadata_topic import encode_event, read_events
from wire.record_batch import Record, batches, build_batch
from wire.schema import schema_of
from wire.stored import tiered as stored
from wire.stored.frame import decode_record, encode_record, record_types

__all__ = ["kafka_lines"]

FLAG = "--remote-log-metadata-decoder"


def events() -> list[MetadataEvent]:
    """Every kind of event, with every field at its default and at another value."""
    plain = segment_metadata(ORDERS, 0, 99, segment_id=UUID(int=1))
    rich = replace(
        segment_metadata(ORDERS, 100, 2**40, epochs={0: 100, 3: 150, 2**31 - 1: 2**33}, size=2**31 - 1),
        txn_index_empty=True,
        custom_metadata=bytes(range(100)),
        max_timestamp_ms=-1,
    )
    found: list[MetadataEvent] = [plain, rich]
    for custom in (None, b"", b"custom"):
        found += [update_to(plain, state, custom=custom) for state in (FINISHED, DELETING, DELETED)]
    return found


def deletions() -> list[bytes]:
    """The steps in the deletion of a partition, which no broker writes so far."""
    entry = stored.TopicIdPartitionEntry(name=ORDERS.topic, id=ORDERS.topic_id, partition=ORDERS.partition)
    return [
        encode_record(
            stored.RemotePartitionDeleteMetadataRecord(
                topic_id_partition=entry, broker_id=2**31 - 1, event_timestamp_ms=5, remote_partition_delete_state=state
            ),
            0,
        )
        for state in range(3)
    ]


def in_a_file(segment: RemoteLogSegmentMetadata) -> bytes:
    """The record of a segment that Kafka writes into a file, and not into the topic."""
    record, _ = decode_record(encode_event(segment), record_types(stored))
    kind = stored.RemoteLogSegmentMetadataSnapshotRecord
    shared = {one.name: getattr(record, one.name) for one in schema_of(kind).fields if one.name != "segment_id"}
    return encode_record(kind(segment_id=segment.remote_log_segment_id.id, **shared), 0)


def write(directory: Path, values: list[bytes]) -> list[Path]:
    """A partition of the topic with one record per batch, and one with all of them in one batch."""
    for index, size in enumerate((1, len(values))):
        path = directory / f"__remote_log_metadata-{index}"
        path.mkdir()
        log = Log(str(path), disk=RealDisk(), config=LogConfig(), topic="__remote_log_metadata", partition=index)
        for at in range(0, len(values), size):
            records = [Record(timestamp=7, key=None, value=value) for value in values[at : at + size]]
            log.append(build_batch(records), leader_epoch=3, timestamp_ms=7)
        log.close()
    return sorted(directory.glob("*/*.log"))


def test_both_tools_print_kbrokers_records_alike(kafka_lines: KafkaTool, tmp_path: Path) -> None:
    files = write(tmp_path, [*map(encode_event, events()), *deletions()])
    lines = compare(kafka_lines, files, FLAG)
    text = "\n".join(lines)
    assert len(re.findall(r"payload: RemoteLogSegmentMetadata\{", text)) == 2 * 2
    assert len(re.findall(r"payload: RemoteLogSegmentMetadataUpdate\{", text)) == 2 * 9
    assert len(re.findall(r"payload: RemotePartitionDeleteMetadata\{", text)) == 2 * 3
    for part in ("txnIdxEmpty=true", "CustomMetadata{100 bytes}", "segmentLeaderEpochs={0=100, 3=150, 2147483647=8589"):
        assert part in text
    compare(kafka_lines, files, FLAG, "--skip-record-metadata")


def wrong_values() -> list[bytes]:
    """Values that brokers never write, each wrong in a different way."""
    plain = events()[0]
    assert isinstance(plain, RemoteLogSegmentMetadata)
    good, update, deletion = encode_event(plain), encode_event(events()[2]), deletions()[-1]
    contradicting = [
        replace(plain, start_offset=-5),
        replace(plain, end_offset=-1),
        replace(plain, segment_leader_epochs=()),
        replace(plain, segment_leader_epochs=((2, 0), (1, 5), (2, 7))),
        replace(plain, segment_size_in_bytes=-3),
    ]
    kept_in_files = [plain, replace(plain, custom_metadata=b"custom", txn_index_empty=True)]
    return [
        *(b"", b"\x00", b"\x01", b"\x80", b"\x01\x00", b"\x01\x09\x00", b"\x02\x00\x00", b"no record at all"),
        *(b"\xff\xff\x7f", b"\x01\x80\x80\x04\x00", b"\x01\x00\x00", b"\x01\x00\x01" + good[3:]),
        *(good[:-3], good + b"xy", good[:-2] + b"\x09\x00", update[:-2] + b"\x09\x00", deletion[:-2] + b"\x07\x00"),
        *(encode_event(event) for event in contradicting),
        *map(in_a_file, kept_in_files),
    ]


def test_invalid_records_are_reported_in_kafkas_words(kafka_lines: KafkaTool, tmp_path: Path) -> None:
    wrong = wrong_values()
    files = write(tmp_path, [part for value in wrong for part in (value, encode_event(events()[0]))])
    text = "\n".join(compare(kafka_lines, files, FLAG, status=1))
    assert text.count("Error at offset") == 2 * (len(wrong) - 4)


@pytest.fixture(scope="module", params=["Apache Kafka", "kbroker"])
def tiered(request: pytest.FixtureRequest, kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that has copied and deleted segments in its directory tier."""
    assert kafka_libraries.is_dir()
    site = Site.in_directory(tmp_path_factory.mktemp("tiered"), is_kafka=request.param != "kbroker")
    broker = site.broker
    broker.start()
    try:
        site.create("copied", {**TIERED, **ONLY_THE_ACTIVE_ONE})
        site.produce("copied", Records(range(0, 10, 2), records=3).batches())
        await_states(site, [FINISHED] * 4)
        site.delete_records("copied", 6)
        await_states(site, [DELETED] * 2 + [FINISHED] * 2)
    finally:
        broker.stop()
    assert broker.log_directory is not None
    return broker.log_directory


def await_states(site: Site, expected: Sequence[int]) -> None:
    """Wait until the segments of the topic are in these states, ordered by their start."""
    deadline = time.monotonic() + WAIT_S
    while (found := [each.state for each in site.segments("copied")]) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_records_of_both_brokers_are_dumped_alike(kafka_lines: KafkaTool, tiered: Path) -> None:
    files = [path for path in tiered.glob("__remote_log_metadata-*/*.log") if path.stat().st_size]
    text = "\n".join(compare(kafka_lines, files, FLAG))
    for state in ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"):
        assert f"state={state}" in text
    caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
    for path in files:
        for _, event in read_all(path):
            about = event.remote_log_segment_id.topic_id_partition
            assert caches.setdefault(about, RemoteLogMetadataCache()).replay(event) is None
    (cache,) = caches.values()
    left = sorted(cache.list_remote_log_segments(), key=lambda each: each.start_offset)
    assert [(each.start_offset, each.end_offset) for each in left] == [(6, 8), (9, 11)]
    assert cache.highest_offset_for_epoch(0) == 11
    encoded = {encode_event(event) for path in files for _, event in read_all(path)}
    stored = {value for path in files for value in values(path)}
    assert encoded == stored, "re-encoding each broker's records gives the same bytes"


def read_all(path: Path) -> list[tuple[int, MetadataEvent]]:
    partition = int(path.parent.name.rpartition("-")[2])
    found = read_events(path.read_bytes(), 0, end_offset=1 << 40, partition=partition, partition_count=3)
    assert not found.skipped
    return found.events


def values(path: Path) -> list[bytes]:
    found = [record.value for batch in batches(path.read_bytes()) for record in batch.records()]
    return [value for value in found if value is not None]
