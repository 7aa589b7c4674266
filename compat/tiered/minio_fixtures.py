"""A MinIO server for the tests of a module, a proxy in front of it, and managers and segments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from minio import Minio

from compat.minio import BUCKET, MinioServer, binary
from compat.minio_proxy import MinioProxy
from kbroker.testing.remote_segments import WrittenSegment, write_segment
from kbroker.tiered.api import RemoteStorageError
from kbroker.tiered.minio import MinioRemoteStorage

THREADS = "kbroker-minio"
# Short enough for tests, long enough for two busy cores.
HASTY = {
    "connect.timeout.ms": "500",
    "read.timeout.ms": "700",
    "call.timeout.ms": "4000",
    "retries": "2",
    "retry.backoff.ms": "5",
    "retry.backoff.max.ms": "20",
}
LONGEST_S = 4.0 + 0.7 + 1.5  # the call, its last read, and a busy machine
ErrorType = TypeVar("ErrorType", bound=RemoteStorageError)


def prefix_of(directory: Path) -> str:
    """An object name prefix for a test's directory."""
    return f"tests/{directory.parent.name}/{directory.name}"


@pytest.fixture(scope="module")
def minio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """A server with an empty bucket. Without its binary the tests are skipped, or fail in CI."""
    binary()
    server = MinioServer(tmp_path_factory.mktemp("minio"))
    server.start()
    admin(server).make_bucket(BUCKET)
    yield server
    server.kill()


def admin(server: MinioServer) -> Minio:
    """The package's own client, directly to the server."""
    return Minio(f"127.0.0.1:{server.port}", server.access_key, server.secret_key, secure=False, region="us-east-1")


@pytest.fixture
def proxy(minio_server: MinioServer) -> Iterator[MinioProxy]:
    """A proxy without rules."""
    with MinioProxy(minio_server.port) as made:
        yield made


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """The prefix of this test's object names."""
    return f"tests/{tmp_path.name}"


@pytest.fixture
def make_manager(
    minio_server: MinioServer, proxy: MinioProxy, prefix: str
) -> Iterator[Callable[..., MinioRemoteStorage]]:
    """A function that creates managers behind the proxy, with short time-outs and further settings. At the end all are
    closed, and none of their threads may be left.
    """
    made = []

    def make(**settings: str) -> MinioRemoteStorage:
        manager = MinioRemoteStorage(environment={})
        own = {name.replace("_", "."): value for name, value in settings.items()}
        base = {**minio_server.settings(prefix=prefix), **HASTY, "endpoint": proxy.endpoint, **own}
        manager.configure({name: value for name, value in base.items() if value})
        made.append(manager)
        return manager

    yield make
    proxy.heal()
    for manager in made:
        manager.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(THREADS)] == []


@pytest.fixture
def manager(make_manager: Callable[..., MinioRemoteStorage]) -> MinioRemoteStorage:
    """One of them."""
    return make_manager()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., WrittenSegment]:
    """Writes segments; see `write_segment`."""
    directory = tmp_path / "log"
    directory.mkdir()

    def write(**what: Any) -> WrittenSegment:
        return write_segment(str(directory), **{"batches": 20, **what})

    return write


def read(manager: MinioRemoteStorage, segment: WrittenSegment, start: int = 0, end: int | None = None) -> bytes:
    """A range of a segment, or all of it."""
    with manager.fetch_log_segment(segment.finished, start, end) as stream:
        return stream.read()


def is_whole(manager: MinioRemoteStorage, segment: WrittenSegment) -> bool:
    """Whether the stored segment equals the written one."""
    indexes = {index_type: manager.fetch_index(segment.finished, index_type) for index_type in segment.indexes}
    return read(manager, segment) == segment.log and indexes == segment.indexes


@contextmanager
def ends_in_time() -> Iterator[None]:
    """Assert that a call keeps its deadline."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < LONGEST_S


@contextmanager
def fails_with(kind: type[ErrorType], *, match: str = ".") -> Iterator[None]:
    """Assert that the call fails in time with exactly this error class."""
    with ends_in_time(), pytest.raises(kind, match=match) as caught:
        yield
    assert caught.type is kind
