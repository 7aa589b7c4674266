"""Which markers go to which broker next: the bookkeeping of the marker sender, without I/O.

An `Ending` is a prepared transaction, with the partitions that lack its marker. `Markers` keeps, for each broker, the
endings with partitions that the broker leads. A request takes as many as fit; its answer removes the partitions whose
marker is written. The others go back, to the leaders that the metadata names then, after a pause. Partitions that no
longer exist are dropped.

Source: TransactionMarkerChannelManager and TransactionMarkerRequestCompletionHandler of Apache Kafka 4.3.1. There an
INVALID_PRODUCER_EPOCH leaves the transaction prepared until another broker loads it. Here the partition counts as done:
a later epoch has written to it, so its transaction has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.coordinator.transactions.state import PREPARE_COMMIT, TopicPartition, Transaction
from wire.errors import ErrorCode
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

PARTITIONS_IN_REQUEST: Final = 1_000

NO_LEADER: Final = -1
LeaderOf = Callable[[str, int], int | None]
"""The broker that leads a partition: NO_LEADER for none, None if there is no such partition."""

_DONE: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})


class Ending:
    """A prepared transaction whose markers are being written.

    Shape   owner is the coordinator's own reference, coordinator_epoch the leader epoch for which it decided; both are
            set before the markers are sent. remaining are the partitions without a marker
    Note    is_cancelled: this broker no longer coordinates the transaction
    """

    __slots__ = ("coordinator_epoch", "is_cancelled", "owner", "remaining", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.remaining = dict(transaction.partitions)
        self.owner: Any = None
        self.coordinator_epoch = -1
        self.is_cancelled = False


@dataclass(eq=False, slots=True)
class Markers:
    """The markers that are to be written; see the module docstring.

    Shape   by_broker has the partitions to send to each broker, by ending; waiting are partitions to route again; ready
            are endings whose markers are all written
    """

    leader_of: LeaderOf
    by_broker: dict[int, dict[Ending, list[TopicPartition]]] = field(default_factory=dict)
    waiting: dict[Ending, list[TopicPartition]] = field(default_factory=dict)
    ready: list[Ending] = field(default_factory=list)

    def add(self, ending: Ending, partitions: Iterable[TopicPartition]) -> None:
        """Route partitions of an ending that lack a marker."""
        if ending.is_cancelled:
            return
        for partition in partitions:
            leader = self.leader_of(*partition)
            if leader is None:  # its topic was deleted
                ending.remaining.pop(partition, None)
            elif leader == NO_LEADER:
                self.waiting.setdefault(ending, []).append(partition)
            else:
                self.by_broker.setdefault(leader, {}).setdefault(ending, []).append(partition)
        self._note_ready(ending)

    def take_waiting(self) -> dict[Ending, list[TopicPartition]]:
        """What could not be written since the last call, to be routed again."""
        waiting, self.waiting = self.waiting, {}
        return waiting

    def take(self, broker_id: int) -> dict[Ending, list[TopicPartition]]:
        """The markers of the next request to a broker; empty if there are none.

        An answer is by producer id, and a producer id has at most one prepared transaction.
        """
        taken: dict[Ending, list[TopicPartition]] = {}
        queue, room = self.by_broker.get(broker_id, {}), PARTITIONS_IN_REQUEST
        while queue and room > 0:
            ending = next(iter(queue))
            partitions = queue.pop(ending)
            if ending.is_cancelled:
                continue
            taken[ending] = partitions[:room]
            if len(partitions) > room:
                queue[ending] = partitions[room:]
            room -= len(taken[ending])
        if not queue:
            self.by_broker.pop(broker_id, None)
        return taken

    def on_response(
        self, sent: Mapping[Ending, list[TopicPartition]], response: WriteTxnMarkersResponse
    ) -> dict[int, list[TopicPartition]]:
        """Take the answer to a request. Returns the partitions with an error, by its code."""
        codes = {
            (marker.producer_id, topic.name, partition.partition_index): partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }
        failed: dict[int, list[TopicPartition]] = {}
        for ending, partitions in sent.items():
            for partition in partitions:
                code = codes.get((ending.transaction.producer_id, *partition), ErrorCode.UNKNOWN_SERVER_ERROR)
                if code in _DONE:
                    ending.remaining.pop(partition, None)
                else:
                    self.waiting.setdefault(ending, []).append(partition)
                if code != ErrorCode.NONE:
                    failed.setdefault(code, []).append(partition)
            self._note_ready(ending)
        return failed

    def on_failure(self, sent: Mapping[Ending, list[TopicPartition]]) -> None:
        """A request failed as a whole: its markers wait to be routed again."""
        for ending, partitions in sent.items():
            self.waiting.setdefault(ending, []).extend(partitions)

    def take_ready(self) -> list[Ending]:
        """The endings whose markers are all written, since the last call."""
        ready, self.ready = self.ready, []
        return ready

    def _note_ready(self, ending: Ending) -> None:
        if not ending.remaining and not ending.is_cancelled:
            self.ready.append(ending)


def markers_request(sent: Mapping[Ending, list[TopicPartition]]) -> WriteTxnMarkersRequest:
    """The request for these markers."""
    markers = []
    for ending, partitions in sent.items():
        topics: dict[str, WritableTxnMarkerTopic] = {}
        for topic, index in partitions:
            found = topics.get(topic)
            if found is None:
                found = topics[topic] = WritableTxnMarkerTopic(name=topic, partition_indexes=[])
            found.partition_indexes.append(index)
        markers.append(
            WritableTxnMarker(
                producer_id=ending.transaction.producer_id,
                producer_epoch=ending.transaction.producer_epoch,
                transaction_result=ending.transaction.state is PREPARE_COMMIT,
                topics=list(topics.values()),
                coordinator_epoch=ending.coordinator_epoch,
                transaction_version=ending.transaction.client_version,
            )
        )
    return WriteTxnMarkersRequest(markers=markers)
