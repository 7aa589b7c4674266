"""ListPartitionReassignments: the partitions whose replicas are being moved."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.metadata.image import TopicImage
from kbroker.security.authorizing import Operation, ResourceType
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@handles(ListPartitionReassignmentsRequest, versions="0")
async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, broker: Broker, context: Context
) -> ListPartitionReassignmentsResponse:
    """Answer from the metadata image; omit partitions that are not being moved or do not exist."""
    context.demand(Operation.DESCRIBE, ResourceType.CLUSTER)
    known = broker.image.topics_by_name
    asked: list[tuple[TopicImage, Collection[int]]]
    if request.topics is None:
        asked = [(topic, topic.partitions) for topic in known.values()]
    else:
        asked = [(known[topic.name], topic.partition_indexes) for topic in request.topics if topic.name in known]
    found = [
        OngoingTopicReassignment(name=topic.name, partitions=list(_ongoing(topic, indexes))) for topic, indexes in asked
    ]
    return ListPartitionReassignmentsResponse(error_message=None, topics=[topic for topic in found if topic.partitions])


def _ongoing(topic: TopicImage, indexes: Collection[int]) -> Iterator[OngoingPartitionReassignment]:
    for index in indexes:
        partition = topic.partitions.get(index)
        if partition is not None and (partition.adding_replicas or partition.removing_replicas):
            yield OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
