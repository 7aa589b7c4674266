"""ElectLeaders: elect the preferred leaders of partitions, or hold unclean elections."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.errors import ErrorCode
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


def _refused(request: ElectLeadersRequest, code: ErrorCode) -> ElectLeadersResponse:
    results = [
        ReplicaElectionResult(
            topic=asked.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=code, error_message=None) for index in asked.partitions
            ],
        )
        for asked in request.topic_partitions or []
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


@handles(ElectLeadersRequest, versions="0-2", on_error=_refused)
async def elect_leaders(request: ElectLeadersRequest, broker: Broker, context: Context) -> ElectLeadersResponse:
    """Ask the controller; reply once this broker knows the new leaders."""
    return await broker.controller.decide(lambda controller: controller.elect_leaders(request), may_be_long=True)
