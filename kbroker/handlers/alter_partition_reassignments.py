"""AlterPartitionReassignments: move replicas between brokers. A cluster has only one broker so far."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


@handles(AlterPartitionReassignmentsRequest, versions="0-1")
async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, broker: Broker, context: Context
) -> AlterPartitionReassignmentsResponse:
    """Ask the controller."""
    return await broker.controller.ask(request, AlterPartitionReassignmentsResponse)
