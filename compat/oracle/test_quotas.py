"""Client quotas: the same requests to both brokers, and what happens to clients above a quota."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytest

from compat.oracle.batches import batch_of
from compat.oracle.conftest import Pair, same
from compat.oracle.raw import RawConnection, Reply
from compat.oracle.schema import Message, decode_response, encode_request
from compat.waiting import until

Entity = tuple[tuple[str, str | None], ...]
Ops = tuple[tuple[str, float | None], ...]
Components = tuple[tuple[str, int, str | None], ...]

PRODUCED, FETCHED, TIME, MUTATIONS, CONNECTIONS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
THROTTLING_QUOTA_EXCEEDED = 89


def alteration(*entries: tuple[Entity, Ops], validate: bool = False) -> Message:
    return {
        "Entries": [
            {
                "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in entity],
                "Ops": [{"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in ops],
            }
            for entity, ops in entries
        ],
        "ValidateOnly": validate,
    }


def filtering(components: Components, *, strict: bool = False) -> Message:
    return {
        "Components": [{"EntityType": kind, "MatchType": how, "Match": name} for kind, how, name in components],
        "Strict": strict,
    }


def listed(answers: list[Message]) -> list[Message]:
    """Entities and quotas in one order: Kafka keeps them in hash tables."""
    for answer in answers:
        for entry in answer["Entries"] or ():
            entry.get("Values", []).sort(key=repr)
        if answer["Entries"]:
            answer["Entries"].sort(key=repr)
    return answers


def texts(answers: list[Message]) -> list[list[str | None]]:
    return [[entry["ErrorMessage"] for entry in answer["Entries"]] for answer in answers]


@pytest.fixture(autouse=True)
def no_quotas_remain(pair: Pair) -> Iterator[None]:
    """Remove all quotas from both brokers, also for the tests of other files."""
    yield
    for side in (0, 1):
        found = pair.call("DescribeClientQuotas", 1, filtering(()))[side]["Entries"]
        entries = [
            (
                tuple((part["EntityType"], part["EntityName"]) for part in entry["Entity"]),
                tuple((value["Key"], None) for value in entry["Values"]),
            )
            for entry in found
        ]
        pair.call("AlterClientQuotas", 1, alteration(*entries))
    until(lambda: not any(answer["Entries"] for answer in pair.call("DescribeClientQuotas", 1, filtering(()))))


def limited(pair: Pair, *entries: tuple[Entity, Ops]) -> None:
    """Set quotas on both brokers and wait until they are in effect."""
    same(listed(pair.call("AlterClientQuotas", 1, alteration(*entries))))
    wanted = {repr(sorted(entity, key=lambda part: part[0])) for entity, _ in entries}

    def are_known() -> bool:
        answers = pair.call("DescribeClientQuotas", 1, filtering(()))
        return all(
            wanted
            <= {
                repr(sorted(((part["EntityType"], part["EntityName"]) for part in entry["Entity"]), key=lambda p: p[0]))
                for entry in answer["Entries"]
            }
            for answer in answers
        )

    until(are_known)


ALTERATIONS: dict[str, list[tuple[Entity, Ops]]] = {
    "all quotas of a pair": [
        ((("user", "a"), ("client-id", "c")), ((PRODUCED, 1.0), (FETCHED, 2.0), (TIME, 0.5), (MUTATIONS, 3.0)))
    ],
    "a pair of defaults": [((("user", None), ("client-id", None)), ((PRODUCED, 1e9),))],
    "an address": [((("ip", "10.1.2.3"),), ((CONNECTIONS, 1.0),))],
    "localhost": [((("ip", "localhost"),), ((CONNECTIONS, 10_000.0),))],
    "an infinite percentage": [((("user", "b"),), ((TIME, math.inf),))],
    "the same user twice in an entity": [((("user", "a"), ("user", "b2")), ((PRODUCED, 1.0),))],
    "nothing": [],
    "no quota": [((("client-id", "z"),), ())],
    "an absent quota removed": [((("client-id", "z"),), ((PRODUCED, None),))],
    "an entity twice": [((("user", "a"),), ((PRODUCED, 1.0),)), ((("user", "a"),), ((PRODUCED, 2.0),))],
    "a quota twice": [((("user", "b"),), ((PRODUCED, 1.0), (PRODUCED, 2.0)))],
    "an unknown quota": [((("user", "b"),), (("nope", 1.0),))],
    "an unknown quota removed": [((("user", "b"),), (("nope", None),))],
    "a fraction of a byte": [((("user", "b"),), ((PRODUCED, 1.5),))],
    "a negative rate": [((("user", "b"),), ((PRODUCED, -1.0),))],
    "nothing per second": [((("user", "b"),), ((MUTATIONS, 0.0),))],
    "too many bytes": [((("user", "b"),), ((PRODUCED, 1e19),))],
    "too many connections": [((("ip", None),), ((CONNECTIONS, 2.0**31),))],
    "an empty user": [((("user", ""),), ((PRODUCED, 1.0),))],
    "an empty entity": [((), ((PRODUCED, 1.0),))],
    "an unknown type": [((("group", "g"),), ((PRODUCED, 1.0),))],
    "no address": [((("ip", "no host"),), ((CONNECTIONS, 1.0),))],
    "a quota of users for an address": [((("ip", "10.1.2.3"),), ((PRODUCED, 1.0),))],
    "a quota of addresses for a user": [((("user", "a"),), ((CONNECTIONS, 1.0),))],
    "one good and one bad": [((("user", "c"),), ((PRODUCED, 1.0),)), ((("user", "d"),), (("nope", 1.0),))],
}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("entries", ALTERATIONS.values(), ids=ALTERATIONS)
def test_an_alteration_is_answered_and_has_effect_as_in_kafka(
    pair: Pair, entries: list[tuple[Entity, Ops]], version: int
) -> None:
    answers = listed(pair.call("AlterClientQuotas", version, alteration(*entries)))
    same(answers)
    assert texts(answers)[0] == texts(answers)[1]
    until(lambda: _agree(pair, ()))


def _agree(pair: Pair, components: Components) -> bool:
    answers = listed(pair.call("DescribeClientQuotas", 1, filtering(components)))
    return answers[0] == answers[1]


def test_a_validated_alteration_changes_nothing(pair: Pair) -> None:
    entries = [*ALTERATIONS["all quotas of a pair"], *ALTERATIONS["an empty user"]]
    same(listed(pair.call("AlterClientQuotas", 1, alteration(*entries, validate=True))))
    assert not any(answer["Entries"] for answer in pair.call("DescribeClientQuotas", 1, filtering(())))


FILTERS: list[Components] = [
    (),
    (("user", 0, "a"),),
    (("user", 0, None),),
    (("user", 1, None),),
    (("user", 1, "a"),),
    (("user", 2, None),),
    (("user", 2, "a"),),
    (("user", 3, None),),
    (("", 2, None),),
    (("group", 2, None),),
    (("user", 2, None), ("user", 2, None)),
    (("user", 2, None), ("client-id", 1, None)),
    (("user", 0, "a"), ("client-id", 2, None)),
    (("ip", 2, None),),
    (("ip", 2, None), ("user", 2, None)),
]


def test_filters_match_the_same_entities(pair: Pair) -> None:
    entities: list[Entity] = [
        (("user", "a"),),
        (("user", None),),
        (("client-id", "c"),),
        (("user", "a"), ("client-id", "c")),
        (("user", "a"), ("client-id", None)),
    ]
    limited(
        pair,
        *((entity, ((PRODUCED, 1e9 + at), (TIME, 1e6))) for at, entity in enumerate(entities)),
        ((("ip", "10.1.2.3"),), ((CONNECTIONS, 5.0),)),
    )
    for components in FILTERS:
        for strict in (False, True):
            for version in (0, 1):
                answers = listed(pair.call("DescribeClientQuotas", version, filtering(components, strict=strict)))
                assert answers[0] == answers[1], (components, strict)


def test_users_without_credentials_are_described_alike(pair: Pair) -> None:
    for users in (None, [], [{"Name": "x"}, {"Name": "y"}, {"Name": "y"}]):
        answers = pair.call("DescribeUserScramCredentials", 0, {"Users": users})
        for answer in answers:
            answer["Results"].sort(key=repr)
        same(answers)


def on_each(pair: Pair, act: Callable[[RawConnection, int], object]) -> list[object]:
    """What happens on a new connection to each broker."""
    found = []
    for side, connection in enumerate(pair.connect()):
        try:
            found.append(act(connection, side))
        finally:
            connection.close()
    return found


def call(connection: RawConnection, api: str, version: int, message: Message, client_id: str) -> Message:
    connection.send(encode_request(api, version, message, client_id=client_id))
    got = connection.answer(timeout_s=60)
    assert isinstance(got, Reply), got
    return decode_response(api, version, got.payload)


def producing(name: str, size: int, acks: int = 1) -> Message:
    partitions = [{"Index": 0, "Records": batch_of(bytes(size))}]
    return {"Acks": acks, "TimeoutMs": 10_000, "TopicData": [{"Name": name, "PartitionData": partitions}]}


def test_a_producer_above_its_quota_is_muted_for_the_same_time(
    pair: Pair, new_topic_name: Callable[[str], str]
) -> None:
    topic = pair.create(new_topic_name("quota"))
    limited(pair, ((("client-id", "fast"),), ((PRODUCED, 100_000.0),)))

    def produce(connection: RawConnection, _side: int) -> tuple[int, int, float]:
        first = call(connection, "Produce", 9, producing(topic.name, 900_000), "fast")["ThrottleTimeMs"]
        second = call(connection, "Produce", 9, producing(topic.name, 200_000), "fast")["ThrottleTimeMs"]
        began = time.monotonic()
        call(connection, "ListGroups", 4, {"StatesFilter": []}, "fast")
        return first, second, time.monotonic() - began

    for first, second, muted_s in on_each(pair, produce):  # type: ignore[misc]
        assert first == 0
        assert 800 < second < 1_100
        assert second / 1000 - 0.1 < muted_s < second / 1000 + 5


def test_a_consumer_above_its_quota_gets_an_empty_answer(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    topic = pair.create(new_topic_name("quota"))
    on_each(
        pair,
        lambda connection, _: [call(connection, "Produce", 9, producing(topic.name, 600_000), "x") for _ in range(2)],
    )
    limited(pair, ((("client-id", "reader"),), ((FETCHED, 100_000.0),)))

    def fetch(connection: RawConnection, side: int) -> list[tuple[bool, bool]]:
        found = []
        for offset in (0, 1):  # Kafka cuts the records at this size, kbroker between batches
            partitions = [{"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 650_000}]
            message = {
                "MaxWaitMs": 0,
                "MinBytes": 1,
                "MaxBytes": 1 << 20,
                "SessionEpoch": -1,
                "Topics": [{"TopicId": topic.ids[side], "Partitions": partitions}],
            }
            answer = call(connection, "Fetch", 13, message, "reader")
            found.append((bool(answer["Responses"]), answer["ThrottleTimeMs"] > 0))
        return found

    assert on_each(pair, fetch) == [[(True, False), (False, True)]] * 2


def test_mutations_above_the_quota_are_refused_or_throttled(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    limited(pair, ((("client-id", "admin"),), ((MUTATIONS, 2.0),)))

    def create(connection: RawConnection, version: int, partitions: int) -> tuple[int, int]:
        topic = {"Name": new_topic_name("quota"), "NumPartitions": partitions, "ReplicationFactor": 1}
        answer = call(connection, "CreateTopics", version, {"Topics": [topic], "timeoutMs": 10_000}, "admin")
        return answer["Topics"][0]["ErrorCode"], answer["ThrottleTimeMs"]

    def act(connection: RawConnection, _side: int) -> list[tuple[int, int]]:
        return [create(connection, 7, 24), create(connection, 7, 1), create(connection, 5, 3)]

    for first, refused, older in on_each(pair, act):  # type: ignore[misc]
        assert first == (0, 0)
        assert refused[0] == THROTTLING_QUOTA_EXCEEDED
        assert 400 < refused[1] <= 1_000
        assert older[0] == 0
        assert 800 < older[1] <= 1_500


def test_a_client_without_an_id_has_no_quota_of_client_ids(pair: Pair, new_topic_name: Callable[[str], str]) -> None:
    topic = pair.create(new_topic_name("quota"))
    limited(pair, ((("client-id", None),), ((PRODUCED, 1_000.0),)))
    found = on_each(
        pair,
        lambda connection, _: call(connection, "Produce", 9, producing(topic.name, 100_000), "")["ThrottleTimeMs"],
    )
    assert found == [0, 0]
