"""DescribeCluster on the controller listener: the controllers, for tools with --bootstrap-controller (KIP-919)."""

from __future__ import annotations

from kbroker.handlers import Context, handles
from kbroker.metadata.answers import CONTROLLER_ENDPOINTS, wrong_endpoint
from kbroker.quorum import ControllerService
from kbroker.security.authorizing import Operation, ResourceType
from wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse


@handles(DescribeClusterRequest, versions="0-2")
async def describe_cluster(
    request: DescribeClusterRequest, service: ControllerService, context: Context
) -> DescribeClusterResponse:
    """Return the registered controllers with this listener. Clients need more than on a broker: to alter the cluster.
    Brokers may ask too, which Kafka does not allow: one with an empty data directory learns the cluster id here.
    CLUSTER_AUTHORIZATION_FAILED, MISMATCHED_ENDPOINT_TYPE for brokers,
    UNSUPPORTED_ENDPOINT_TYPE for unknown types.
    """
    if not context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, is_logged=False):
        context.demand(Operation.ALTER, ResourceType.CLUSTER)
    if request.endpoint_type != CONTROLLER_ENDPOINTS:
        return wrong_endpoint(request.endpoint_type, sent_to=CONTROLLER_ENDPOINTS)
    controllers = [
        DescribeClusterBroker(broker_id=controller.id, host=endpoint.host, port=endpoint.port)
        for controller in service.image.controllers.values()
        if (endpoint := controller.endpoints.get(context.listener)) is not None
    ]
    response = DescribeClusterResponse(
        endpoint_type=CONTROLLER_ENDPOINTS,
        cluster_id=service.cluster_id,
        controller_id=service.node_id,
        brokers=controllers,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    return response
