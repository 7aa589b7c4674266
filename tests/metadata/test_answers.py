"""Answers about the cluster, compared with those of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest

from kbroker.metadata.answers import (
    UNASKED_OPERATIONS,
    Viewpoint,
    answer_describe_cluster,
    answer_describe_topic_partitions,
    answer_metadata,
    known_topic,
)
from kbroker.metadata.image import Image
from kbroker.metadata.names import topic_name_fault
from kbroker.security.authorizing import ALL_OPERATIONS, ResourceType
from wire.codec import encode
from wire.errors import ErrorCode
from wire.messages.broker_registration import Endpoint
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.stored import metadata as stored
from wire.types import ZERO_UUID

ALPHA, OMEGA, UNKNOWN = UUID(int=7000), UUID(int=7001), UUID(int=7002)
VIEW = Viewpoint("cluster", 1, "PLAINTEXT")


def broker(broker_id: int, *, fenced: bool = False, listener: str = "PLAINTEXT") -> stored.RegisterBrokerRecord:
    return stored.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=3),
        broker_epoch=5,
        end_points=[Endpoint(name=listener, host=f"h{broker_id}", port=9092, security_protocol=0)],
        features=[],
        rack=f"rack{broker_id}",
        fenced=fenced,
    )


def partition(topic_id: UUID, index: int, replicas: list[int], leader: int) -> stored.PartitionRecord:
    return stored.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas,
        removing_replicas=[],
        adding_replicas=[],
        leader=leader,
        leader_epoch=6,
        partition_epoch=6,
    )


def image_of(*extra: Any) -> Image:
    """Brokers 1 (visible) and 2 (fenced); topic alpha with two partitions led by 1, topic omega without a leader."""
    records = [
        broker(1),
        broker(2, fenced=True),
        stored.TopicRecord(name="alpha", topic_id=ALPHA),
        partition(ALPHA, 0, [1], 1),
        partition(ALPHA, 1, [1, 2], 1),
        stored.TopicRecord(name="omega", topic_id=OMEGA),
        partition(OMEGA, 0, [2], -1),
        *extra,
    ]
    return Image().apply(records, offset=len(records) - 1, epoch=1)


IMAGE = image_of()


class Rights:
    """Who may do everything except describe the topics in `hidden` and create those in `uncreatable`."""

    def __init__(self, *, hidden: Collection[str] = (), uncreatable: Collection[str] = ()) -> None:
        self.hidden, self.uncreatable = hidden, uncreatable

    def may_describe(self, topic: str, *, is_named: bool = True) -> bool:
        return topic not in self.hidden

    def may_create(self, topic: str) -> bool:
        return topic not in self.uncreatable

    def on_topic(self, topic: str) -> int:
        return 0 if topic in self.hidden else ALL_OPERATIONS[ResourceType.TOPIC]

    def on_cluster(self) -> int:
        return ALL_OPERATIONS[ResourceType.CLUSTER]


EVERYTHING = Rights()


def named(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


def ask(
    topics: list[MetadataRequestTopic] | None,
    version: int = 12,
    image: Image = IMAGE,
    *,
    rights: Rights = EVERYTHING,
    **fields: Any,
) -> tuple[MetadataResponse, list[str]]:
    request = MetadataRequest(topics=topics, **fields)
    with_operations = version >= 8 and request.include_topic_authorized_operations
    with_cluster = 8 <= version <= 10 and request.include_cluster_authorized_operations
    answer = answer_metadata(
        image,
        request,
        version=version,
        viewpoint=VIEW,
        rights=rights,
        creates=lambda name: topic_name_fault(name) is None,
        described=lambda topic: known_topic(
            image,
            topic,
            version,
            VIEW.listener,
            operations=rights.on_topic(topic.name) if with_operations else UNASKED_OPERATIONS,
        ),
        cluster_operations=rights.on_cluster() if with_cluster else UNASKED_OPERATIONS,
    )
    answer.response.topics += answer.topics
    encode(answer.response, version)  # every answer can be encoded in that version
    return answer.response, answer.to_create


def brief(response: MetadataResponse) -> list[tuple[str | None, int, int]]:
    return [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics]


@pytest.mark.parametrize(
    ("version", "topics", "names"),
    [
        (0, [], ["alpha", "omega"]),  # trap 13: empty means all in version 0 and none later; null means all
        (1, [], []),
        (1, None, ["alpha", "omega"]),
        (12, [], []),
        (12, None, ["alpha", "omega"]),
    ],
)
def test_trap_13_no_topics_means_all_or_none_by_version(
    version: int, topics: list[MetadataRequestTopic] | None, names: list[str]
) -> None:
    assert [topic.name for topic in ask(topics, version)[0].topics] == names


def test_traps_14_15_16_unfenced_brokers_include_the_controller() -> None:
    response, _ = ask([])
    assert [(one.node_id, one.host, one.port, one.rack) for one in response.brokers] == [(1, "h1", 9092, "rack1")]
    assert response.controller_id == 1
    assert response.cluster_id == "cluster"


def test_trap_14_a_broker_without_the_clients_listener_is_not_shown() -> None:
    response, _ = ask(named("beta"), image=image_of(broker(3, listener="INTERNAL")))
    assert [one.node_id for one in response.brokers] == [1]


def test_trap_15_a_hidden_broker_is_not_named_as_the_controller() -> None:
    image = Image().apply([broker(1, fenced=True), broker(4)], offset=1, epoch=1)
    assert ask([], image=image)[0].controller_id == 4
    assert ask([], image=Image())[0].controller_id == -1


def test_trap_17_an_unknown_topic_has_code_3_during_its_creation() -> None:
    response, to_create = ask(named("new", "bad name", "alpha", "new"))
    assert brief(response) == [("new", 3, 0), ("bad name", 17, 0), ("alpha", 0, 2)]
    assert to_create == ["new"]


def test_trap_17_metadata_creates_topics_only_if_named_and_allowed() -> None:
    assert ask(named("new"), allow_auto_topic_creation=False)[1] == []
    assert ask(None)[1] == []


def test_trap_19_topics_are_found_by_id_or_unknown_topic_id() -> None:
    topics = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in (ALPHA, UNKNOWN)]
    response, to_create = ask([*topics, *named("ignored")])
    assert brief(response) == [(None, 100, 0), ("alpha", 0, 2)]
    assert response.topics[0].topic_id == UNKNOWN
    assert to_create == []


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("topic", [{"name": None, "topic_id": ALPHA}, {"name": "alpha", "topic_id": ALPHA}])
def test_ids_before_version_12_are_an_invalid_request(version: int, topic: dict[str, Any]) -> None:
    response, _ = ask([MetadataRequestTopic(**topic)], version)
    assert [(one.name, one.topic_id, one.error_code) for one in response.topics] == [(topic["name"] or "", ALPHA, 42)]
    assert response.brokers == []


def test_neither_name_nor_id_is_an_invalid_request() -> None:
    response, _ = ask([MetadataRequestTopic(name=None)])
    assert [(one.name, one.error_code) for one in response.topics] == [("", 42)]


def test_trap_20_leader_epochs_are_from_the_image() -> None:
    assert [one.leader_epoch for one in ask(named("alpha"))[0].topics[0].partitions] == [6, 6]


def test_trap_21_offline_replicas_and_a_missing_leader_are_reported() -> None:
    response, _ = ask(named("alpha", "omega"))
    alpha, omega = response.topics
    assert [(one.error_code, one.leader_id, one.offline_replicas) for one in alpha.partitions] == [
        (0, 1, []),
        (0, 1, [2]),
    ]
    assert [(one.error_code, one.leader_id, one.replica_nodes) for one in omega.partitions] == [(5, -1, [2])]


def test_leaders_without_the_listener_have_code_72_from_version_6() -> None:
    topic = UUID(int=7003)
    image = image_of(
        broker(3, listener="INTERNAL"), stored.TopicRecord(name="t", topic_id=topic), partition(topic, 0, [3], 3)
    )
    assert [ask(named("t"), version, image)[0].topics[0].partitions[0].error_code for version in (5, 6)] == [5, 72]


def test_version_0_hides_offline_replicas_with_an_error_code() -> None:
    (alpha,) = ask(named("alpha"), 0)[0].topics
    assert [(one.error_code, one.replica_nodes) for one in alpha.partitions] == [(0, [1]), (9, [1])]


class Unasked:
    """Fails the test if a right is checked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("version", "topics"),
    [(10, None), (10, named("alpha", "nope")), (12, [MetadataRequestTopic(name=None, topic_id=ALPHA)])],
)
def test_rights_are_asked_for_only_when_the_topics_are_taken(
    version: int, topics: list[MetadataRequestTopic] | None
) -> None:
    request = MetadataRequest(
        topics=topics, include_cluster_authorized_operations=True, include_topic_authorized_operations=True
    )
    rights: Any = Unasked()
    answer_metadata(IMAGE, request, version=version, viewpoint=VIEW, rights=rights, creates=None, described=rights)


@pytest.mark.parametrize("version", [8, 10, 12])
def test_trap_21_requested_authorized_operations_are_complete(version: int) -> None:
    response, _ = ask(
        named("alpha", "nope"),
        version,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=version <= 10,
    )
    assert [topic.topic_authorized_operations for topic in response.topics] == [3576, 3576]
    assert response.cluster_authorized_operations == (8096 if version <= 10 else -(2**31))
    silent, _ = ask(named("alpha"), version)
    assert silent.topics[0].topic_authorized_operations == silent.cluster_authorized_operations == -(2**31)


def test_internal_topics_are_marked_even_when_unknown() -> None:
    assert [topic.is_internal for topic in ask(named("__consumer_offsets", "alpha"))[0].topics] == [True, False]


def describe(version: int = 2, **fields: Any) -> Any:
    request = DescribeClusterRequest(include_cluster_authorized_operations=fields.pop("operations", False), **fields)
    response = answer_describe_cluster(IMAGE, request, version=version, viewpoint=VIEW, rights=EVERYTHING)
    encode(response, version)
    return response


def test_describe_cluster_shows_fenced_brokers_when_asked() -> None:
    assert [(one.broker_id, one.is_fenced) for one in describe().brokers] == [(1, False)]
    assert [(one.broker_id, one.is_fenced) for one in describe(include_fenced_brokers=True).brokers] == [
        (1, False),
        (2, True),
    ]
    assert describe().controller_id == 1


def test_describe_cluster_has_operations_only_on_request() -> None:
    assert describe(0).cluster_authorized_operations == -(2**31)
    assert describe(0, operations=True).cluster_authorized_operations == 8096


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (9, 115)])
def test_describe_cluster_supports_only_broker_endpoints(endpoint_type: int, code: int) -> None:
    response = describe(endpoint_type=endpoint_type)
    assert (response.error_code, response.brokers, response.cluster_id) == (code, [], "")


def page(
    *names: str, limit: int = 2000, cursor: Cursor | None = None, partition_limit: int = 2000
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
    )
    response = answer_describe_topic_partitions(IMAGE, request, listener="PLAINTEXT", partition_limit=partition_limit)
    encode(response, 0)
    return response


def shown(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int, list[int]]]:
    return [
        (topic.name, topic.error_code, [one.partition_index for one in topic.partitions]) for topic in response.topics
    ]


def test_trap_22_topics_are_described_in_order_with_all_operations() -> None:
    response = page()
    assert shown(response) == [("alpha", 0, [0, 1]), ("omega", 0, [0])]
    assert response.next_cursor is None
    assert response.topics[0].partitions[0].eligible_leader_replicas == []


def test_named_topics_are_sorted_and_unknown_ones_have_their_codes() -> None:
    assert shown(page("omega", "bad name", "nope")) == [("bad name", 17, []), ("nope", 3, []), ("omega", 0, [0])]


@pytest.mark.parametrize(
    ("limit", "partition_limit", "expected", "cursor"),
    [
        (1, 2000, [("alpha", 0, [0])], Cursor(topic_name="alpha", partition_index=1)),
        (2000, 1, [("alpha", 0, [0])], Cursor(topic_name="alpha", partition_index=1)),
        (0, 2000, [("alpha", 0, [0])], Cursor(topic_name="alpha", partition_index=1)),
        (2, 2000, [("alpha", 0, [0, 1])], Cursor(topic_name="omega", partition_index=0)),
        (3, 2000, [("alpha", 0, [0, 1]), ("omega", 0, [0])], None),
    ],
)
def test_w11_a_page_ends_at_the_smaller_limit(
    limit: int, partition_limit: int, expected: list[tuple[str, int, list[int]]], cursor: Cursor | None
) -> None:
    response = page(limit=limit, partition_limit=partition_limit)
    assert shown(response) == expected
    assert response.next_cursor == cursor


def test_all_pages_together_are_complete() -> None:
    seen: list[tuple[str | None, int]] = []
    cursor = None
    for _ in range(3):
        response = page(limit=1, cursor=cursor)
        seen += [(topic.name, one.partition_index) for topic in response.topics for one in topic.partitions]
        cursor = response.next_cursor
    assert cursor is None
    assert seen == [("alpha", 0), ("alpha", 1), ("omega", 0)]


def test_an_unknown_topic_does_not_count_against_the_limit() -> None:
    response = page("aaa", "aab", "alpha", limit=1)
    assert [topic.name for topic in response.topics] == ["aaa", "aab", "alpha"]
    assert response.next_cursor == Cursor(topic_name="alpha", partition_index=1)


def test_a_cursor_after_the_last_partition_gives_an_empty_topic() -> None:
    assert shown(page("alpha", cursor=Cursor(topic_name="alpha", partition_index=99))) == [("alpha", 0, [])]


@pytest.mark.parametrize(
    "cursor", [Cursor(topic_name="alpha", partition_index=-1), Cursor(topic_name="beta", partition_index=0)]
)
def test_an_impossible_cursor_is_an_invalid_request(cursor: Cursor) -> None:
    response = page("alpha", cursor=cursor)
    assert shown(response) == [("alpha", 42, [])]
    assert response.topics[0].topic_id == ZERO_UUID


DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_topics_that_must_not_be_described_are_left_out_of_all_topics() -> None:
    rights = Rights(hidden={"omega"})
    assert brief(ask(None, rights=rights)[0]) == brief(ask(named("alpha"))[0])
    assert brief(ask([], 0, rights=rights)[0]) == brief(ask(named("alpha"), 0)[0])


@pytest.mark.parametrize("name", ["omega", "nowhere", "not legal"])
def test_a_hidden_name_is_refused_whether_it_exists_or_not(name: str) -> None:
    response, to_create = ask(
        named(name),
        rights=Rights(hidden={name}),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=True,
    )
    (topic,) = response.topics
    assert (topic.error_code, topic.name, topic.topic_id, topic.is_internal, topic.partitions) == (
        DENIED, name, ZERO_UUID, False, [],
    )  # fmt: skip
    assert topic.topic_authorized_operations == UNASKED_OPERATIONS
    assert not to_create


def test_a_hidden_topic_is_refused_by_id_without_its_name() -> None:
    asked = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in (OMEGA, UNKNOWN, ALPHA)]
    response, _ = ask(asked, rights=Rights(hidden={"omega"}))
    found = {topic.topic_id: (topic.name, topic.error_code) for topic in response.topics}
    assert found == {ALPHA: ("alpha", 0), OMEGA: (None, DENIED), UNKNOWN: (None, ErrorCode.UNKNOWN_TOPIC_ID)}


def test_only_topics_that_the_client_may_create_are_created() -> None:
    response, to_create = ask(
        named("new", "other"), rights=Rights(uncreatable={"other"}), allow_auto_topic_creation=True
    )
    assert to_create == ["new"]
    assert brief(response) == [("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0), ("other", DENIED, 0)]
    response, _ = ask(named("other"), rights=Rights(uncreatable={"other"}), allow_auto_topic_creation=False)
    assert brief(response) == [("other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)], "it asks for no creation"


def test_a_page_refuses_hidden_names_and_lists_no_hidden_topics() -> None:
    named_topics = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="omega"), TopicRequest(name="alpha")])
    listed = DescribeTopicPartitionsRequest(topics=[])
    pages = [
        answer_describe_topic_partitions(
            IMAGE, request, listener="PLAINTEXT", partition_limit=10, hidden=frozenset({"omega"})
        )
        for request in (named_topics, listed)
    ]
    assert [[(topic.name, topic.error_code) for topic in page.topics] for page in pages] == [
        [("alpha", 0), ("omega", DENIED)],
        [("alpha", 0)],
    ]
    assert pages[0].topics[1].topic_id == ZERO_UUID
