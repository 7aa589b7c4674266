"""A MinIO server for the tests of a module, and managers that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.conftest import missing
from compat.kafka import Unavailable
from compat.minio import MinioServer, binary


@pytest.fixture(scope="module")
def minio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """A server with an empty drive; without its binary the tests are skipped, and in CI they fail."""
    try:
        binary()
    except Unavailable as error:
        missing(str(error))
    server = MinioServer(tmp_path_factory.mktemp("minio"))
    server.start()
    yield server
    server.kill()


def prefix_of(directory: Path) -> str:
    """A prefix that belongs to a test's directory."""
    return f"tests/{directory.parent.name}"
