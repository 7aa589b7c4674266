"""AlterPartitionReassignments: move replicas between brokers. A cluster has only one broker so far."""

from __future__ import annotations

from kbroker.handlers import forwards
from wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest

alter_partition_reassignments = forwards(AlterPartitionReassignmentsRequest, versions="0-1")
