"""WriteTxnMarkers: append the markers that end transactions, for transaction coordinators and kafka-transactions."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.broker.transaction_markers import MarkersAppended
from kbroker.handlers import Context, Later, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.messages.write_txn_markers import WriteTxnMarkersRequest


@handles(WriteTxnMarkersRequest, versions="1-2")
async def write_txn_markers(request: WriteTxnMarkersRequest, broker: Broker, context: Context) -> Later:
    """Append at once; the response waits for the in-sync replicas."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER, is_logged=False):
        context.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    markers = MarkersAppended(broker)
    await markers.append(request)
    return Later(markers.answer)
