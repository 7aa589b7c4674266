"""The MinIO plug-in passes the storage manager contract, `kbroker.testing.remote_storage`, on the real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.minio import MinioServer
from compat.tiered.minio_fixtures import prefix_of
from kbroker.testing.remote_storage import RemoteStorageConformance
from kbroker.tiered.minio import MinioRemoteStorage


class TestConformance(RemoteStorageConformance):
    """Segments uploaded in one piece."""

    part_size = "134217728"

    @pytest.fixture(autouse=True)
    def _server(self, minio_server: MinioServer) -> None:
        self.server = minio_server

    def make_manager(self, directory: Path) -> MinioRemoteStorage:
        manager = MinioRemoteStorage()
        part = {"part.size.bytes": self.part_size}
        manager.configure({**self.server.settings(bucket_create="true", prefix=prefix_of(directory)), **part})
        return manager


class TestConformanceInParts(TestConformance):
    """Segments of several megabytes, uploaded in parts."""

    part_size = str(5 << 20)
