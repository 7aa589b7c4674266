"""DescribeCluster: the brokers, the controller and the cluster's id."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.answers import answer_describe_cluster
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse


@handles(DescribeClusterRequest, versions="0-2")
async def describe_cluster(
    request: DescribeClusterRequest, broker: Broker, context: Context
) -> DescribeClusterResponse:
    """Answer from the metadata image."""
    return answer_describe_cluster(
        broker.image, request, version=context.api_version, viewpoint=broker.viewpoint(context.listener)
    )
