"""Answer Metadata, DescribeCluster and DescribeTopicPartitions; pure functions of an image.

Clients of a listener see each broker at its advertised endpoint for that listener. Brokers without the listener and
fenced brokers do not appear. Topics that do not exist are answered with UNKNOWN_TOPIC_OR_PARTITION even while they are
being created; clients retry.

What a client may see is a parameter (`Rights`), because metadata know no clients. Topics that it may not describe are
omitted from lists of all topics, and refused by name whether they exist or not.

Source: Kafka's KafkaApis, KRaftMetadataCache and DescribeTopicPartitionsRequestHandler; checked against the answers of
Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kbroker.metadata.image import BrokerImage, Image, PartitionImage, TopicImage
from kbroker.metadata.names import is_internal, topic_name_fault
from wire.errors import ErrorCode
from wire.messages.broker_registration import Endpoint
from wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.types import ZERO_UUID

NO_LEADER_ID: Final = -1
UNASKED_OPERATIONS: Final = -(2**31)
"""The bit field of authorized operations that a client has not asked for."""

BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2
_ENDPOINTS: Final = {BROKER_ENDPOINTS: "BROKER", CONTROLLER_ENDPOINTS: "CONTROLLER"}


class Viewpoint(NamedTuple):
    """The broker that answers, and the client's listener."""

    cluster_id: str
    node_id: int
    listener: str


class Rights(Protocol):
    """What a client may see and create."""

    def may_describe(self, topic: str, *, is_named: bool = True) -> bool:
        """Whether the topic may be described; is_named if the client has named it."""
        ...

    def may_create(self, topic: str) -> bool:
        """Whether the client may have the unknown topic created."""
        ...

    def on_topic(self, topic: str) -> int:
        """The operations that the client may perform on a topic, as a bit field."""
        ...

    def on_cluster(self) -> int:
        """The operations that the client may perform on the cluster, as a bit field."""
        ...


class MetadataAnswer(NamedTuple):
    """A Metadata response without its topics; the topics, which the caller takes one by one because encoding them may
    take long; and the names of topics to create, which are complete once all topics were taken.
    """

    response: MetadataResponse
    topics: Iterable[MetadataResponseTopic | bytes]
    to_create: list[str]


def visible_brokers(image: Image, listener: str, *, with_fenced: bool = False) -> list[tuple[BrokerImage, Endpoint]]:
    """The brokers that clients of a listener can reach, with their addresses there, ordered by id."""
    return [
        (broker, broker.endpoints[listener])
        for _, broker in sorted(image.brokers.items())
        if (with_fenced or not broker.fenced) and listener in broker.endpoints
    ]


def controller_id(image: Image, viewpoint: Viewpoint) -> int:
    """The broker to which clients send controller requests: this one, which handles or forwards them, if clients can
    see it.
    """
    visible = [broker.id for broker, _ in visible_brokers(image, viewpoint.listener)]
    if viewpoint.node_id in visible:
        return viewpoint.node_id
    return visible[0] if visible else -1


def _reachable(image: Image, broker_id: int, listener: str) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and listener in broker.endpoints


def _offline_replicas(image: Image, partition: PartitionImage, listener: str) -> list[int]:
    offline = []
    for replica in partition.replicas:
        broker = image.brokers.get(replica)
        if (
            broker is None
            or broker.fenced
            or listener not in broker.endpoints
            or not broker.has_online_directory(partition.directory(replica))
        ):
            offline.append(replica)
    return offline


# -- Metadata


def answer_metadata(
    image: Image,
    request: MetadataRequest,
    *,
    version: int,
    viewpoint: Viewpoint,
    rights: Rights,
    creates: Callable[[str], bool] | None,
    described: Callable[[TopicImage], MetadataResponseTopic | bytes],
    cluster_operations: int = UNASKED_OPERATIONS,
) -> MetadataAnswer:
    """Answer Metadata. An empty list of topics means all topics in version 0, none from version 1 on; null means all.

    Per topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED. Per
    partition: LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND (version 6+), REPLICA_NOT_AVAILABLE (version 0). INVALID_REQUEST
    on each topic when ids are used before version 12. `described` makes the entry of an existing topic; `creates` tells
    which names this broker can create automatically; None if it creates no topics. This may run in a thread, but the
    topics and the rights on them must be asked for on the event loop, where rights change.
    """
    asked = request.topics
    fault = asked is not None and any(_is_faulty(topic, version) for topic in asked)
    if asked is not None and fault:
        refused = (
            _topic(topic.name or "", topic.topic_id, ErrorCode.INVALID_REQUEST, internal=False) for topic in asked
        )
        return MetadataAnswer(MetadataResponse(brokers=[], topics=[]), refused, [])
    to_create: list[str] = []
    with_operations = version >= 8 and request.include_topic_authorized_operations

    def by_name(names: Iterable[str]) -> Iterator[MetadataResponseTopic | bytes]:
        for name in names:
            if not rights.may_describe(name):
                yield _topic(name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED, internal=False)
                continue
            known = image.topics_by_name.get(name)
            if known is not None:
                yield described(known)
                continue
            if request.allow_auto_topic_creation and creates is not None:
                if not rights.may_create(name):
                    yield _topic(name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED, internal=is_internal(name))
                    continue
                if creates(name):
                    to_create.append(name)
            unknown = _topic(name, ZERO_UUID, _why_unknown(name), internal=is_internal(name))
            if with_operations:
                unknown.topic_authorized_operations = rights.on_topic(name)
            yield unknown

    topics: Iterable[MetadataResponseTopic | bytes]
    if asked is None or (version == 0 and not asked):
        topics = (
            described(topic)
            for topic in image.topics_by_name.values()
            if rights.may_describe(topic.name, is_named=False)
        )
    elif any(topic.topic_id != ZERO_UUID for topic in asked):
        topics = _topics_by_id(image, asked, rights, described)
    else:
        topics = by_name(dict.fromkeys(topic.name for topic in asked if topic.name is not None))
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in visible_brokers(image, viewpoint.listener)
        ],
        cluster_id=viewpoint.cluster_id,
        controller_id=controller_id(image, viewpoint),
        topics=[],
        cluster_authorized_operations=cluster_operations,
    )
    return MetadataAnswer(response, topics, to_create)


def _why_unknown(name: str) -> ErrorCode:
    return ErrorCode.INVALID_TOPIC_EXCEPTION if topic_name_fault(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _is_faulty(topic: MetadataRequestTopic, version: int) -> bool:
    if version < 12:
        return topic.name is None or topic.topic_id != ZERO_UUID
    return topic.name is None and topic.topic_id == ZERO_UUID


def _topic(name: str | None, topic_id: UUID, code: ErrorCode, *, internal: bool) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, is_internal=internal, partitions=[])


def _topics_by_id(
    image: Image,
    asked: Iterable[MetadataRequestTopic],
    rights: Rights,
    described: Callable[[TopicImage], MetadataResponseTopic | bytes],
) -> Iterator[MetadataResponseTopic | bytes]:
    """If the request has any id, only ids count; unknown ones come first, as in Kafka."""
    known = []
    for topic_id in dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != ZERO_UUID):
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            yield _topic(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, internal=False)
        else:
            known.append(topic)
    for topic in known:
        if rights.may_describe(topic.name):
            yield described(topic)
        else:  # the id is no secret, the name is
            yield _topic(None, topic.id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, internal=False)


def known_topic(
    image: Image, topic: TopicImage, version: int, listener: str, *, operations: int
) -> MetadataResponseTopic:
    """An existing topic, for clients of a listener that are authorized for these operations on it."""
    return MetadataResponseTopic(
        topic_authorized_operations=operations,
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=[
            _partition(image, index, partition, version, listener) for index, partition in topic.partitions.items()
        ],
    )


def _partition(
    image: Image, index: int, partition: PartitionImage, version: int, listener: str
) -> MetadataResponsePartition:
    code = ErrorCode.NONE
    replicas, isr = list(partition.replicas), list(partition.isr)
    if version == 0:  # these old clients cannot handle a replica that is not among the brokers
        alive = {broker.id for broker, _ in visible_brokers(image, listener)}
        replicas = [replica for replica in replicas if replica in alive]
        isr = [replica for replica in isr if replica in alive]
        if len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
            code = ErrorCode.REPLICA_NOT_AVAILABLE
    leader = partition.leader
    if not _reachable(image, leader, listener):
        registered = leader in image.brokers
        code = ErrorCode.LISTENER_NOT_FOUND if registered and version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER_ID
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=_offline_replicas(image, partition, listener),
    )


# -- DescribeCluster


def answer_describe_cluster(
    image: Image, request: DescribeClusterRequest, *, version: int, viewpoint: Viewpoint, rights: Rights
) -> DescribeClusterResponse:
    """Answer DescribeCluster on a broker's listener. MISMATCHED_ENDPOINT_TYPE for controllers,
    UNSUPPORTED_ENDPOINT_TYPE for unknown types.
    """
    if request.endpoint_type != BROKER_ENDPOINTS:
        return wrong_endpoint(request.endpoint_type, sent_to=BROKER_ENDPOINTS)
    with_fenced = version >= 2 and request.include_fenced_brokers
    brokers = [
        DescribeClusterBroker(
            broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=broker.fenced
        )
        for broker, endpoint in visible_brokers(image, viewpoint.listener, with_fenced=with_fenced)
    ]
    response = DescribeClusterResponse(
        cluster_id=viewpoint.cluster_id, controller_id=controller_id(image, viewpoint), brokers=brokers
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = rights.on_cluster()
    return response


def wrong_endpoint(wanted: int, *, sent_to: int) -> DescribeClusterResponse:
    """The answer to a DescribeCluster that was sent to an endpoint of the wrong type."""
    code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {wanted}"
    if wanted in _ENDPOINTS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        text = (
            f"The request was sent to an endpoint of type {_ENDPOINTS[sent_to]}, but we wanted an endpoint of type "
            f"{_ENDPOINTS[wanted]}"
        )
    return DescribeClusterResponse(error_code=code, error_message=text, cluster_id="", brokers=[])


# -- DescribeTopicPartitions


def answer_describe_topic_partitions(
    image: Image,
    request: DescribeTopicPartitionsRequest,
    *,
    listener: str,
    partition_limit: int,
    hidden: Set[str] = frozenset(),
) -> DescribeTopicPartitionsResponse:
    """Answer one page: topics by name in order, up to the smaller of the limits, and a cursor to the next page.

    partition_limit is max.request.partition.size.limit. INVALID_REQUEST on each topic for a cursor outside the named
    topics or with a negative partition. UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION and, for those of `hidden`,
    TOPIC_AUTHORIZATION_FAILED only on named topics. The caller adds the authorized operations of topics without this
    error.
    """
    cursor = request.cursor
    first = "" if cursor is None else cursor.topic_name
    everything = not request.topics
    names = list(image.topics_by_name) if everything else [topic.name for topic in request.topics]
    if cursor is not None and (cursor.partition_index < 0 or (not everything and first not in names)):
        refused = [_described(topic.name, ErrorCode.INVALID_REQUEST) for topic in request.topics]
        return DescribeTopicPartitionsResponse(topics=refused)
    remaining = max(min(partition_limit, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse(topics=[])
    refused = []
    for name in sorted({name for name in names if name >= first}):
        if name in hidden:
            if not everything:
                refused.append(_described(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        if remaining <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = image.topics_by_name.get(name)
        answered = _described(name, ErrorCode.NONE if topic is not None else _why_unknown(name))
        answered.is_internal = is_internal(name)
        response.topics.append(answered)
        if topic is None:  # it has no partitions that count
            continue
        start = cursor.partition_index if cursor is not None and name == first else 0
        end = min(len(topic.partitions), start + remaining)
        answered.topic_id = topic.id
        answered.partitions = [
            _described_partition(image, index, topic.partitions[index], listener) for index in range(start, end)
        ]
        if end < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
        remaining -= len(answered.partitions)
    response.topics += refused
    return response


def _described(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_id=ZERO_UUID, partitions=[])


def _described_partition(
    image: Image, index: int, partition: PartitionImage, listener: str
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader if _reachable(image, partition.leader, listener) else NO_LEADER_ID,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible_leader_replicas),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=_offline_replicas(image, partition, listener),
    )
