"""Groups of KIP-848: the same heartbeats to both brokers in every state, with valid and invalid requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat.oracle.conftest import Pair, Topic, same
from compat.oracle.consumer_members import (
    BAD_REGEX,
    FENCED_EPOCH,
    LEAVE,
    LEAVE_STATIC,
    SAFE_DOWNGRADE,
    UNRELEASED_INSTANCE,
    UNSUPPORTED_ASSIGNOR,
    UNSUPPORTED_VERSION,
    UPGRADE,
    Members,
    group,
    topics,
    with_group_version,
)
from compat.oracle.groups import (
    FENCED,
    INVALID_GROUP,
    INVALID_REQUEST,
    NON_EMPTY,
    NONE,
    NOT_FOUND,
    SUBSCRIBED,
    UNKNOWN_MEMBER,
    committing,
    fetching,
)
from compat.oracle.schema import Message
from compat.waiting import until

__all__ = ["group", "topics", "with_group_version"]


def test_members_join_share_and_leave(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    first = group.beat("a", topics=[name])
    assert (first["ErrorCode"], group.owned["a"]) == (NONE, {name: [0, 1, 2, 3]})
    assert group.describe()["GroupState"] == "Stable"
    assert group.beat("b", topics=[name])["Assignment"] == {"TopicPartitions": []}
    assert group.describe()["GroupState"] == "Reconciling"
    held = group.owned["a"]
    assert len(group.beat("a")["Assignment"]["TopicPartitions"][0]["Partitions"]) == 2
    kept = group.owned["a"]
    group.beat("a", owned=held)  # has not given them up yet
    group.describe()
    group.beat("b")
    group.beat("a", owned=kept)
    assert group.describe()["GroupState"] == "Reconciling"
    assert len(group.beat("b")["Assignment"]["TopicPartitions"][0]["Partitions"]) == 2
    assert group.describe()["GroupState"] == "Stable"
    for version in (0, 1):
        group.describe(version)
    assert group.beat("b", LEAVE)["ErrorCode"] == NONE
    assert group.describe()["GroupState"] == "Assigning"
    assert group.beat("a")["Assignment"] is not None
    group.beat("a", LEAVE)
    assert group.describe()["GroupState"] == "Empty"
    assert group.beat("a", 1)["ErrorCode"] == UNKNOWN_MEMBER


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_subscriptions_change(group: Members, topics: list[Topic], assignor: str) -> None:
    one, two = (topic.name for topic in topics)
    group.beat("a", topics=[one, two], ServerAssignor=assignor)
    group.beat("b", topics=[two], ServerAssignor=assignor)
    for _ in range(3):
        group.beat("a")
        group.beat("b")
    assert group.describe()["GroupState"] == "Stable"
    group.beat("a", topics=[one], RackId="rack")
    group.beat("a")
    group.beat("b", topics=[])
    group.beat("b")
    group.beat("a")
    group.beat("a", topics=["missing"])
    group.beat("a")
    assert group.describe()["AssignorName"] == assignor


def test_topics_that_appear_and_grow_are_assigned(
    group: Members, pair: Pair, new_topic_name: Callable[[str], str]
) -> None:
    name = new_topic_name("later")
    group.beat("a", topics=[name])
    assert group.owned["a"] == {}
    group.topics[name] = pair.create(name, partitions=1)
    assert group.beat("a")["ErrorCode"] == NONE
    assert group.owned["a"] == {name: [0]}
    grown = {"Topics": [{"Name": name, "Count": 2, "Assignments": None}], "TimeoutMs": 30_000, "ValidateOnly": False}
    pair.call("CreatePartitions", 3, grown)
    for address in pair.addresses:
        _await_partitions(pair, address, name, 2)
    group.beat("a")
    assert group.owned["a"] == {name: [0, 1]}
    deleted = {"Topics": [{"Name": name, "TopicId": bytes(16)}], "TopicNames": [name], "TimeoutMs": 30_000}
    pair.call("DeleteTopics", 5, deleted)
    until(lambda: all(not answer["Topics"][0]["Partitions"] for answer in _metadata(pair, name)), each_s=0.01)
    taken = [False, False]

    def is_taken_on_both() -> bool:
        message = {"GroupId": group.group, "MemberId": "a", "MemberEpoch": group.epochs["a"]}
        for side, answer in enumerate(pair.call("ConsumerGroupHeartbeat", 1, message)):
            taken[side] |= answer["Assignment"] == {"TopicPartitions": []}
        return all(taken)

    until(is_taken_on_both, each_s=0.01)
    group.beat("a", owned={})
    assert group.describe()["GroupState"] == "Stable"


def _metadata(pair: Pair, name: str) -> list[Message]:
    asked = {"Topics": [{"TopicId": bytes(16), "Name": name}], "AllowAutoTopicCreation": False}
    return pair.call("Metadata", 12, asked)


def _await_partitions(pair: Pair, _address: str, name: str, count: int) -> None:
    until(lambda: all(len(answer["Topics"][0]["Partitions"]) == count for answer in _metadata(pair, name)), each_s=0.01)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"MemberId": ""}, INVALID_REQUEST),
        ({"MemberId": "  "}, INVALID_REQUEST),
        ({"GroupId": ""}, None),
        ({"GroupId": " "}, None),
        ({"InstanceId": ""}, INVALID_REQUEST),
        ({"RackId": ""}, INVALID_REQUEST),
        ({"RebalanceTimeoutMs": -1}, INVALID_REQUEST),
        ({"owned": None}, INVALID_REQUEST),
        ({"topics": None}, INVALID_REQUEST),
        ({"ServerAssignor": "sticky"}, UNSUPPORTED_ASSIGNOR),
        ({"ServerAssignor": ""}, UNSUPPORTED_ASSIGNOR),
        ({"epoch": -3}, INVALID_REQUEST),
        ({"epoch": LEAVE_STATIC}, INVALID_REQUEST),
        ({"epoch": LEAVE}, NOT_FOUND),
        ({"epoch": 1}, NOT_FOUND),
        ({"RebalanceTimeoutMs": 0}, NONE),
        ({"topics": []}, NONE),
        ({"topics": [""]}, NONE),
    ],
    ids=str,
)
def test_invalid_heartbeats_fail_as_in_kafka(group: Members, changes: Message, code: int | None) -> None:
    fields: dict[str, Any] = {"topics": ["t"], **changes}
    answer = group.beat(fields.pop("MemberId", "m"), fields.pop("epoch", 0), **fields)
    assert code is None or answer["ErrorCode"] == code


@pytest.mark.parametrize("member_id", ["", "mine"])
def test_version_0_gives_members_an_id(group: Members, topics: list[Topic], member_id: str) -> None:
    message = {
        "GroupId": group.group,
        "MemberId": member_id,
        "MemberEpoch": 0,
        "RebalanceTimeoutMs": 1000,
        "SubscribedTopicNames": [topics[0].name],
        "TopicPartitions": [],
    }
    for answer in group.pair.call("ConsumerGroupHeartbeat", 0, message):
        assert answer["ErrorCode"] == NONE
        assert answer["MemberId"] == member_id if member_id else len(answer["MemberId"]) == 22


def test_wrong_epochs_are_fenced(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    epoch = group.beat("a", topics=[name])["MemberEpoch"]
    assert group.beat("a", epoch + 1)["ErrorCode"] == FENCED_EPOCH
    assert group.beat("a", epoch - 1, owned={})["ErrorCode"] in (NONE, FENCED_EPOCH)
    group.beat("b", topics=[name])
    group.beat("a")
    group.beat("a")
    newest = group.epochs["a"]
    assert newest > epoch
    assert group.beat("a", epoch, owned={name: group.owned["a"][name]})["ErrorCode"] == NONE
    assert group.beat("a", epoch, owned={name: [0, 1, 2, 3]})["ErrorCode"] == FENCED_EPOCH
    assert group.beat("a", epoch, owned=None)["ErrorCode"] == FENCED_EPOCH
    assert group.beat("nobody", newest)["ErrorCode"] == UNKNOWN_MEMBER
    assert group.beat("a", 0, topics=[name])["ErrorCode"] == NONE
    assert group.beat("nobody", LEAVE)["ErrorCode"] == UNKNOWN_MEMBER
    group.describe()


def test_full_heartbeats_are_answered_with_the_assignment(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    group.beat("a", topics=[name])
    assert group.beat("a")["Assignment"] is None
    assert group.beat("a", topics=[name], RebalanceTimeoutMs=30_000)["Assignment"] is not None


def test_static_members_leave_for_a_while(group: Members, topics: list[Topic]) -> None:
    name = topics[0].name
    group.beat("a", topics=[name], InstanceId="one")
    assert group.beat("c", topics=[name], InstanceId="one")["ErrorCode"] == UNRELEASED_INSTANCE
    assert group.beat("c", 1, InstanceId="one")["ErrorCode"] == FENCED
    assert group.beat("a", 1, InstanceId="two")["ErrorCode"] == UNKNOWN_MEMBER
    assert group.beat("c", LEAVE_STATIC, InstanceId="one")["ErrorCode"] == FENCED
    assert group.beat("a", LEAVE_STATIC, InstanceId="one")["ErrorCode"] == NONE
    group.describe()
    assert group.beat("a", InstanceId="one")["ErrorCode"] == FENCED_EPOCH
    assert group.beat("d", topics=[name], InstanceId="one")["ErrorCode"] == NONE
    assert group.owned["d"] == {name: [0, 1, 2, 3]}
    group.describe()
    assert group.beat("a", InstanceId="one")["ErrorCode"] == FENCED
    assert group.beat("d", LEAVE, InstanceId="one")["ErrorCode"] == NONE
    assert group.describe()["GroupState"] == "Empty"


@pytest.mark.parametrize("regex", ["(", "[", "*", "a{2,1}", "\\", "(?!a)", "a**", "\\1", "x{1001}"])
def test_invalid_regular_expressions_are_refused(group: Members, regex: str) -> None:
    assert group.beat("a", regex=regex)["ErrorCode"] == BAD_REGEX


def test_regular_expressions_subscribe_to_topics(group: Members, topics: list[Topic]) -> None:
    names = [topic.name for topic in topics]
    group.beat("a", regex=f"({'|'.join(names)})")
    _beat_until_assigned(group)
    assert set(group.owned["a"]) == set(names)
    group.describe()
    group.beat("a", topics=[names[0]], regex="")
    group.beat("a")
    assert set(group.owned["a"]) == {names[0]}
    group.describe()


def _beat_until_assigned(group: Members) -> None:
    """Wait until both brokers have resolved the expression: their members have the same epoch then."""

    def epochs() -> set[int]:
        message = {"GroupIds": [group.group], "IncludeAuthorizedOperations": False}
        return {answer["Groups"][0]["GroupEpoch"] for answer in group.pair.call("ConsumerGroupDescribe", 1, message)}

    before = group.epochs["a"]
    until(lambda: len(found := epochs()) == 1 and before not in found, each_s=0.01)
    group.beat("a")
    group.beat("a")


def test_offsets_need_the_member_and_its_epoch(group: Members, topics: list[Topic]) -> None:
    topic = topics[0]
    epoch = group.beat("a", topics=[topic.name])["MemberEpoch"]
    for member_id, claimed in (
        ("a", epoch), ("a", epoch + 1), ("a", epoch - 1), ("a", -1), ("b", epoch), ("", -1), ("", epoch), ("a", 0),
    ):  # fmt: skip
        for version in (2, 8, 9, 10):
            same(
                group.pair.call(
                    "OffsetCommit",
                    version,
                    lambda side, claimed=claimed, member_id=member_id: committing(
                        group.group, {topic: [(0, 7, "")]}, side=side, generation=claimed, member_id=member_id
                    ),
                )
            )
        for version in (9, 10):
            answers = group.pair.call(
                "OffsetFetch",
                version,
                lambda side, claimed=claimed, member_id=member_id: fetching(
                    group.group,
                    {topic: [0, 1]},
                    side=side,
                    member_id=member_id if claimed >= 0 else None,
                    member_epoch=claimed,
                ),
            )
            same([_without_ids(answer) for answer in answers])
    deleting = {"GroupId": group.group, "Topics": [{"Name": topic.name, "Partitions": [{"PartitionIndex": 0}]}]}
    answer = group.classic("OffsetDelete", 0, deleting)
    assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == SUBSCRIBED
    assert group.classic("DeleteGroups", 2, {"GroupsNames": [group.group]})["Results"][0]["ErrorCode"] == NON_EMPTY
    group.classic("DescribeGroups", 5, {"Groups": [group.group]})
    group.classic("DescribeGroups", 6, {"Groups": [group.group]})
    group.beat("a", LEAVE)
    group.classic("OffsetDelete", 0, deleting)
    assert group.classic("DeleteGroups", 2, {"GroupsNames": [group.group]})["Results"][0]["ErrorCode"] == NONE
    assert group.describe()["ErrorCode"] == NOT_FOUND


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(one) for one in value]
    return (
        {key: _without_ids(of) for key, of in value.items() if key != "TopicId"} if isinstance(value, dict) else value
    )


def test_groups_are_listed_with_their_type(group: Members, topics: list[Topic]) -> None:
    group.beat("a", topics=[topics[0].name])
    for version, types in ((4, []), (5, []), (5, ["consumer"]), (5, ["CLASSIC"]), (5, ["other"])):
        for states in ([], ["Stable"], ["assigning"], ["Empty"]):
            answers = group.pair.call("ListGroups", version, {"StatesFilter": states, "TypesFilter": types})
            for answer in answers:
                answer["Groups"] = [one for one in answer["Groups"] if one["GroupId"] == group.group]
            same(answers)


def test_groups_without_the_feature_are_refused(pair: Pair, group: Members, topics: list[Topic]) -> None:
    levels = [(0, SAFE_DOWNGRADE), (1, UPGRADE)]
    for level, kind in levels:
        update = {"Feature": "group.version", "MaxVersionLevel": level, "UpgradeType": kind}
        changed = pair.call("UpdateFeatures", 1, {"timeoutMs": 5000, "FeatureUpdates": [update]})
        assert [answer["ErrorCode"] for answer in changed] == [NONE, NONE]
        wanted = UNSUPPORTED_VERSION if level == 0 else NONE
        until(lambda wanted=wanted: _codes(pair, group, topics) == [wanted] * 2, each_s=0.01)  # type: ignore[misc]
    answer = pair.call("ConsumerGroupDescribe", 1, {"GroupIds": [""]})
    assert [one["Groups"][0]["ErrorCode"] for one in answer] == [INVALID_GROUP] * 2


def _codes(pair: Pair, group: Members, topics: list[Topic]) -> list[int]:
    message = {
        "GroupId": group.group,
        "MemberId": "m",
        "MemberEpoch": 0,
        "RebalanceTimeoutMs": 1000,
        "SubscribedTopicNames": [topics[0].name],
        "TopicPartitions": [],
    }
    return [answer["ErrorCode"] for answer in pair.call("ConsumerGroupHeartbeat", 1, message)]
