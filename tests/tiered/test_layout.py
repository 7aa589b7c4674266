"""Object names and manifests: `kbroker.tiered.layout`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteStorageError,
    TopicIdPartition,
)
from kbroker.tiered.layout import (
    KINDS,
    MANIFEST,
    SEGMENT,
    Manifest,
    StoredFile,
    kind_of,
    object_name,
    parse_object_name,
)
from wire.types import uuid_from_text

INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
PARTITIONS = st.builds(TopicIdPartition, st.uuids(), st.text(max_size=260), INT32)
SEGMENTS = st.builds(
    RemoteLogSegmentMetadata,
    st.builds(RemoteLogSegmentId, PARTITIONS, st.uuids()),
    start_offset=INT64,
    end_offset=INT64,
    max_timestamp_ms=st.integers(-1, 2**63 - 1),
    broker_id=INT32,
    event_timestamp_ms=INT64,
    segment_leader_epochs=st.lists(st.tuples(INT32, INT64), max_size=5).map(tuple),
    segment_size_in_bytes=INT32,
    state=st.just(RemoteLogSegmentState.COPY_SEGMENT_FINISHED),
    txn_index_empty=st.booleans(),
)
EXAMPLE = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(
        TopicIdPartition(uuid_from_text("kS2mDpo7RkS0cUkCAYyBDA"), "orders", 3),
        uuid_from_text("Pu5u8wLPTpiyKGBvGcRVHA"),
    ),
    start_offset=42,
    end_offset=99,
    max_timestamp_ms=1_700_000_000_000,
    broker_id=1,
    event_timestamp_ms=1_700_000_000_500,
    segment_leader_epochs=((0, 42), (2, 70)),
    segment_size_in_bytes=12_345,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    txn_index_empty=True,
)


def test_a_name_has_its_documented_format() -> None:
    """The format must not change: a new version reads the copies of an old one."""
    stem = "orders-kS2mDpo7RkS0cUkCAYyBDA/3/00000000000000000042-Pu5u8wLPTpiyKGBvGcRVHA"
    assert object_name(EXAMPLE, SEGMENT) == f"{stem}.log"
    kinds = [kind_of(index_type) for index_type in IndexType]
    assert kinds == ["index", "timeindex", "snapshot", "txnindex", "leader-epoch-checkpoint"]
    assert set(KINDS) == {"log", "manifest.json", *kinds}


@given(SEGMENTS, st.sampled_from(KINDS))
def test_a_name_is_parsed_to_its_parts(metadata: RemoteLogSegmentMetadata, kind: str) -> None:
    parsed = parse_object_name(object_name(metadata, kind))
    assert parsed is not None
    segment_id = metadata.remote_log_segment_id
    partition = segment_id.topic_id_partition
    assert (parsed.topic_id, parsed.partition) == (partition.topic_id, partition.partition)
    assert (parsed.segment_id, parsed.start_offset, parsed.kind) == (segment_id.id, metadata.start_offset, kind)
    assert parsed.index_type == next((one for one in IndexType if one.value == kind), None)


@given(st.text() | st.from_regex(r"[^/]{0,9}-?[A-Za-z0-9_-]{21,23}/\d{0,3}/\d{19,21}-[A-Za-z0-9_-]{21,23}\.?[a-z.]*"))
def test_other_names_are_not_parsed(name: str) -> None:
    parsed = parse_object_name(name)
    assert parsed is None or isinstance(parsed.segment_id, UUID)


@given(SEGMENTS, st.text(max_size=30), st.dictionaries(st.sampled_from(KINDS), st.builds(StoredFile, INT64, INT32)))
def test_a_manifest_is_read_as_it_was_written(
    metadata: RemoteLogSegmentMetadata, cluster_id: str, files: dict[str, StoredFile]
) -> None:
    manifest = Manifest(metadata, cluster_id, files)
    assert Manifest.parse(manifest.to_bytes()) == manifest


def test_a_manifest_can_be_read_by_humans() -> None:
    text = Manifest(EXAMPLE, "5L6g3nShT-eMCtK--X86sw", {SEGMENT: StoredFile(12_345, 7)}).to_bytes().decode()
    assert json.loads(text) == {
        "version": 1,
        "cluster_id": "5L6g3nShT-eMCtK--X86sw",
        "topic": "orders",
        "topic_id": "kS2mDpo7RkS0cUkCAYyBDA",
        "partition": 3,
        "segment_id": "Pu5u8wLPTpiyKGBvGcRVHA",
        "start_offset": 42,
        "end_offset": 99,
        "max_timestamp_ms": 1_700_000_000_000,
        "broker_id": 1,
        "event_timestamp_ms": 1_700_000_000_500,
        "segment_leader_epochs": [[0, 42], [2, 70]],
        "segment_size_in_bytes": 12_345,
        "txn_index_empty": True,
        "files": {"log": {"size": 12_345, "crc32c": 7}},
    }
    assert text.count("\n") > 10


@given(st.data())
def test_m13_a_changed_manifest_is_an_error_or_another_manifest(data: st.DataObject) -> None:
    good = bytearray(Manifest(EXAMPLE, "c", {SEGMENT: StoredFile(12_345, 7)}).to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(Manifest.parse(bytes(good)), Manifest)
    except RemoteStorageError as refused:
        assert "not a manifest" in str(refused)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b'{"version": 2}', b"[" * 200_000, b"\xff\xfe", b'"x"'])
def test_m13_bytes_that_are_not_a_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteStorageError, match="not a manifest"):
        Manifest.parse(data)


def test_a_manifest_that_does_not_fit_its_name_is_refused() -> None:
    name = object_name(EXAMPLE, MANIFEST)

    def parsed(**changed: Any) -> RemoteLogSegmentMetadata:
        return Manifest.parse_named(Manifest(replace(EXAMPLE, **changed), "c", {}).to_bytes(), name).metadata

    assert parsed() == EXAMPLE
    other = EXAMPLE.remote_log_segment_id
    for changed in (
        {"start_offset": 41},
        {"remote_log_segment_id": other._replace(id=UUID(int=5))},
        {"remote_log_segment_id": other._replace(topic_id_partition=other.topic_id_partition._replace(partition=9))},
    ):
        with pytest.raises(RemoteStorageError, match="the manifest of another segment, "):
            parsed(**changed)
    for changed in ({"end_offset": 41}, {"segment_leader_epochs": ()}):
        with pytest.raises(RemoteStorageError, match="impossible values"):
            parsed(**changed)
    with pytest.raises(RemoteStorageError, match="not a manifest: ValueError"):
        Manifest.parse_named(Manifest(EXAMPLE, "c", {}).to_bytes().replace(b'"topic": "', b'"topic": 5, "_": "'), name)


def test_the_manifest_is_the_last_of_the_kinds() -> None:
    assert KINDS[-1] == MANIFEST
