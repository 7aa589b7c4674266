"""A tier in memory that the nodes of a simulated cluster share, with the faults of an object store.

The plug-in is `LocalRemoteStorage` on a simulated disk of its own, so the layout of the objects is the real one. Faults
are by operation:

    store = RemoteStore()
    store.slow(ms=2_000)                                  # every operation takes this long
    store.fail("copy", times=3)                           # three copies are refused
    store.fail("copy", is_applied=True)                   # a copy is done, and reported as failed: a lost reply
    store.fail("read", damage="truncated")                # a range comes back shorter; "wrong": with wrong bytes
    store.heal()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from typing import Any, BinaryIO, Final, TypeVar, cast
from weakref import WeakValueDictionary

from kbroker.runtime.ports import Disk
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    StoredObject,
)
from kbroker.tiered.local import LocalRemoteStorage

T = TypeVar("T")

TIER: Final = "/tier"
OPERATIONS: Final = ("copy", "read", "index", "delete", "list", "manifest")

_stores: WeakValueDictionary[str, RemoteStore] = WeakValueDictionary()
"""A plug-in knows its store by name only. The contents of a store end with its cluster."""
_numbers = count(1)


@dataclass(slots=True)
class StoreFault:
    """Makes operations fail.

    Shape  operation is one of OPERATIONS or "*"; times is -1 for all; is_applied: the operation happens, and fails
           nevertheless; damage is "", "truncated" or "wrong": a read succeeds with other bytes
    """

    operation: str = "*"
    times: int = 1
    skip: int = 0
    is_applied: bool = False
    damage: str = ""

    def strikes(self, operation: str) -> bool:
        """Whether this operation fails; counts it."""
        if self.operation not in ("*", operation) or not self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(eq=False)
class RemoteStore:
    """The contents, and what is wrong with the store; see the module docstring.

    Shape  charge(node id, ms) makes the caller wait in virtual time
    """

    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    faults: list[StoreFault] = field(default_factory=list)
    slow_ms: float = 0
    charge: Callable[[int, float], object] = lambda _node, _ms: None
    trace: Callable[..., object] = lambda *_: None
    watchers: list[Callable[[int, str, RemoteLogSegmentMetadata], object]] = field(default_factory=list)
    """Called with the node, "copy" or "delete", and the segment before each such operation."""
    disks: dict[int, SimulatedDisk] = field(default_factory=dict)
    """Node id -> the disk that its segments are read from."""

    def __post_init__(self) -> None:
        self.name = f"store-{next(_numbers)}"
        self.disk.make_directory(TIER)
        _stores[self.name] = self

    def settings(self, *, brokers: int) -> dict[str, object]:
        """The settings of a broker that uses this store, in a cluster of this many brokers."""
        return {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": f"{__name__}:SimulatedStore",
            "rsm.config.dir": TIER,
            "rsm.config.store": self.name,
            "rlmm.config.remote.log.metadata.topic.num.partitions": 3,
            "rlmm.config.remote.log.metadata.topic.replication.factor": min(brokers, 3),
            "rlmm.config.remote.log.metadata.topic.min.isr": min(brokers, 2),
        }

    def slow(self, ms: float) -> None:
        """Every operation takes this much longer from now on; 0 ends it."""
        self.slow_ms = ms

    def fail(
        self, operation: str = "*", *, times: int = 1, skip: int = 0, is_applied: bool = False, damage: str = ""
    ) -> None:
        """Make operations of any node fail, or never succeed again with times=-1; see StoreFault."""
        self.faults.append(StoreFault(operation, times, skip, is_applied, damage))

    def heal(self) -> None:
        """End all faults."""
        self.faults.clear()
        self.slow_ms = 0

    def objects(self) -> dict[str, bytes]:
        """Path -> contents of everything that is stored."""
        found = self.disk.image(TIER)
        return {path: contents for path, contents in found.items() if contents is not None}

    def perform(self, node: int, operation: str, function: Callable[[], T]) -> T:
        """Do one operation of a node, with the faults that strike it."""
        if self.slow_ms:
            self.charge(node, self.slow_ms)
        fault = next((fault for fault in self.faults if fault.strikes(operation)), None)
        self.trace("store", node, operation, "" if fault is None else fault.damage or "failed")
        if fault is None:
            return function()
        if fault.damage:
            return cast("T", _damaged(cast("Any", function()), fault.damage))
        if fault.is_applied:
            function()
        raise RemoteStorageError(f"the simulated store fails to {operation}")


def _damaged(found: bytes | BinaryIO, damage: str) -> bytes | BinaryIO:
    data = found if isinstance(found, bytes) else found.read()
    changed = data[: len(data) // 2] if damage == "truncated" else bytes(each ^ 0xFF for each in data)
    return changed if isinstance(found, bytes) else BytesIO(changed)


class _MountedDisk:
    """The disk of one broker, with the disk of the store mounted at TIER."""

    def __init__(self) -> None:
        self.own: SimulatedDisk = SimulatedDisk()
        self.shared = self.own

    def __getattr__(self, name: str) -> Any:
        def call(path: str, *rest: Any, **options: Any) -> Any:
            disk = self.shared if path.startswith(TIER) else self.own
            return getattr(disk, name)(path, *rest, **options)

        return call


class SimulatedStore(LocalRemoteStorage):
    """The plug-in of one broker."""

    def __init__(self) -> None:
        self._disks = _MountedDisk()
        super().__init__(cast("Disk", self._disks))
        self._node = -1
        self._remote: RemoteStore

    def configure(self, configs: Mapping[str, str]) -> None:
        self._node = int(configs["broker.id"])
        self._remote = _stores[configs["store"]]
        self._disks.own, self._disks.shared = self._remote.disks[self._node], self._remote.disk
        super().configure({key: value for key, value in configs.items() if key != "store"})

    def _perform(self, operation: str, function: Callable[[], T]) -> T:
        return self._remote.perform(self._node, operation, function)

    def _tell(self, operation: str, metadata: RemoteLogSegmentMetadata) -> None:
        for watcher in list(self._remote.watchers):
            watcher(self._node, operation, metadata)

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        self._tell("copy", metadata)
        copy = super().copy_log_segment_data
        return self._perform("copy", lambda: copy(metadata, data))

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        fetch = super().fetch_log_segment
        return self._perform("read", lambda: fetch(metadata, start_position, end_position))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        fetch = super().fetch_index
        return self._perform("index", lambda: fetch(metadata, index_type))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._tell("delete", metadata)
        delete = super().delete_log_segment_data
        self._perform("delete", lambda: delete(metadata))

    def list_objects(self) -> Iterator[StoredObject]:
        found = super().list_objects
        return iter(self._perform("list", lambda: list(found())))

    def read_manifest(self, name: str) -> bytes:
        read = super().read_manifest
        return self._perform("manifest", lambda: read(name))
