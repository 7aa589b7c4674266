"""Offsets committed in transactions: TxnOffsetCommit in every version, markers, unstable offsets, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from compat.brokers import KbrokerProcess
from compat.kafka import KafkaNode, libraries
from compat.oracle.conftest import Pair, Topic
from compat.oracle.groups import (
    NONE,
    NewGroup,
    NewSeat,
    alike,
    await_coordinator,
    committing,
    fetching,
    offsets_of,
)
from compat.oracle.raw import connected
from compat.oracle.schema import Message
from compat.waiting import until

CONCURRENT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 51, 14, 15, 16
UNSTABLE, ABORTABLE, INVALID_TXN_STATE = 88, 120, 48
VERSIONS, OLDER = range(6), range(5)


@pytest.fixture(scope="module")
def topic(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    return pair.create(new_topic_name("committed"), partitions=3)


class Transaction:
    """One transactional id on both brokers, with its producers."""

    def __init__(self, pair: Pair, name: str, group: str) -> None:
        self.pair, self.name, self.group = pair, name, group
        self.producers: list[tuple[int, int]] = []
        self.begin()

    def begin(self) -> None:
        """InitProducerId, which also ends what an earlier producer has begun."""
        request = {"TransactionalId": self.name, "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1}
        answers = [_retried(address, "InitProducerId", 4, request, self.name) for address in self.pair.addresses]
        assert [answer["ErrorCode"] for answer in answers] == [NONE, NONE]
        self.producers = [(answer["ProducerId"], answer["ProducerEpoch"]) for answer in answers]

    def of(self, side: int, **more: Any) -> Message:
        """The fields that name the producer."""
        producer_id, epoch = self.producers[side]
        return {"TransactionalId": self.name, "ProducerId": producer_id, "ProducerEpoch": epoch, **more}

    def add(self) -> list[int]:
        """AddOffsetsToTxn."""
        answers = [
            _retried(address, "AddOffsetsToTxn", 3, self.of(side, GroupId=self.group))
            for side, address in enumerate(self.pair.addresses)
        ]
        return [answer["ErrorCode"] for answer in answers]

    def commit(
        self,
        offsets: Mapping[str, Mapping[int, tuple[int, str | None]]],
        *,
        version: int = 4,
        epoch_step: int = 0,
        member: Callable[[int], Message] = lambda _: {},
    ) -> Message:
        """TxnOffsetCommit, answered alike; returns Kafka's answer."""
        topics = [
            {
                "Name": name,
                "Partitions": [
                    {"PartitionIndex": index, "CommittedOffset": offset, "CommittedMetadata": metadata}
                    for index, (offset, metadata) in partitions.items()
                ],
            }
            for name, partitions in offsets.items()
        ]

        def request(side: int) -> Message:
            mine = self.of(side, GroupId=self.group, GenerationId=-1, MemberId="", GroupInstanceId=None)
            mine["ProducerEpoch"] += epoch_step
            return {**mine, **member(side), "Topics": topics}

        return alike(self.pair.call("TxnOffsetCommit", version, request))

    def end(self, *, is_commit: bool, version: int = 3) -> None:
        """EndTxn, and wait until the markers are written. From version 5 on it gives the producer its next epoch."""
        for side, address in enumerate(self.pair.addresses):
            answer = _retried(address, "EndTxn", version, self.of(side, Committed=is_commit))
            assert answer["ErrorCode"] == NONE
            if version >= 5:
                self.producers[side] = answer["ProducerId"], answer["ProducerEpoch"]

            def is_complete(address: str = address) -> bool:
                with connected(address) as connection:
                    found = connection.call("DescribeTransactions", 0, {"TransactionalIds": [self.name]})
                return found["TransactionStates"][0]["TransactionState"].startswith("Complete")

            until(is_complete)


def _retried(address: str, api: str, version: int, request: Message, key: str | None = None) -> Message:
    """The first answer that is not one to retry."""
    answer: Message = {}

    def is_final() -> bool:
        nonlocal answer
        with connected(address) as connection:
            if key is not None:
                connection.call("FindCoordinator", 3, {"Key": key, "KeyType": 1})
            answer = connection.call(api, version, request)
        return answer["ErrorCode"] not in (CONCURRENT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR)

    until(is_final)
    return answer


def codes(answer: Message) -> dict[tuple[str, int], int]:
    return {
        (topic["Name"], part["PartitionIndex"]): part["ErrorCode"]
        for topic in answer["Topics"]
        for part in topic["Partitions"]
    }


@pytest.fixture(name="begin")
def _begin(pair: Pair, new_group: NewGroup) -> Callable[[str], Transaction]:
    def begin(name: str) -> Transaction:
        group = new_group(name)
        alike(pair.call("FindCoordinator", 3, {"Key": group, "KeyType": 0}))
        return Transaction(pair, f"{group}-t", group)

    return begin


Begin = Callable[[str], Transaction]


def fetch(pair: Pair, transaction: Transaction, topic: Topic, *, stable: bool = False) -> Message:
    """OffsetFetch of all partitions, answered alike; returns Kafka's answer."""
    return alike(pair.call("OffsetFetch", 7, fetching(transaction.group, {topic.name: [0, 1, 2]}, stable=stable)))


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_transactional_offsets_appear_with_the_marker(
    pair: Pair, begin: Begin, topic: Topic, version: int, is_commit: bool
) -> None:
    transaction = begin("marked")
    alike(pair.call("OffsetCommit", 7, committing(transaction.group, {topic.name: [(0, 5, "old")]})))
    assert transaction.add() == [NONE, NONE]
    offsets = {topic.name: {0: (9, "new"), 1: (8, None)}}
    assert set(codes(transaction.commit(offsets, version=version)).values()) == {NONE}
    assert offsets_of(fetch(pair, transaction, topic))[0] == (5, "old")
    unstable = fetch(pair, transaction, topic, stable=True)
    assert [part["ErrorCode"] for part in unstable["Topics"][0]["Partitions"]] == [UNSTABLE, UNSTABLE, NONE]
    alike(pair.call("OffsetFetch", 7, fetching(transaction.group, None, stable=True)))
    transaction.end(is_commit=is_commit)
    found = offsets_of(fetch(pair, transaction, topic, stable=True))
    assert found[0] == ((9, "new") if is_commit else (5, "old"))


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_of_no_transaction_are_refused_as_in_kafka(
    pair: Pair, begin: Begin, topic: Topic, version: int
) -> None:
    transaction = begin("unverified")
    offsets = {topic.name: {0: (9, "new")}}
    if version < 5:  # version 5 begins the transaction
        answer = transaction.commit(offsets, version=version)
        assert set(codes(answer).values()) == {ABORTABLE if version >= 4 else INVALID_TXN_STATE}
    transaction.commit(offsets, version=version, epoch_step=1)
    assert transaction.add() == [NONE, NONE]
    transaction.commit(offsets, version=version, epoch_step=1)
    assert set(codes(transaction.commit(offsets, version=version)).values()) == {NONE}
    transaction.end(is_commit=True)
    transaction.begin()  # the next epoch
    transaction.commit(offsets, version=version, epoch_step=-1)
    assert offsets_of(fetch(pair, transaction, topic, stable=True))[0] == (9, "new")


@pytest.mark.parametrize("version", VERSIONS)
def test_wrong_partitions_and_metadata_are_refused_alone(pair: Pair, begin: Begin, topic: Topic, version: int) -> None:
    transaction = begin("wrong")
    assert transaction.add() == [NONE, NONE]
    offsets = {
        topic.name: {0: (1, "x" * 4096), 1: (2, "x" * 4097), 2: (-1, None), 7: (1, ""), -1: (1, "")},
        "never-created": {0: (1, "")},
    }
    found = codes(transaction.commit(offsets, version=version))
    assert found[topic.name, 0] == NONE != found[topic.name, 1]
    transaction.commit({}, version=version)
    transaction.end(is_commit=True)
    assert offsets_of(fetch(pair, transaction, topic))[0] == (1, "x" * 4096)


@pytest.mark.parametrize("delete", ["offset", "group"])
def test_deleting_pending_offsets_is_answered_as_in_kafka(pair: Pair, begin: Begin, topic: Topic, delete: str) -> None:
    transaction = begin("deleted")
    assert transaction.add() == [NONE, NONE]
    transaction.commit({topic.name: {0: (9, "new"), 1: (8, "new")}})
    if delete == "group":
        alike(pair.call("DeleteGroups", 2, {"GroupsNames": [transaction.group]}))
    else:
        topics = [{"Name": topic.name, "Partitions": [{"PartitionIndex": 0}]}]
        alike(pair.call("OffsetDelete", 0, {"GroupId": transaction.group, "Topics": topics}))
    fetch(pair, transaction, topic, stable=True)
    transaction.commit({topic.name: {2: (7, "later")}})
    fetch(pair, transaction, topic, stable=True)
    transaction.end(is_commit=True)
    found = offsets_of(fetch(pair, transaction, topic, stable=True))
    assert found == {0: (-1, ""), 1: (8, "new") if delete == "offset" else (-1, ""), 2: (7, "later")}


def test_of_two_transactions_the_newest_offset_in_the_log_wins(pair: Pair, begin: Begin, topic: Topic) -> None:
    first = begin("overlap")
    second = Transaction(pair, f"{first.name}-2", first.group)
    assert (first.add(), second.add()) == ([NONE, NONE], [NONE, NONE])
    first.commit({topic.name: {0: (1, ""), 1: (1, "")}})
    second.commit({topic.name: {0: (2, ""), 1: (2, ""), 2: (2, "")}})
    first.commit({topic.name: {1: (3, "")}})
    second.end(is_commit=True)
    assert offsets_of(fetch(pair, first, topic)) == {0: (2, ""), 1: (2, ""), 2: (2, "")}
    alike(pair.call("OffsetCommit", 7, committing(first.group, {topic.name: [(2, 4, "")]})))
    fetch(pair, first, topic, stable=True)
    first.end(is_commit=True)
    assert offsets_of(fetch(pair, first, topic, stable=True)) == {0: (2, ""), 1: (3, ""), 2: (4, "")}


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_members_are_checked_as_in_kafka(pair: Pair, begin: Begin, topic: Topic, seat: NewSeat, version: int) -> None:
    transaction = begin("member")
    offsets = {topic.name: {0: (9, "new")}}
    assert transaction.add() == [NONE, NONE]
    transaction.commit(offsets, version=version, member=lambda _: {"GenerationId": 1, "MemberId": "m"})
    mine = seat(transaction.group)
    mine.join()

    def claims(**more: Any) -> Callable[[int], Message]:
        return lambda side: {"GenerationId": mine.generation, "MemberId": mine.ids[side], **more}

    transaction.commit(offsets, version=version, member=claims())  # before it has its assignment
    alike(mine.sync(assignments={mine: b"all"}))
    for more in (
        {},
        {"GenerationId": mine.generation + 1},
        {"GenerationId": -1},
        {"MemberId": "other"},
        {"MemberId": ""},
        {"MemberId": "", "GenerationId": -1},
        {"GroupInstanceId": "i"},
        {"GroupInstanceId": "i", "MemberId": "", "GenerationId": -1},
    ):
        transaction.commit(offsets, version=version, member=claims(**more))
    alike(mine.leave())
    transaction.commit(offsets, version=version, member=claims())
    transaction.commit(offsets, version=version, member=claims(GenerationId=-1))
    transaction.end(is_commit=True)
    fetch(pair, transaction, topic, stable=True)


def test_requests_that_name_no_group_or_transaction_fail_as_in_kafka(begin: Begin, topic: Topic) -> None:
    transaction = begin("unnamed")
    assert transaction.add() == [NONE, NONE]
    offsets = {topic.name: {0: (9, "new")}}
    for version in VERSIONS:
        for field in ("GroupId", "TransactionalId"):
            transaction.commit(offsets, version=version, member=lambda _, field=field: {field: ""})
    transaction.end(is_commit=False)


@pytest.fixture(scope="module")
def modern(
    start_broker: Callable[..., KbrokerProcess | KafkaNode], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Both brokers with transaction.version 2."""
    libraries()
    node = KafkaNode(tmp_path_factory.mktemp("modern"))
    node.start()
    broker = start_broker()
    pair = Pair(node.bootstrap_servers, broker.bootstrap_servers)
    update = {"Feature": "transaction.version", "MaxVersionLevel": 2, "UpgradeType": 1}
    request = {"timeoutMs": 30_000, "FeatureUpdates": [update], "ValidateOnly": False}
    for address in pair.addresses:
        _retried(address, "UpdateFeatures", 1, request)
    yield pair
    broker.stop()
    node.discard()


def test_with_transaction_version_2_a_commit_adds_its_partition(
    modern: Pair, new_topic_name: Callable[[str], str]
) -> None:
    topic, group = modern.create(new_topic_name("modern"), partitions=3), new_topic_name("group")
    for address in modern.addresses:
        await_coordinator(address, group)
    transaction = Transaction(modern, f"{group}-t", group)
    offsets = {topic.name: {0: (1, "")}}
    for version in OLDER:
        transaction.commit(offsets, version=version)  # not in a transaction
    transaction.commit(offsets, version=5, epoch_step=1)
    for number, is_commit in enumerate((True, False, True), 1):
        new = {topic.name: {0: (number, ""), number - 1: (number, "")}}
        assert set(codes(transaction.commit(new, version=5)).values()) == {NONE}
        fetch(modern, transaction, topic, stable=True)
        transaction.end(is_commit=is_commit, version=5)
        fetch(modern, transaction, topic, stable=True)
        transaction.commit(offsets, version=5, epoch_step=-1)  # a request that was late
        fetch(modern, transaction, topic, stable=True)
    assert offsets_of(fetch(modern, transaction, topic)) == {0: (3, ""), 1: (-1, ""), 2: (3, "")}
