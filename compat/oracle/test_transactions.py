"""The transaction coordinator: every request in every state, with the right producer and with wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compat.oracle.conftest import Pair, Topic, same
from compat.oracle.transactions import OTHER_ID, Twins
from compat.waiting import until

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
