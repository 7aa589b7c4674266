"""A tier that several brokers of one trio run share: a directory on a simulated disk of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kbroker.runtime.ports import Disk
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.local import LocalRemoteStorage

TIER = "/tier"
SHARED_TIER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "tests.broker.shared_store:SharedStore",
    "rsm.config.dir": TIER,
    "rlmm.config.remote.log.metadata.topic.num.partitions": 3,
    "rlmm.config.remote.log.metadata.topic.replication.factor": 3,
    "rlmm.config.remote.log.metadata.topic.min.isr": 2,
    "remote.log.manager.task.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
}
"""Settings of brokers; `SharedStore.use` comes before their start."""


class MountedDisk:
    """The disk of one broker, with the shared one mounted at TIER."""

    def __init__(self, shared: SimulatedDisk) -> None:
        self.own = self.shared = shared

    def __getattr__(self, name: str) -> Any:
        def call(path: str, *rest: Any, **options: Any) -> Any:
            disk = self.shared if path.startswith(TIER) else self.own
            return getattr(disk, name)(path, *rest, **options)

        return call


class SharedStore(LocalRemoteStorage):
    """The plug-in of each broker. All of them use the disk that the test chose last."""

    shared = SimulatedDisk()
    disks: Mapping[int, SimulatedDisk] = {}

    def __init__(self) -> None:
        self._mounted = MountedDisk(self.shared)
        super().__init__(cast("Disk", self._mounted))

    @classmethod
    def use(cls, disks: Mapping[int, SimulatedDisk]) -> SimulatedDisk:
        """An empty tier for the brokers that have these disks; returns its disk."""
        cls.disks, cls.shared = disks, SimulatedDisk()
        return cls.shared

    def configure(self, configs: Mapping[str, str]) -> None:
        self._mounted.own = self.disks[int(configs["broker.id"])]
        super().configure(configs)
