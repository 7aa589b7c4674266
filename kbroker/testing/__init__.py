"""For tests: a cluster of real brokers in virtual time, with faults. docs/testing.md is the manual.

from kbroker.testing import memory_cluster, run
"""

from kbroker.testing.broker import Client, memory_broker
from kbroker.testing.cluster import MemoryCluster, MemoryNode, memory_cluster
from kbroker.testing.deterministic import deterministic, run
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.network import Pace

__all__ = [
    "Client",
    "Loss",
    "MemoryCluster",
    "MemoryNode",
    "Pace",
    "deterministic",
    "memory_broker",
    "memory_cluster",
    "run",
]
