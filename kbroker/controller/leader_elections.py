"""Decisions for ElectLeaders: preferred elections, and unclean elections, which may lose records.

The preferred leader of a partition is the first of its replicas. A partition that already has the wanted leader needs
no election: the response says so for partitions that the request names, and omits them if the request is for all
partitions.

Source: KIP-183, KIP-460; Kafka's ReplicationControlManager.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.controller.context import Context
from kbroker.controller.decisions import decides
from kbroker.controller.election import Election, plan_change
from kbroker.metadata.image import NO_LEADER, TopicImage
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

_ELECTIONS: Final = {0: Election.PREFERRED, 1: Election.UNCLEAN}
_NO_CANDIDATE: Final = {
    Election.PREFERRED: (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
    Election.UNCLEAN: (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Eligible topic partition leaders are not available.",
    ),
}


@decides(ElectLeadersRequest, may_be_long=True)
def elect_leaders(context: Context, request: ElectLeadersRequest) -> Outcome[ElectLeadersResponse]:
    """Decide the elections of the named partitions, or of all.

    Per partition: ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION, PREFERRED_LEADER_NOT_AVAILABLE,
    ELIGIBLE_LEADERS_NOT_AVAILABLE. INVALID_REQUEST for an unknown election type. POLICY_VIOLATION (raised) if the
    request needs too many records.
    """
    everything = request.topic_partitions is None
    asked = _all(context) if request.topic_partitions is None else request.topic_partitions
    if not asked and not everything:
        return Outcome([], ElectLeadersResponse(replica_election_results=[]))
    kind = _ELECTIONS.get(request.election_type)
    if kind is None:
        error = KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
        results = [] if everything else [_result(one, dict.fromkeys(one.partitions, error)) for one in asked]
        return Outcome([], ElectLeadersResponse(error_code=error.code, replica_election_results=results))
    records: dict[tuple[str, int], Any] = {}
    results = []
    for one in asked:
        found: dict[int, KafkaError | None] = {}
        for index in one.partitions:
            try:
                if (one.topic, index) not in records:
                    records[one.topic, index] = _elect(context, one.topic, index, kind)
                    context.require_room([], len(records))
                found[index] = None
            except _NotElected as error:
                if not (everything and error.code is ErrorCode.ELECTION_NOT_NEEDED):
                    found[index] = error
        results.append(_result(one, found))
    return Outcome(list(records.values()), ElectLeadersResponse(replica_election_results=results))


class _NotElected(KafkaError):
    """The reason why a partition got no new leader."""


def _all(context: Context) -> list[TopicPartitions]:
    topics = context.image.topics_by_name.values()
    return [TopicPartitions(topic=topic.name, partitions=list(topic.partitions)) for topic in topics]


def _result(asked: TopicPartitions, found: dict[int, KafkaError | None]) -> ReplicaElectionResult:
    """The results of one topic, in the order of the request. A partition that is named twice has two results."""
    return ReplicaElectionResult(
        topic=asked.topic,
        partition_result=[
            PartitionResult(partition_id=index, error_message=None)
            if (error := found[index]) is None
            else PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
            for index in asked.partitions
            if index in found
        ],
    )


def _elect(context: Context, name: str, index: int, kind: Election) -> Any:
    topic: TopicImage | None = context.image.topics_by_name.get(name)
    if topic is None:
        raise _NotElected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = topic.partitions.get(index)
    if partition is None:
        raise _NotElected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    wanted = partition.replicas[0] if kind is Election.PREFERRED else partition.leader
    if wanted == partition.leader != NO_LEADER:
        raise _NotElected(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    record = plan_change(context, topic, index, election=kind)
    if record is None:
        raise _NotElected(*_NO_CANDIDATE[kind])
    return record
