"""Metadata, DescribeTopicPartitions, DescribeCluster: topics and brokers as clients see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.oracle.conftest import Pair, Topic, await_leaders, same
from compat.oracle.schema import Message

UNKNOWN_TOPIC, INVALID_TOPIC, UNKNOWN_TOPIC_ID = 3, 17, 100


@pytest.fixture(scope="module")
def topic(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    return pair.create(new_topic_name("metadata"), partitions=3)


def metadata(version: int, *names: str) -> Message:
    message: Message = {"Topics": [{"Name": name} for name in names]}
    return {**message, "AllowAutoTopicCreation": False} if version >= 4 else message


def sorted_partitions(answers: list[Message]) -> list[Message]:
    """Kafka lists a topic's partitions in the order of a hash table."""
    for answer in answers:
        for each in answer["Topics"]:
            each["Partitions"].sort(key=lambda part: part["PartitionIndex"])
    return answers


@pytest.mark.parametrize("version", range(13))
def test_a_topic_is_described_in_every_version(pair: Pair, topic: Topic, version: int) -> None:
    answer = same(sorted_partitions(pair.call("Metadata", version, metadata(version, topic.name))))
    assert len(answer["Topics"][0]["Partitions"]) == 3


@pytest.mark.parametrize("version", range(4, 13))
def test_an_unknown_topic_is_not_created_unless_allowed(pair: Pair, version: int) -> None:
    answer = same(pair.call("Metadata", version, metadata(version, "never-created", "never-created-2")))
    assert [each["ErrorCode"] for each in answer["Topics"]] == [UNKNOWN_TOPIC] * 2


@pytest.mark.parametrize("version", [1, 4, 9, 12])
@pytest.mark.parametrize("name", ["../x", ".", "..", "x" * 250, "a b", "", "nul\0", "ümlaut", "x" * 249 + "/"])
def test_x5_an_impossible_name_is_refused(pair: Pair, version: int, name: str) -> None:
    for allowed in (False, True):
        message = metadata(version, name)
        if version >= 4:
            message["AllowAutoTopicCreation"] = allowed
        same(pair.call("Metadata", version, message))


@pytest.mark.parametrize("version", [1, 4, 9, 12])
def test_an_empty_list_is_no_topics_and_null_all(pair: Pair, topic: Topic, version: int) -> None:
    assert same(pair.call("Metadata", version, metadata(version)))["Topics"] == []
    for answer in pair.call("Metadata", version, {"Topics": None}):
        assert topic.name in {each["Name"] for each in answer["Topics"]}
    for answer in pair.call("Metadata", 0, metadata(0)):
        assert topic.name in {each["Name"] for each in answer["Topics"]}


@pytest.mark.parametrize("version", [1, 5, 12])
def test_a_metadata_request_creates_a_topic(pair: Pair, new_topic_name: Callable[[str], str], version: int) -> None:
    name = new_topic_name("automatic")
    message: Message = {"Topics": [{"Name": name}]}
    first = same(pair.call("Metadata", version, message))
    assert first["Topics"][0]["ErrorCode"] == UNKNOWN_TOPIC
    for address in pair.addresses:
        await_leaders(address, name, 1)
    second = same(pair.call("Metadata", version, message))
    assert [each["ErrorCode"] for each in second["Topics"]] == [0]
    assert len(second["Topics"][0]["Partitions"]) == 1


@pytest.mark.parametrize("version", [10, 12])
def test_a_topic_is_found_by_its_id(pair: Pair, topic: Topic, version: int) -> None:
    def by_id(side: int) -> Message:
        return {"Topics": [{"TopicId": topic.ids[side], "Name": None}], "AllowAutoTopicCreation": False}

    same(sorted_partitions(pair.call("Metadata", version, by_id)))
    unknown = {"Topics": [{"TopicId": b"\x07" * 16, "Name": None}], "AllowAutoTopicCreation": False}
    same(pair.call("Metadata", version, unknown))


@pytest.mark.parametrize("version", [8, 10, 12])
def test_authorized_operations_are_returned_on_request(pair: Pair, topic: Topic, version: int) -> None:
    message = {**metadata(version, topic.name), "IncludeTopicAuthorizedOperations": True}
    if version <= 10:
        message["IncludeClusterAuthorizedOperations"] = True
    same(sorted_partitions(pair.call("Metadata", version, message)))


def test_a_topic_requested_twice_is_answered_as_in_kafka(pair: Pair, topic: Topic) -> None:
    same(sorted_partitions(pair.call("Metadata", 9, metadata(9, topic.name, topic.name))))


@pytest.mark.parametrize("limit", [2000, 2, 1, 0])
def test_w11_described_partitions_are_limited_and_continued(pair: Pair, topic: Topic, limit: int) -> None:
    message: Message = {"Topics": [{"Name": topic.name}], "ResponsePartitionLimit": limit, "Cursor": None}
    answer = same(pair.call("DescribeTopicPartitions", 0, message))
    cursor = answer["NextCursor"]
    if cursor is not None:
        message["Cursor"] = {"TopicName": cursor["TopicName"], "PartitionIndex": cursor["PartitionIndex"]}
        same(pair.call("DescribeTopicPartitions", 0, message))


def test_unknown_topics_are_included_in_descriptions(pair: Pair, topic: Topic) -> None:
    message = {"Topics": [{"Name": "a-never-created"}, {"Name": topic.name}, {"Name": "../x"}], "Cursor": None}
    same(pair.call("DescribeTopicPartitions", 0, message))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("authorized", [False, True])
def test_the_cluster_is_described(pair: Pair, version: int, authorized: bool) -> None:
    same(pair.call("DescribeCluster", version, {"IncludeClusterAuthorizedOperations": authorized}))


def test_the_controllers_are_not_described_by_a_broker(pair: Pair) -> None:
    same(pair.call("DescribeCluster", 1, {"EndpointType": 2}))
    same(pair.call("DescribeCluster", 1, {"EndpointType": 9}))
