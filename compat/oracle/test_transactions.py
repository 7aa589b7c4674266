"""The transaction coordinator: every request in every state, with the right producer and with wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from compat.oracle.conftest import Pair, Topic, same
from compat.oracle.raw import connected
from compat.oracle.schema import Message, decode_transaction
from compat.oracle.transactions import OTHER_ID, Twins
from compat.waiting import until
from kbroker.coordinator.common.ports import partition_for
from wire.record_batch import batches

STATES = ("unknown", "Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
UPGRADE, SAFE_DOWNGRADE = 1, 2
PRODUCERS = ("right", "old epoch", "new epoch", "other id")
EVENTS: dict[str, Callable[[Twins, Topic, list[tuple[int, int]]], object]] = {
    "InitProducerId": lambda twins, _, __: twins.init(),
    "InitProducerId 3": lambda twins, _, who: twins.init(producer=who, version=3),
    "InitProducerId 5": lambda twins, _, who: twins.init(producer=who),
    "AddPartitionsToTxn 1": lambda twins, topic, who: twins.add((topic.name, 1), producer=who, version=1),
    "AddPartitionsToTxn 3": lambda twins, topic, who: twins.add((topic.name, 1), producer=who),
    "AddPartitionsToTxn 3, known": lambda twins, topic, who: twins.add((topic.name, 0), producer=who),
    "AddPartitionsToTxn 5": lambda twins, topic, who: twins.add((topic.name, 1), producer=who, version=5),
    "verify": lambda twins, topic, who: twins.add(
        (topic.name, 0), (topic.name, 1), producer=who, version=4, verify_only=True
    ),
    "AddOffsetsToTxn 1": lambda twins, _, who: twins.add_offsets("g", producer=who, version=1),
    "AddOffsetsToTxn 4": lambda twins, _, who: twins.add_offsets("g", producer=who),
    "commit 1": lambda twins, _, who: twins.end(is_commit=True, producer=who, version=1),
    "commit 4": lambda twins, _, who: twins.end(is_commit=True, producer=who),
    "abort 4": lambda twins, _, who: twins.end(is_commit=False, producer=who),
    "commit 5": lambda twins, _, who: twins.end(is_commit=True, producer=who, version=5),
    "abort 5": lambda twins, _, who: twins.end(is_commit=False, producer=who, version=5),
}


@pytest.fixture(scope="module")
def topic(pair: Pair, new_topic_name: Callable[[str], str]) -> Topic:
    return pair.create(new_topic_name("transactional"), partitions=2)


@pytest.fixture(scope="module", params=[0, 2])
def transaction_version(pair: Pair, request: pytest.FixtureRequest) -> Iterator[int]:
    """The transaction.version of both clusters."""
    level = int(request.param)
    if level:
        finalize(pair, level, UPGRADE)
    yield level
    if level:
        finalize(pair, 0, SAFE_DOWNGRADE)


def finalize(pair: Pair, level: int, kind: int) -> None:
    """Finalize transaction.version on both, and wait until both brokers know it."""
    update = {"Feature": "transaction.version", "MaxVersionLevel": level, "UpgradeType": kind}
    same(pair.call("UpdateFeatures", 1, {"timeoutMs": 30_000, "FeatureUpdates": [update]}))

    def is_known() -> bool:
        client = {"ClientSoftwareName": "compat", "ClientSoftwareVersion": "1"}
        return all(
            level
            == sum(one["MaxVersionLevel"] for one in answer["FinalizedFeatures"] if one["Name"] == update["Feature"])
            for answer in pair.call("ApiVersions", 4, client)
        )

    until(is_known)


@pytest.fixture
def new(pair: Pair, new_topic_name: Callable[[str], str]) -> Callable[[], Twins]:
    """A function that makes a transactional id, whose coordinator both brokers serve."""

    def make() -> Twins:
        twins = Twins(pair, new_topic_name("id"))
        twins.call("FindCoordinator", 6, [{"KeyType": 1, "CoordinatorKeys": [twins.name]}] * 2)
        return twins

    return make


def brought_to(state: str, twins: Twins, topic: Topic, *, version: int) -> Twins:
    """A transactional id in a state, with the protocol of an EndTxn version."""
    if state != "unknown":
        twins.init()
    if state not in ("unknown", "Empty"):
        twins.add((topic.name, 0), version=5 if version == 5 else 3)
    if state.startswith("Complete"):
        twins.end(is_commit=state == "CompleteCommit", version=version)
        assert twins.described()["TransactionState"] == state
    return twins


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_k5_each_request_in_each_state_is_answered_as_by_kafka(
    new: Callable[[], Twins], topic: Topic, event: str, state: str, transaction_version: int
) -> None:
    version = 5 if transaction_version == 2 else 4
    for wrong in PRODUCERS[: 1 if event == "InitProducerId" else 4]:
        twins = brought_to(state, new(), topic, version=version)
        if state == "unknown":
            twins.ids = [(OTHER_ID, 3)] * 2
        who = {
            "right": twins.producer(),
            "old epoch": twins.producer(epoch=-1),
            "new epoch": twins.producer(epoch=1),
            "other id": twins.producer(id_from=OTHER_ID),
        }[wrong]
        if wrong == "old epoch" and who[0][1] < 0:
            continue
        try:
            EVENTS[event](twins, topic, who)
            if event.endswith(" 5") and transaction_version == 0 and twins.answers[0].get("ErrorCode") == 35:
                continue  # Kafka answers nothing but CONCURRENT_TRANSACTIONS from now on
            after = twins.described()
            if state == "unknown" and after["ErrorCode"]:
                continue
            # What was answered and what is stored lead to the same future.
            twins.end(is_commit=False, version=version)
            twins.described()
            twins.init()
        except AssertionError as error:
            raise AssertionError(f"{wrong}: {error}") from error


def stored(pair: Pair, name: str) -> list[list[Message]]:
    """The records of a transactional id in `__transaction_state`, of each broker, with what they share."""
    found: list[list[Message]] = []
    for address in pair.addresses:
        with connected(address) as connection:
            topics = [{"Name": "__transaction_state"}]
            metadata = connection.call("Metadata", 9, {"Topics": topics})
            count = len(metadata["Topics"][0]["Partitions"])
            wanted = {"Partition": partition_for(name, count), "FetchOffset": 0, "PartitionMaxBytes": 1 << 24}
            answer = connection.call(
                "Fetch",
                12,
                {"ReplicaId": -1, "SessionEpoch": -1, "Topics": [{"Topic": topics[0]["Name"], "Partitions": [wanted]}]},
            )
        data = answer["Responses"][0]["Partitions"][0]["Records"]
        records = [record for batch in batches(data) for record in batch.records()]
        found.append([decode_transaction(record.value) for record in records if record.key == key_of(name)])
    return found


def key_of(name: str) -> bytes:
    return struct.pack(">hh", 0, len(name)) + name.encode()


def test_the_log_of_a_transactional_id_has_kafkas_records(
    new: Callable[[], Twins], topic: Topic, transaction_version: int, pair: Pair
) -> None:
    version = 5 if transaction_version == 2 else 4
    twins = new()
    twins.init()
    for is_commit in (True, False):
        twins.add((topic.name, 0), version=version if version == 5 else 3)
        twins.add((topic.name, 1), version=version if version == 5 else 3)
        twins.end(is_commit=is_commit, version=version)
        twins.described()
    if transaction_version == 2:
        twins.end(is_commit=False, version=5)  # without partitions
        twins.described()
    twins.add((topic.name, 0))
    twins.init()  # fences
    theirs, ours = stored(pair, twins.name)
    ids = [{theirs[0]["ProducerId"]: "id", -1: -1}, {ours[0]["ProducerId"]: "id", -1: -1}]
    for side, values in enumerate((theirs, ours)):
        for value in values:
            for name in ("ProducerId", "PreviousProducerId", "NextProducerId"):
                if name in value:
                    value[name] = ids[side][value[name]]
            # Tagged fields 0 and 1 are the previous and the next producer id.
            value["?tags"] = {
                tag: ids[side][int.from_bytes(data, signed=True)] if tag in (0, 1) else data
                for tag, data in value.get("?tags", {}).items()
            }
            for name in ("TransactionLastUpdateTimestampMs", "TransactionStartTimestampMs"):
                value[name] = min(value[name], 1)
            for one in value["TransactionPartitions"] or ():
                one["PartitionIds"].sort()
    assert ours == theirs


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_000, 900_001, 2**31 - 1])
def test_timeouts_are_bounded_as_by_kafka(new: Callable[[], Twins], timeout_ms: int) -> None:
    new().init(timeout_ms=timeout_ms)


def test_incomplete_and_unknown_names_are_answered_as_by_kafka(
    new: Callable[[], Twins], topic: Topic, pair: Pair
) -> None:
    twins = new()
    twins.init()
    for version in (0, 3, 4):
        twins.add((topic.name, 0), (topic.name, 7), ("missing", 0), version=version)
        twins.add(version=version)
    twins.add((topic.name, 0), (topic.name, 7), version=4, verify_only=True)
    empty = Twins(pair, "")
    empty.ids = twins.ids
    empty.end(is_commit=True)
    empty.add((topic.name, 0))
    empty.add((topic.name, 0), version=4, verify_only=True)
    empty.add_offsets("g")
    empty.init()
    for version in range(3, 6):
        for producer in ([(1, -1)] * 2, [(-1, 1)] * 2):
            twins.init(producer=producer, version=version)
    for names in ([], [""], [twins.name, "nobody", twins.name, ""]):
        answers = pair.call("DescribeTransactions", 0, {"TransactionalIds": names})
        for answer in answers:
            known = {state["TransactionalId"]: state for state in answer["TransactionStates"]}
            for state in known.values():
                state["TransactionStartTimeMs"] = min(state["TransactionStartTimeMs"], 1)
            answer["TransactionStates"] = [known[name] for name in sorted(known)]  # kbroker answers each name once
        same(answers)


@pytest.mark.parametrize("version", range(3))
def test_transactions_are_listed_as_by_kafka(new: Callable[[], Twins], topic: Topic, pair: Pair, version: int) -> None:
    twins = [brought_to(state, new(), topic, version=4) for state in STATES[1:]]
    names = {one.name for one in twins}
    filters: list[Message] = [
        {},
        {"StateFilters": ["Ongoing", "CompleteAbort"]},
        {"StateFilters": ["ongoing", "Dead", "PrepareEpochFence", "?"]},
        {"DurationFilter": 0},
        {"DurationFilter": 3_600_000},
        {"TransactionalIdPattern": f"{twins[1].name}|nobody"},
        {"TransactionalIdPattern": "id"},
        {"TransactionalIdPattern": "("},
        {"TransactionalIdPattern": ""},
    ]
    for one in filters:
        if version < (2 if "TransactionalIdPattern" in one else 1 if "DurationFilter" in one else 0):
            continue
        answers = pair.call("ListTransactions", version, one)
        for answer in answers:
            listed = [state for state in answer["TransactionStates"] if state["TransactionalId"] in names]
            answer["TransactionStates"] = sorted(listed, key=lambda state: str(state["TransactionalId"]))
            answer["UnknownStateFilters"].sort()
        same(answers)
    for side in (0, 1):
        asked = {"ProducerIdFilters": [twins[2].ids[side][0]]}
        answer = pair.call("ListTransactions", version, asked)[side]
        assert [state["TransactionalId"] for state in answer["TransactionStates"]] == [twins[2].name]
