"""Rows M3, M4, M5 and M13 of the faults, for reads of one segment: a real MinIO behind a proxy."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from compat.minio import BUCKET, MinioServer
from compat.minio_proxy import (
    Action,
    MinioProxy,
    answer,
    cut_short,
    damage,
    ignore_range,
    late,
    lose_reply,
    shift_range,
    silence,
    trickle,
)
from compat.tiered.minio_fixtures import admin, fails_with, is_whole, read
from kbroker.testing.remote_segments import WrittenSegment
from kbroker.tiered.api import (
    IndexType,
    RemoteObjectDamaged,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreMisconfigured,
)
from kbroker.tiered.layout import MANIFEST, SEGMENT, object_name
from kbroker.tiered.minio import MinioRemoteStorage

Write = Callable[..., WrittenSegment]
MakeManager = Callable[..., MinioRemoteStorage]


@pytest.fixture
def copied(manager: MinioRemoteStorage, proxy: MinioProxy, write: Write) -> WrittenSegment:
    """A segment of several megabytes in the store."""
    segment = write(batches=40, value_bytes=100_003)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    proxy.requests.clear()
    return segment


PASSING = [
    answer(503, "SlowDown"),
    answer(500, "InternalError"),
    answer(502, "bad gateway", xml=False),
    answer(429, "TooManyRequests"),
    answer(200, "InternalError"),
    lose_reply,
    cut_short,
    silence,
]


@pytest.mark.parametrize("action", [*PASSING, shift_range, ignore_range])
def test_m3_m5_a_range_that_fails_twice_is_read_correctly(
    manager: MinioRemoteStorage, proxy: MinioProxy, copied: WrittenSegment, action: Action
) -> None:
    rule = proxy.rule(action, method="GET", times=2)
    assert read(manager, copied, 1000, 900_000) == copied.log[1000:900_001]
    assert rule.used == 2


@pytest.mark.parametrize("action", [*PASSING, damage])
def test_m3_m13_an_index_that_fails_twice_is_read_correctly(
    manager: MinioRemoteStorage, proxy: MinioProxy, copied: WrittenSegment, action: Action
) -> None:
    rule = proxy.rule(action, method="GET", times=2)
    assert manager.fetch_index(copied.finished, IndexType.TIMESTAMP) == copied.indexes[IndexType.TIMESTAMP]
    assert rule.used == 2


@pytest.mark.parametrize(
    "action",
    [answer(503, "SlowDown"), answer(500, "InternalError"), answer(200, "x"), lose_reply, silence, shift_range],
)
def test_m3_m5_a_permanently_failing_range_is_a_retriable_error(
    manager: MinioRemoteStorage, proxy: MinioProxy, copied: WrittenSegment, action: Action
) -> None:
    proxy.rule(action, method="GET")
    with fails_with(RetriableRemoteStorageError, match="reading "):
        read(manager, copied, 1000, 900_000)
    assert 1 <= proxy.count("GET") <= 3
    proxy.heal()
    assert is_whole(manager, copied)


@pytest.mark.parametrize("action", [answer(503, "SlowDown"), damage, lose_reply])
def test_m13_a_permanently_damaged_index_is_an_error(
    manager: MinioRemoteStorage, proxy: MinioProxy, copied: WrittenSegment, action: Action
) -> None:
    proxy.rule(action, method="GET")
    with fails_with(RetriableRemoteStorageError):
        manager.fetch_index(copied.finished, IndexType.OFFSET)


def test_m13_an_index_without_a_checksum_is_checked_against_the_manifest(
    manager: MinioRemoteStorage, minio_server: MinioServer, prefix: str, copied: WrittenSegment
) -> None:
    """Such a copy has the bytes, but no checksum of ours."""
    for each in admin(minio_server).list_objects(BUCKET, prefix=f"{prefix}/", recursive=True):
        put_as_others_do(minio_server, each.object_name or "")
    for index_type in (each for each in IndexType if each is not IndexType.TRANSACTION):
        assert manager.fetch_index(copied.finished, index_type) == copied.indexes[index_type]


@pytest.mark.parametrize("data", [b"", b"abc"])
def test_m13_a_replaced_index_is_a_permanent_error(
    manager: MinioRemoteStorage, minio_server: MinioServer, prefix: str, copied: WrittenSegment, data: bytes
) -> None:
    """Otherwise the index would not be rebuilt from the segment, and the segment would become unreadable."""
    name = f"{prefix}/{object_name(copied.metadata, IndexType.OFFSET.value)}"
    put_as_others_do(minio_server, name, data)
    with fails_with(RemoteStorageError, match="bytes without a checksum"):
        manager.fetch_index(copied.finished, IndexType.OFFSET)


def test_m13_an_index_without_checksum_and_manifest_is_an_error(
    manager: MinioRemoteStorage, minio_server: MinioServer, prefix: str, copied: WrittenSegment
) -> None:
    put_as_others_do(minio_server, f"{prefix}/{object_name(copied.metadata, IndexType.OFFSET.value)}")
    admin(minio_server).remove_object(BUCKET, f"{prefix}/{object_name(copied.metadata, MANIFEST)}")
    with fails_with(RemoteStorageError, match="bytes without a checksum, expected None"):
        manager.fetch_index(copied.finished, IndexType.OFFSET)


def put_as_others_do(server: MinioServer, name: str, data: bytes | None = None) -> None:
    """Store an object, by default unchanged, like tools without our checksums."""
    client = admin(server)
    if data is None:
        response = client.get_object(BUCKET, name)
        data = response.read()
        response.release_conn()
    client.put_object(BUCKET, name, io.BytesIO(data), len(data))


def test_m5_a_body_that_ends_early_is_resumed(
    manager: MinioRemoteStorage, proxy: MinioProxy, copied: WrittenSegment
) -> None:
    """Each answer is half of the request: no byte is repeated or skipped."""
    rule = proxy.rule(cut_short, method="GET", times=9)
    assert read(manager, copied) == copied.log
    assert rule.used == 9
    assert proxy.count("GET") == 10


def test_m5_missing_bytes_are_an_error_and_no_short_read(
    manager: MinioRemoteStorage, proxy: MinioProxy, copied: WrittenSegment
) -> None:
    proxy.rule(cut_short, method="GET")
    with fails_with(RetriableRemoteStorageError), manager.fetch_log_segment(copied.finished, 0) as stream:
        stream.read()


def test_m4_a_read_waits_for_a_late_answer(
    manager: MinioRemoteStorage, proxy: MinioProxy, copied: WrittenSegment
) -> None:
    proxy.rule(late(0.4), method="GET")
    assert read(manager, copied, 0, 99) == copied.log[:100]
    assert proxy.count("GET") == 1


def test_m2_a_body_that_trickles_ends_at_the_deadline(
    make_manager: MakeManager, proxy: MinioProxy, write: Write
) -> None:
    """Never silent long enough for a socket time-out."""
    manager, segment = make_manager(call_timeout_ms="1000", call_min_bytes_per_second=str(1 << 40)), write()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    proxy.rule(trickle(piece_bytes=1, pause_s=0.2), method="GET")
    with fails_with(RetriableRemoteStorageError, match="longer than allowed"):
        read(manager, segment)
    with fails_with(RetriableRemoteStorageError, match="longer than allowed"):
        manager.fetch_index(segment.finished, IndexType.PRODUCER_SNAPSHOT)


def test_m3_a_missing_object_is_not_retried(
    manager: MinioRemoteStorage, minio_server: MinioServer, proxy: MinioProxy, prefix: str, copied: WrittenSegment
) -> None:
    for kind in (SEGMENT, IndexType.OFFSET.value):
        admin(minio_server).remove_object(BUCKET, f"{prefix}/{object_name(copied.metadata, kind)}")
    with fails_with(RemoteResourceNotFound, match="404 NoSuchKey"):
        manager.fetch_log_segment(copied.finished, 0)
    with fails_with(RemoteResourceNotFound, match="404 NoSuchKey"):
        manager.fetch_index(copied.finished, IndexType.OFFSET)
    assert proxy.count("GET") == 2
    assert manager.fetch_index(copied.finished, IndexType.TIMESTAMP) == copied.indexes[IndexType.TIMESTAMP]


@pytest.mark.parametrize("size", [0, 1000, 5_000_000])
def test_m5_an_object_of_another_size_is_refused(
    manager: MinioRemoteStorage,
    minio_server: MinioServer,
    prefix: str,
    copied: WrittenSegment,
    size: int,
) -> None:
    """A different object replaced it: no part of it is passed on, whatever range is requested."""
    other = copied.data.log_segment + ".other"
    with open(other, "wb") as file:
        file.truncate(size)
    admin(minio_server).fput_object(BUCKET, f"{prefix}/{object_name(copied.metadata, SEGMENT)}", other)
    for start, end in ((0, 99), (2000, 2099), (0, None)):
        with fails_with(RemoteObjectDamaged, match="answered 416 InvalidRange|the object has"):
            manager.fetch_log_segment(copied.finished, start, end)


def test_m3_a_missing_bucket_is_not_a_missing_segment(make_manager: MakeManager, write: Write) -> None:
    """Otherwise a temporarily renamed bucket would count as lost data."""
    manager, segment = make_manager(bucket="elsewhere"), write()
    message = r"there is no bucket 'elsewhere': create it, or set rsm\.config\.bucket\.create=true"
    with fails_with(StoreMisconfigured, match=message):
        manager.fetch_log_segment(segment.finished, 0)
    with fails_with(StoreMisconfigured, match=message):
        manager.fetch_index(segment.finished, IndexType.OFFSET)
    with fails_with(StoreMisconfigured, match=message):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    with fails_with(StoreMisconfigured, match=message):
        manager.delete_log_segment_data(segment.finished)
    with fails_with(StoreMisconfigured, match=message):
        list(manager.list_objects())


def test_a_bucket_is_created_if_configured(make_manager: MakeManager, minio_server: MinioServer, write: Write) -> None:
    manager, segment = make_manager(bucket="made-by-us", bucket_create="true"), write()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(manager, segment)
    assert admin(minio_server).bucket_exists("made-by-us")


def test_a_stream_of_a_closed_manager_ends_with_an_error(make_manager: MakeManager, write: Write) -> None:
    manager, segment = make_manager(), write(batches=40, value_bytes=100_003)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    with manager.fetch_log_segment(segment.finished, 0) as stream:
        assert stream.read(10) == segment.log[:10]
        manager.close()
        manager.close()
        with pytest.raises(RemoteStorageError, match="closed"):
            stream.read()
    for call in (lambda: manager.fetch_log_segment(segment.finished, 0), lambda: list(manager.list_objects())):
        with pytest.raises(RemoteStorageError, match="closed"):
            call()
    with pytest.raises(RemoteStorageError, match="closed"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
