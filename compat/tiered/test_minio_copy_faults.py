"""Rows M1, M2, M7 and M12 of the faults, for the copy and deletion of one segment: a real MinIO behind a proxy that
simulates faults of networks and stores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.minio import BUCKET, MinioServer
from compat.minio_proxy import (
    Action,
    MinioProxy,
    Stale,
    answer,
    cut_short,
    damage_request,
    deaf,
    lose_reply,
    silence,
)
from compat.tiered.minio_fixtures import THREADS, admin, fails_with, is_whole
from kbroker.testing.remote_segments import WrittenSegment
from kbroker.tiered.api import RemoteStorageError, RetriableRemoteStorageError
from kbroker.tiered.layout import MANIFEST, SEGMENT, Manifest, object_name
from kbroker.tiered.minio import MinioRemoteStorage

Write = Callable[..., WrittenSegment]
MakeManager = Callable[..., MinioRemoteStorage]
# Long enough for a busy disk, in tests without silent servers.
PATIENT = {"read_timeout_ms": "2500", "call_timeout_ms": "12000"}
IN_PARTS = {"part_size_bytes": str(5 << 20)}


def names(server: MinioServer, prefix: str) -> list[str]:
    """The objects in the bucket, according to the server itself."""
    found = admin(server).list_objects(BUCKET, prefix=f"{prefix}/", recursive=True)
    return sorted((stored.object_name or "").removeprefix(f"{prefix}/") for stored in found)


def uploads(server: MinioServer, prefix: str, segment: WrittenSegment) -> int:
    """The number of unfinished multipart uploads."""
    name = f"{prefix}/{object_name(segment.metadata, SEGMENT)}"
    return len(admin(server)._list_multipart_uploads(BUCKET, prefix=name).uploads)


def large(write: Write) -> WrittenSegment:
    """A segment of two parts."""
    return write(batches=45, value_bytes=120_001)


def test_m1_a_refused_copy_can_be_retried(manager: MinioRemoteStorage, proxy: MinioProxy, write: Write) -> None:
    segment = write()
    proxy.down()
    with fails_with(RetriableRemoteStorageError, match="copying .*refused"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    proxy.up()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(manager, segment)


def test_m1_a_copy_to_a_hanging_store_can_be_retried(
    manager: MinioRemoteStorage, minio_server: MinioServer, write: Write
) -> None:
    before, segment = write(), write()
    manager.copy_log_segment_data(before.metadata, before.data)
    minio_server.suspend()
    try:
        with fails_with(RetriableRemoteStorageError):
            manager.copy_log_segment_data(segment.metadata, segment.data)
        with fails_with(RetriableRemoteStorageError):
            manager.delete_log_segment_data(before.metadata)
        with fails_with(RetriableRemoteStorageError):
            manager.fetch_log_segment(before.finished, 0)
    finally:
        minio_server.resume()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(manager, segment)
    assert is_whole(manager, before)


def test_m1_copies_survive_a_kill_of_the_store(
    make_manager: MakeManager, minio_server: MinioServer, write: Write
) -> None:
    manager = make_manager(**IN_PARTS)
    small, segment = write(), large(write)
    for copied in (small, segment):
        manager.copy_log_segment_data(copied.metadata, copied.data)
    minio_server.kill()
    try:
        with fails_with(RetriableRemoteStorageError):
            manager.copy_log_segment_data(segment.metadata, segment.data)
    finally:
        minio_server.start()
    assert is_whole(manager, small)
    assert is_whole(manager, segment)


@pytest.mark.parametrize("action", [silence, deaf])
@pytest.mark.parametrize("settings", [{}, IN_PARTS])
def test_m2_an_unanswered_copy_ends_at_its_deadline(
    make_manager: MakeManager, proxy: MinioProxy, write: Write, action: Action, settings: dict[str, str]
) -> None:
    manager, segment = make_manager(parallel_uploads="3", **settings), large(write)
    before = threading.active_count()
    proxy.rule(action, method="PUT", path=".log")
    with fails_with(RetriableRemoteStorageError, match="copying"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    mine = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    assert len(mine) <= 3
    manager.close()
    assert not any(thread.is_alive() for thread in mine)
    proxy.heal()
    assert threading.active_count() - before <= len(proxy.requests)  # the remaining ones belong to the proxy


def test_m2_the_pieces_of_a_copy_share_one_deadline(make_manager: MakeManager, proxy: MinioProxy, write: Write) -> None:
    """Each of many parts may be silent for a while, but not all of them together."""
    manager = make_manager(parallel_uploads="1", retries="100", call_min_bytes_per_second=str(1 << 40), **IN_PARTS)
    segment = large(write)
    proxy.rule(silence, method="PUT", path="partNumber=2")
    with fails_with(RetriableRemoteStorageError, match="longer than allowed"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    assert proxy.count("PUT", "partNumber=2") > 2


@pytest.mark.parametrize(
    "action",
    [
        answer(503, "SlowDown"),
        answer(500, "InternalError"),
        answer(502, "bad gateway", xml=False),
        answer(429, "TooManyRequests"),
        answer(408, "RequestTimeout"),
        answer(200, "InternalError"),
        lose_reply,
        cut_short,
        damage_request,
    ],
)
@pytest.mark.parametrize("settings", [{}, IN_PARTS])
def test_m7_a_single_failure_is_retried(
    make_manager: MakeManager, proxy: MinioProxy, write: Write, action: Action, settings: dict[str, str]
) -> None:
    """Each request of the copy of a segment in turn: errors, lost replies, false successes."""
    manager, segment = make_manager(**PATIENT, **settings), large(write) if settings else write()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    requests = sorted(set(proxy.requests))
    if settings:  # as without the rule, except for the segment
        requests = [request for request in requests if ".log" in request]
    for request in requests:
        method, path = request.split(" ")
        rule = proxy.rule(action, method=method, path=path.partition("uploadId")[0].removesuffix("?"), times=1)
        manager.copy_log_segment_data(segment.metadata, segment.data)
        assert rule.used == 1
        assert is_whole(manager, segment), request
    # A beginning, two parts, an end and a HEAD; or six objects and their HEADs, and one deletion.
    assert len(requests) == (5 if settings else 13)


@pytest.mark.parametrize(
    ("action", "path"),
    [(answer(200, "InternalError"), ""), (answer(200, "InternalError"), "uploadId"), (damage_request, "")],
)
@pytest.mark.parametrize("settings", [{}, IN_PARTS])
def test_m7_a_false_success_is_not_a_copy(
    make_manager: MakeManager, proxy: MinioProxy, *, write: Write, action: Action, path: str, settings: dict[str, str]
) -> None:
    """Of a PUT, of a part and of the completion, permanently: none counts as a copy."""
    manager, segment = make_manager(**settings), large(write)
    for method in ("PUT", "POST"):
        proxy.rule(action, method=method, path=f".log?{path}" if settings else ".log")
    with fails_with(RetriableRemoteStorageError):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    assert proxy.count("PUT", MANIFEST) == 0


def test_m7_a_damaged_or_slow_request_is_retried(manager: MinioRemoteStorage, proxy: MinioProxy, write: Write) -> None:
    segment = write()
    for code in ("RequestTimeout", "BadDigest", "XAmzContentChecksumMismatch", "IncompleteBody"):
        rule = proxy.rule(answer(400, code), method="PUT", path=".log", times=1)
        manager.copy_log_segment_data(segment.metadata, segment.data)
        assert rule.used == 1
    proxy.rule(answer(400, "InvalidArgument"), method="PUT", path=".log")
    with fails_with(RemoteStorageError, match="400 InvalidArgument"):
        manager.copy_log_segment_data(segment.metadata, segment.data)


def test_m7_the_manifest_is_written_last_and_lists_the_objects(
    make_manager: MakeManager, minio_server: MinioServer, proxy: MinioProxy, prefix: str, write: Write
) -> None:
    manager, segment = make_manager(**IN_PARTS), large(write)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    stored = [request for request in proxy.requests if request.startswith("PUT")]
    assert MANIFEST in stored[-1]
    name = f"{prefix}/{object_name(segment.metadata, MANIFEST)}"
    with admin(minio_server).get_object(BUCKET, name) as response:
        manifest = Manifest.parse(response.read())
    assert manifest.metadata == segment.finished
    assert manifest.files[SEGMENT].size == len(segment.log)
    listed = {object_name(segment.metadata, kind) for kind in [*manifest.files, MANIFEST]}
    assert set(names(minio_server, prefix)) == listed


@pytest.mark.parametrize("action", [answer(503, "SlowDown"), silence, lose_reply])
@pytest.mark.parametrize("what", ["PUT .log", "PUT .timeindex", "POST uploads=", "POST uploadId=", "PUT .manifest"])
def test_m7_deleting_a_failed_copy_leaves_no_objects(
    make_manager: MakeManager,
    minio_server: MinioServer,
    proxy: MinioProxy,
    prefix: str,
    *,
    write: Write,
    action: Action,
    what: str,
) -> None:
    """K9: no object and no part is left over, whatever the store did for unanswered requests."""
    manager, segment = make_manager(read_timeout_ms="300", **IN_PARTS), large(write)
    method, path = what.split(" ")
    proxy.rule(action, method=method, path=path)
    try:
        manager.copy_log_segment_data(segment.metadata, segment.data)
    except RetriableRemoteStorageError:
        pass
    else:
        assert action is lose_reply  # a HEAD may reveal what the lost reply did not
    proxy.heal()
    manager.delete_log_segment_data(segment.metadata)
    assert names(minio_server, prefix) == []
    assert uploads(minio_server, prefix, segment) == 0


@pytest.mark.parametrize("action", [answer(503, "SlowDown"), lose_reply, cut_short, answer(200, "InternalError")])
def test_m7_a_failed_deletion_is_retried(
    make_manager: MakeManager,
    minio_server: MinioServer,
    proxy: MinioProxy,
    prefix: str,
    *,
    write: Write,
    action: Action,
) -> None:
    manager = make_manager(**IN_PARTS)
    for request in ("GET ?uploads", "POST ?delete", "DELETE ?uploadId"):
        segment = large(write)
        manager.copy_log_segment_data(segment.metadata, segment.data)
        name = f"{prefix}/{object_name(segment.metadata, SEGMENT)}"
        admin(minio_server)._create_multipart_upload(BUCKET, name, {})
        method, path = request.split(" ")
        rule = proxy.rule(action, method=method, path=path.removeprefix("?"), times=1)
        manager.delete_log_segment_data(segment.finished)
        assert rule.used == 1
        assert names(minio_server, prefix) == []
        assert uploads(minio_server, prefix, segment) == 0


def test_m6_an_outdated_or_failed_list_does_no_harm(
    manager: MinioRemoteStorage, minio_server: MinioServer, proxy: MinioProxy, prefix: str, write: Write
) -> None:
    """Copy, read and delete request no list of objects; only callers of the list get an old one."""
    proxy.rule(Stale(), method="GET", path="list-type=2")
    assert list(manager.list_objects()) == []
    segment, other = write(), write()
    for copied in (segment, other):
        manager.copy_log_segment_data(copied.metadata, copied.data)
    assert list(manager.list_objects()) == []
    assert is_whole(manager, segment)
    manager.delete_log_segment_data(segment.finished)
    assert proxy.count("GET", "list-type=2") == 2
    assert len(names(minio_server, prefix)) == 6
    proxy.heal()
    assert {stored.segment_id for stored in manager.list_objects()} == {other.metadata.remote_log_segment_id.id}


def test_m6_a_list_continues_at_the_failed_page(
    manager: MinioRemoteStorage, minio_server: MinioServer, proxy: MinioProxy, prefix: str, tmp_path: Path
) -> None:
    client = admin(minio_server)
    empty = tmp_path / "empty"
    empty.touch()
    wanted = [f"o{number:04}" for number in range(1003)]
    for name in wanted:
        client.fput_object(BUCKET, f"{prefix}/{name}", str(empty))
    rule = proxy.rule(answer(503, "SlowDown"), method="GET", path="start-after=tests", times=1)
    assert [stored.name for stored in manager.list_objects()] == wanted
    assert rule.used == 1


def test_m12_a_full_store_is_reported_and_retriable(
    manager: MinioRemoteStorage, proxy: MinioProxy, write: Write
) -> None:
    segment = write()
    rule = proxy.rule(answer(507, "XMinioStorageFull"), method="PUT")
    with fails_with(RetriableRemoteStorageError, match="507 XMinioStorageFull"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    assert rule.used > 2
    proxy.heal()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert is_whole(manager, segment)


def test_a_segment_that_shrinks_during_the_copy_fails_it(
    manager: MinioRemoteStorage, minio_server: MinioServer, proxy: MinioProxy, prefix: str, write: Write
) -> None:
    segment = large(write)

    def shrink(exchange: object) -> None:
        Path(segment.data.log_segment).write_bytes(segment.log[:1000])
        deaf(exchange)  # type: ignore[arg-type]

    proxy.rule(shrink, method="PUT", path=".log", times=1)
    with fails_with(RemoteStorageError, match="shorter than"):
        manager.copy_log_segment_data(segment.metadata, segment.data)
    manager.delete_log_segment_data(segment.metadata)
    assert names(minio_server, prefix) == []
