"""A group of KIP-848 on both brokers.

Members, topics and groups have the same names on both brokers; topic ids differ and are compared by topic name. The
assignment interval is 0, so that each heartbeat sees the newest assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pytest

from compat.oracle.conftest import Pair, Topic, same
from compat.oracle.groups import NONE, NewGroup
from compat.oracle.schema import Message

GROUP_RESOURCE: Final = 32
SAFE_DOWNGRADE, UPGRADE = 2, 1
FENCED_EPOCH, UNRELEASED_INSTANCE, UNSUPPORTED_ASSIGNOR, BAD_REGEX = 110, 111, 112, 128
UNSUPPORTED_VERSION: Final = 35
LEAVE, LEAVE_STATIC = -1, -2
UNCHANGED: Final = object()


class Members:
    """A group on both brokers, and the partitions that its members report as theirs."""

    def __init__(self, pair: Pair, group: str, topics: Iterable[Topic]) -> None:
        self.pair, self.group, self.topics = pair, group, {topic.name: topic for topic in topics}
        self.owned: dict[str, dict[str, list[int]]] = {}
        self.epochs: dict[str, int] = {}

    def beat(
        self,
        member_id: str,
        epoch: int | None = None,
        *,
        topics: Iterable[str] | None = None,
        regex: str | None = None,
        owned: Any = UNCHANGED,
        version: int = 1,
        **more: Any,
    ) -> Message:
        """One heartbeat; joins with the topics if the epoch is 0. Returns Kafka's answer, which the broker's equals."""
        epoch = self.epochs.get(member_id, 0) if epoch is None else epoch
        joins = epoch == 0
        held = {} if joins else self.owned.get(member_id, {})
        reported = held if owned is UNCHANGED else owned
        message = {
            "GroupId": self.group,
            "MemberId": member_id,
            "MemberEpoch": epoch,
            "RebalanceTimeoutMs": 30_000 if joins else -1,
            "SubscribedTopicNames": list(topics) if topics is not None else None,
            "SubscribedTopicRegex": regex,
            **more,
        }
        answers = self.pair.call(
            "ConsumerGroupHeartbeat", version, lambda side: message | {"TopicPartitions": self._places(reported, side)}
        )
        answer = same([self._named(answer, side) for side, answer in enumerate(answers)])
        if answer["ErrorCode"] == NONE and epoch >= 0:
            self.epochs[member_id] = answer["MemberEpoch"]
            if answer["Assignment"] is not None:
                self.owned[member_id] = {
                    one["Topic"]: one["Partitions"] for one in answer["Assignment"]["TopicPartitions"]
                }
        return answer

    def _places(self, owned: Mapping[str, Iterable[int]] | None, side: int) -> list[Message] | None:
        if owned is None:
            return None
        return [{"TopicId": self.topics[name].ids[side], "Partitions": list(of)} for name, of in owned.items()]

    def _named(self, value: Any, side: int) -> Any:
        """The message with topic names in the place of ids, and partitions in order."""
        names = {topic.ids[side]: name for name, topic in self.topics.items()}
        if isinstance(value, list):
            return [self._named(one, side) for one in value]
        if not isinstance(value, dict):
            return value
        found = {key: self._named(inner, side) for key, inner in value.items() if key != "TopicId"}
        if "TopicId" in value:
            found["Topic"] = names.get(value["TopicId"], "unknown")
            found["Partitions"] = sorted(value["Partitions"])
        return found

    def describe(self, version: int = 1) -> Message:
        """The group on both brokers, as one message."""
        message = {"GroupIds": [self.group], "IncludeAuthorizedOperations": True}
        answers = self.pair.call("ConsumerGroupDescribe", version, message)
        described = same([self._sorted(self._named(answer, side)) for side, answer in enumerate(answers)])
        (group,) = described["Groups"]
        return dict(group)

    def _sorted(self, answer: Message) -> Message:
        for group in answer["Groups"]:
            group["Members"].sort(key=lambda member: member["MemberId"])
            for member in group["Members"]:
                member["SubscribedTopicNames"].sort()
                member["ClientHost"] = member["ClientHost"] == "/127.0.0.1"
        return answer

    def classic(self, api: str, version: int, message: Message) -> Message:
        answers = self.pair.call(api, version, message)
        return same(answers)


@pytest.fixture(scope="module", autouse=True)
def with_group_version(pair: Pair) -> None:
    """An external broker may have the feature disabled."""
    update = {"Feature": "group.version", "MaxVersionLevel": 1, "UpgradeType": UPGRADE}
    pair.call("UpdateFeatures", 1, {"timeoutMs": 5000, "FeatureUpdates": [update]})


@pytest.fixture(scope="module")
def topics(pair: Pair, new_topic_name: Callable[[str], str]) -> list[Topic]:
    return [pair.create(new_topic_name(f"assigned-{count}"), partitions=count) for count in (4, 3)]


@pytest.fixture
def group(pair: Pair, new_group: NewGroup, topics: list[Topic]) -> Members:
    name = new_group("modern")
    configs = [{"Name": "consumer.assignment.interval.ms", "ConfigOperation": 0, "Value": "0"}]
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": name, "Configs": configs}
    changed = pair.call("IncrementalAlterConfigs", 1, {"Resources": [resource]})
    assert [answer["Responses"][0]["ErrorCode"] for answer in changed] == [NONE, NONE]
    return Members(pair, name, topics)
