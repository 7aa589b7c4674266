"""FindCoordinator, OffsetCommit, OffsetFetch and OffsetDelete in every version, with valid and invalid requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from compat.oracle.conftest import Pair, Topic
from compat.oracle.groups import (
    FENCED,
    ILLEGAL_GENERATION,
    METADATA_TOO_LARGE,
    NON_EMPTY,
    NONE,
    NOT_FOUND,
    REBALANCING,
    SUBSCRIBED,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    NewGroup,
    NewSeat,
    Seat,
    alike,
    committing,
    fetching,
    offsets_of,
    subscription,
)
from compat.oracle.schema import Message

COMMITS, FETCHES = range(2, 11), range(1, 11)


@pytest.fixture(scope="module")
def topic(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    return pair.create(new_topic_name("committed"), partitions=4)


def codes(response: Message) -> list[int]:
    """The error codes of an OffsetCommit or OffsetDelete response, in the order of partitions."""
    found = {part["PartitionIndex"]: part["ErrorCode"] for each in response["Topics"] for part in each["Partitions"]}
    return [found[index] for index in sorted(found)]


def commit(
    pair: Pair,
    group: str,
    topics: Mapping[str | Topic, Sequence[tuple[int, int, str | None]]],
    *,
    version: int = 9,
    **more: int,
) -> Message:
    """Commit like a simple consumer, without a generation; returns Kafka's answer, which the broker's equals."""
    return alike(pair.call("OffsetCommit", version, lambda side: committing(group, topics, side=side, **more)))


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_found(pair: Pair, new_group: NewGroup, version: int) -> None:
    group = new_group("found")
    keys = [group, "other", ""] if version >= 4 else [group]
    answers = pair.call("FindCoordinator", version, {"Key": group, "KeyType": 0, "CoordinatorKeys": keys})
    answer = alike(answers)
    for side, each in enumerate(answers):
        places = each["Coordinators"] if version >= 4 else [each]
        ports = {place["Port"] for place in places if place["ErrorCode"] == NONE}
        assert ports == {int(pair.addresses[side].rpartition(":")[2])}
    assert answer.get("ErrorCode", NONE) == NONE


@pytest.mark.parametrize(
    ("version", "key_type"), [(0, 0), *((version, kind) for version in range(1, 7) for kind in (0, 2, 3, 99, -1))]
)
def test_invalid_coordinator_keys_fail_as_in_kafka(pair: Pair, version: int, key_type: int) -> None:
    alike(pair.call("FindCoordinator", version, {"Key": "", "KeyType": key_type, "CoordinatorKeys": ["", "a"]}))
    alike(pair.call("FindCoordinator", version, {"Key": "", "KeyType": key_type, "CoordinatorKeys": []}))


@pytest.mark.parametrize("number", ["-1", "0", "2147483648", "x"])
@pytest.mark.parametrize("group", ["", " ", "g", "g:h"])
def test_the_state_of_a_share_group_is_asked_for_as_in_kafka(pair: Pair, group: str, number: str) -> None:
    """Whether share groups are switched on or not. Kafka then creates their topic, which kbroker does not."""
    for topic_id in ("AAAAAAAAAAAAAAAAAAAABw", "AAAAAAAAAAAAAAAAAAAABwA", "x"):
        key = f"{group}:{topic_id}:{number}"
        answers = pair.call("FindCoordinator", 6, {"KeyType": 2, "CoordinatorKeys": [key]})
        codes = [answer["Coordinators"][0]["ErrorCode"] for answer in answers]
        assert codes[1] in {codes[0], 15}, (key, codes)
        assert (codes[0] == 42) == (codes[1] == 42), (key, codes)


@pytest.mark.parametrize("written", COMMITS)
def test_offsets_of_a_simple_consumer_are_fetched_in_every_version(
    pair: Pair, new_group: NewGroup, topic: Topic, written: int
) -> None:
    group = new_group("simple")
    reported = {0: (7, "mine"), 1: (0, ""), 3: (2**62, "\u00fcml\u00e4ut")}
    wanted = {topic: [(index, offset, metadata) for index, (offset, metadata) in reported.items()]}
    assert codes(commit(pair, group, wanted, version=written, leader_epoch=3)) == [NONE] * 3
    for version in FETCHES:
        answers = pair.call("OffsetFetch", version, lambda side: fetching(group, {topic: [0, 1, 2, 3, 9]}, side=side))
        assert offsets_of(alike(answers)) == reported | {2: (-1, ""), 9: (-1, "")}
        if version >= 2:
            everything = alike(pair.call("OffsetFetch", version, fetching(group, None)))
            assert offsets_of(everything) == reported
        alike(pair.call("OffsetFetch", version, fetching(group, {})))


@pytest.mark.parametrize("version", COMMITS)
@pytest.mark.parametrize("offset", [-1, -2, 0, 2**63 - 1])
def test_any_offset_is_stored(pair: Pair, new_group: NewGroup, topic: Topic, version: int, offset: int) -> None:
    group = new_group("odd")
    commit(pair, group, {topic: [(0, offset, None)]}, version=version)
    for fetched in (1, 7, 9):
        alike(pair.call("OffsetFetch", fetched, fetching(group, {topic: [0]})))


@pytest.mark.parametrize("version", COMMITS)
def test_invalid_commits_fail_as_in_kafka(pair: Pair, new_group: NewGroup, topic: Topic, version: int) -> None:
    group, unknown = new_group("wrong"), UNKNOWN_TOPIC if version < 10 else UNKNOWN_TOPIC_ID
    mixed = {topic: [(0, 1, "x" * 4096), (1, 2, "x" * 4097), (2, 3, None), (4, 1, ""), (-1, 1, "")]}
    answer = commit(pair, group, {**mixed, "never-created": [(0, 1, "")]}, version=version)
    found = {
        part["PartitionIndex"]: part["ErrorCode"]
        for each in answer["Topics"]
        if each.get("Name") == topic.name or each.get("TopicId") == topic.ids[0]
        for part in each["Partitions"]
    }
    assert found == {0: NONE, 1: METADATA_TOO_LARGE, 2: NONE, 4: UNKNOWN_TOPIC, -1: UNKNOWN_TOPIC}
    fetched = alike(pair.call("OffsetFetch", 7, fetching(group, {topic: [0, 1, 2]})))
    assert offsets_of(fetched) == {0: (1, "x" * 4096), 1: (-1, ""), 2: (3, "")}
    assert codes(commit(pair, group, {"never-created": [(0, 1, "")]}, version=version)) == [unknown]
    assert codes(commit(pair, "", {topic: [(0, 1, "")]}, version=version)) == [NONE]
    assert codes(commit(pair, "", {"never-created": [(0, 1, "")]}, version=version)) == [unknown]
    commit(pair, group, {"": [(0, 1, "")], "../x": [(0, 1, "")]}, version=version)
    commit(pair, group, {}, version=version)
    commit(pair, "", {}, version=version)
    commit(pair, group, {topic: []}, version=version)


def test_metadata_is_counted_as_kafka_counts_it(pair: Pair, new_group: NewGroup, topic: Topic) -> None:
    group = new_group("wide")
    for count in (1365, 1366, 2048, 2049, 4096, 4097):
        commit(pair, group, {topic: [(0, count, "\u00fc" * count), (1, count, "\u20ac" * count)]})


@pytest.mark.parametrize("version", COMMITS)
@pytest.mark.parametrize(
    "claim", [(0, ""), (5, ""), (5, "nobody"), (-1, "nobody"), (0, "nobody"), (-5, ""), (-5, "x")], ids=str
)
def test_members_of_an_unknown_group_cannot_commit(
    pair: Pair, new_group: NewGroup, topic: Topic, version: int, claim: tuple[int, str]
) -> None:
    group, (generation, member_id) = new_group("nowhere"), claim
    alike(
        pair.call(
            "OffsetCommit",
            version,
            lambda side: committing(
                group, {topic: [(0, 1, "")]}, side=side, generation=generation, member_id=member_id
            ),
        )
    )
    alike(pair.call("OffsetFetch", 9, fetching(group, {topic: [0]})))


def stable(seat: NewSeat, group: str, *topics: str, instance: str | None = None) -> Seat:
    """The only member of a group, in its second generation."""
    member: Seat = seat(group, instance=instance)
    protocols = [("range", subscription(*topics))]
    for _ in range(2):
        alike(member.join(protocols=protocols))
        alike(member.sync(assignments={member: b"all"}))
    return member


@pytest.mark.parametrize("version", COMMITS)
def test_a_member_commits_only_with_its_generation(
    pair: Pair, new_group: NewGroup, seat: NewSeat, topic: Topic, version: int
) -> None:
    member = stable(seat, new_group("member"), topic.name)
    stranger = seat(member.group, "bob")
    for generation, member_id, instance, code in (
        (2, None, None, NONE),
        (1, None, None, ILLEGAL_GENERATION),
        (3, None, None, ILLEGAL_GENERATION),
        (-1, None, None, None),
        (2, "nobody", None, UNKNOWN_MEMBER),
        (9, "nobody", None, UNKNOWN_MEMBER),
        (2, "", None, UNKNOWN_MEMBER),
        (-1, "", None, None),
        (-1, "nobody", None, UNKNOWN_MEMBER),
        (2, None, "nobody", None),
        (1, None, "nobody", None),
    ):
        answers = stranger.call(
            "OffsetCommit",
            version,
            lambda side, generation=generation, member_id=member_id, instance=instance: committing(
                member.group,
                {topic: [(0, 5, "five"), (1, 6, "x" * 5000)]},
                side=side,
                generation=generation,
                member_id=member.ids[side] if member_id is None else member_id,
                instance=instance,
            ),
        )
        found = codes(alike(answers))
        if code is not None:
            assert found == ([NONE, METADATA_TOO_LARGE] if code == NONE else [code, code])
    assert offsets_of(alike(pair.call("OffsetFetch", 7, fetching(member.group, None)))) == {0: (5, "five")}


def test_commits_during_a_rebalance_are_answered_as_in_kafka(new_group: NewGroup, seat: NewSeat, topic: Topic) -> None:
    member = stable(seat, new_group("between"), topic.name)

    def commits() -> int:
        answers = member.call(
            "OffsetCommit",
            8,
            lambda side: committing(
                member.group, {topic: [(0, 5, "")]}, generation=member.generation, member_id=member.ids[side]
            ),
        )
        return codes(alike(answers))[0]

    newcomer = seat(member.group, "bob")
    newcomer.send_join(protocols=[("range", subscription(topic.name))])
    newcomer.await_members(2)
    assert commits() == NONE
    member.send_join(protocols=[("range", subscription(topic.name))])
    alike(member.joined())
    alike(newcomer.joined())
    assert commits() == REBALANCING
    alike(member.sync(assignments={member: b"", newcomer: b""}))
    assert commits() == NONE


def test_a_fenced_instance_cannot_commit(new_group: NewGroup, seat: NewSeat, topic: Topic) -> None:
    member = stable(seat, new_group("fenced"), topic.name, instance="one")
    successor = seat(member.group, instance="one")
    alike(successor.join(protocols=[("range", subscription(topic.name))]))
    for generation in (2, 1, -1):
        answers = member.call(
            "OffsetCommit",
            9,
            lambda side, generation=generation: committing(
                member.group,
                {topic: [(0, 5, "")]},
                generation=generation,
                member_id=member.ids[side],
                instance="one",
            ),
        )
        assert codes(alike(answers)) == [FENCED]


@pytest.mark.parametrize("version", range(1, 11))
def test_missing_offsets_are_fetched_as_in_kafka(pair: Pair, new_group: NewGroup, topic: Topic, version: int) -> None:
    group = new_group("empty")
    for message in (
        fetching(group, {topic: [0, 5]}),
        fetching(group, None if version >= 2 else {}),
        fetching(group, {"never-created": [0]}),
        fetching("", {topic: [0]}),
        fetching("", None if version >= 2 else {}),
        fetching(group, {topic: [0, 1]}),
        fetching(group, {topic: []}),
        fetching(group, {topic: [0]}, stable=True),
        fetching([group, "", "never-seen"], {topic: [0]}),
        fetching([group, "never-seen"], None if version >= 2 else {}),
        fetching(group, {topic: [0]}, member_id="nobody", member_epoch=3),
        fetching(group, {topic: [0]}, member_id="", member_epoch=-1),
        fetching(group, {topic: [0]}, member_id="nobody", member_epoch=-1),
        fetching(group, {"": [0]}),
    ):
        for each in message["Groups"] if version >= 10 else []:
            assert each["Topics"] is None or all("TopicId" in part for part in each["Topics"])
        alike(pair.call("OffsetFetch", version, lambda side, message=message: _on_side(message, topic, side)))


def _on_side(message: Message, topic: Topic, side: int) -> Message:
    """The same message with the topic's id on that side."""
    groups = [
        {
            **group,
            "Topics": group["Topics"]
            and [
                {**each, "TopicId": topic.ids[side] if each["TopicId"] in topic.ids else each["TopicId"]}
                for each in group["Topics"]
            ],
        }
        for group in message["Groups"]
    ]
    return {**message, "Groups": groups}


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_of_many_groups_are_fetched_at_once(
    pair: Pair, new_group: NewGroup, topic: Topic, version: int
) -> None:
    groups = [new_group("many") for _ in range(3)]
    for number, group in enumerate(groups):
        commit(pair, group, {topic: [(number, 10 * number, f"m{number}")]})
    for asked in ({topic: [0, 1, 2]}, None):
        answer = alike(pair.call("OffsetFetch", version, lambda side, asked=asked: fetching(groups, asked, side=side)))
        found = {
            (each["GroupId"], part["PartitionIndex"]): part["CommittedOffset"]
            for each in answer["Groups"]
            for part in each["Topics"][0]["Partitions"]
        }
        for number, group in enumerate(groups):
            assert found[group, number] == 10 * number


@pytest.mark.parametrize("version", [9, 10])
def test_a_member_fetches_with_its_generation_as_in_kafka(
    pair: Pair, new_group: NewGroup, seat: NewSeat, topic: Topic, version: int
) -> None:
    member = stable(seat, new_group("member"), topic.name)
    commit_as = lambda side: committing(  # noqa: E731
        member.group, {topic: [(0, 5, "")]}, generation=2, member_id=member.ids[side]
    )
    alike(member.call("OffsetCommit", 8, commit_as))
    for epoch, member_id in ((2, None), (1, None), (3, None), (-1, None), (2, "nobody"), (2, "")):
        alike(
            pair.call(
                "OffsetFetch",
                version,
                lambda side, epoch=epoch, member_id=member_id: fetching(
                    member.group,
                    {topic: [0]},
                    side=side,
                    member_id=member.ids[side] if member_id is None else member_id,
                    member_epoch=epoch,
                ),
            )
        )


def deleting(group: str, **topics: Sequence[int]) -> Message:
    return {
        "GroupId": group,
        "Topics": [
            {"Name": name, "Partitions": [{"PartitionIndex": index} for index in indexes]}
            for name, indexes in topics.items()
        ],
    }


def test_offsets_of_subscribed_topics_are_not_deleted(
    pair: Pair, new_group: NewGroup, seat: NewSeat, topic: Topic, new_topic_name: Callable[[str], str]
) -> None:
    other = pair.create(new_topic_name("other"))
    group = new_group("deleted")
    commit(pair, group, {topic: [(0, 1, ""), (1, 2, ""), (2, 3, "")], other: [(0, 4, "")]})
    deleted = alike(pair.call("OffsetDelete", 0, deleting(group, **{topic.name: [1, 3, 9], "never-created": [0]})))
    assert deleted["ErrorCode"] == NONE
    assert offsets_of(alike(pair.call("OffsetFetch", 5, fetching(group, {topic: [0, 1, 2]})))) == {
        0: (1, ""),
        1: (-1, ""),
        2: (3, ""),
    }
    member = stable(seat, group, topic.name)
    refused = alike(pair.call("OffsetDelete", 0, deleting(group, **{topic.name: [0], other.name: [0]})))
    found = {each["Name"]: [part["ErrorCode"] for part in each["Partitions"]] for each in refused["Topics"]}
    assert found == {topic.name: [SUBSCRIBED], other.name: [NONE]}
    alike(pair.call("OffsetFetch", 7, fetching(group, None)))
    alike(member.leave())
    assert codes(alike(pair.call("OffsetDelete", 0, deleting(group, **{topic.name: [0, 2]})))) == [NONE, NONE]
    for message in (
        deleting(group),
        deleting(group, **{topic.name: []}),
        deleting("never-seen", **{topic.name: [0]}),
        deleting("", **{topic.name: [0]}),
        deleting("never-seen", **{"never-created": [0]}),
        deleting("never-seen"),
    ):
        alike(pair.call("OffsetDelete", 0, message))
    assert alike(pair.call("OffsetDelete", 0, deleting("never-seen")))["ErrorCode"] == NOT_FOUND


def test_offsets_of_a_non_consumer_group_with_members_stay(
    pair: Pair, new_group: NewGroup, seat: NewSeat, topic: Topic
) -> None:
    group = new_group("connect")
    commit(pair, group, {topic: [(0, 1, "")]})
    member = seat(group)
    alike(member.join(kind="connect", protocols=[("default", b"\x00 anything \xff")]))
    alike(member.sync(kind="connect", protocol="default", assignments={member: b"x"}))
    assert alike(pair.call("OffsetDelete", 0, deleting(group, **{topic.name: [0]})))["ErrorCode"] == NON_EMPTY


def test_offsets_are_deleted_with_their_topic(
    pair: Pair, new_group: NewGroup, new_topic_name: Callable[[str], str]
) -> None:
    topic, group = pair.create(new_topic_name("going")), new_group("going")
    commit(pair, group, {topic: [(0, 1, "")]})
    alike(pair.call("DeleteTopics", 4, {"TopicNames": [topic.name], "TimeoutMs": 10_000}))
    gone: set[int] = set()
    for _ in range(500):
        answers = pair.call("OffsetFetch", 7, fetching(group, None))
        gone |= {side for side, answer in enumerate(answers) if not answer["Topics"]}
        if gone == {0, 1}:
            break
    assert gone == {0, 1}
