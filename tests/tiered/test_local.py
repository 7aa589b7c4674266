"""The directory plug-in: `kbroker.tiered.local`."""

from __future__ import annotations

from pathlib import Path

from kbroker.testing.remote_storage import RemoteStorageConformance
from kbroker.tiered.local import LocalRemoteStorage


class TestConformance(RemoteStorageConformance):
    def make_manager(self, directory: Path) -> LocalRemoteStorage:
        manager = LocalRemoteStorage()
        manager.configure({"dir": str(directory)})
        return manager
