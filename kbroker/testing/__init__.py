"""For tests: real brokers (docs/pytest.md), and clusters in virtual time (docs/testing.md).

from kbroker.testing import broker, brokers, memory_cluster, run
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kbroker.testing.cluster import MemoryCluster as MemoryCluster
    from kbroker.testing.cluster import MemoryNode as MemoryNode
    from kbroker.testing.cluster import memory_cluster as memory_cluster
    from kbroker.testing.determinism import deterministic as deterministic
    from kbroker.testing.determinism import run as run
    from kbroker.testing.disk_nodes import Loss as Loss
    from kbroker.testing.memory_node import Client as Client
    from kbroker.testing.memory_node import memory_broker as memory_broker
    from kbroker.testing.network import Pace as Pace
    from kbroker.testing.servers import Server as Server
    from kbroker.testing.starting import broker as broker
    from kbroker.testing.starting import brokers as brokers

_MODULES: Final = {
    "Client": "memory_node",
    "Loss": "disk_nodes",
    "MemoryCluster": "cluster",
    "MemoryNode": "cluster",
    "Pace": "network",
    "deterministic": "determinism",
    "memory_broker": "memory_node",
    "memory_cluster": "cluster",
    "Server": "servers",
    "broker": "starting",
    "brokers": "starting",
    "run": "determinism",
}


def __getattr__(name: str) -> Any:
    # Not at import: a mutant is installed from a module of this package before it imports the broker.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
