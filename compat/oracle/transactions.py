"""A transactional producer on two brokers at once: the same requests with each broker's own producer id."""

from __future__ import annotations

import time
from collections.abc import Sequence

from compat.oracle.conftest import Pair, same
from compat.oracle.raw import connected
from compat.oracle.schema import Message

NONE, UNKNOWN_TOPIC, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT = 0, 3, 14, 15, 16, 51
WAITING = (LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT)
OTHER_ID = 1 << 40
"""A producer id that no broker has given."""


class Twins:
    """One transactional id on both brokers, with the producer id and epoch that each gave."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.pair = pair
        self.name = name
        self.ids = [(-1, -1), (-1, -1)]

    def call(self, api: str, version: int, messages: Sequence[Message]) -> Message:
        """The answer of Kafka, which the broker's equals. Each is asked again until it knows the result."""
        answers = []
        for side, address in enumerate(self.pair.addresses):
            with connected(address) as connection:
                answer = connection.call(api, version, messages[side])
                deadline = time.monotonic() + 30
                while _code(answer) in WAITING and time.monotonic() < deadline:
                    time.sleep(0.005)
                    answer = connection.call(api, version, messages[side])
            answers.append(answer)
        self.answers = answers
        return same(answers)

    def producer(self, *, id_from: int | None = None, epoch: int = 0) -> list[tuple[int, int]]:
        """Both producers, with another producer id, or with an epoch that differs from the right one."""
        return [(own if id_from is None else id_from, known + epoch) for own, known in self.ids]

    def init(
        self, *, producer: Sequence[tuple[int, int]] | None = None, version: int = 5, timeout_ms: int = 60_000
    ) -> Message:
        """InitProducerId; the producers continue with what they get."""
        messages = [
            {
                "TransactionalId": self.name,
                "TransactionTimeoutMs": timeout_ms,
                "ProducerId": producer_id,
                "ProducerEpoch": epoch,
            }
            for producer_id, epoch in producer or [(-1, -1)] * 2
        ]
        answer = self.call("InitProducerId", version, messages)
        self._continue()
        return answer

    def add(
        self,
        *partitions: tuple[str, int],
        producer: Sequence[tuple[int, int]] | None = None,
        version: int = 3,
        verify_only: bool = False,
    ) -> Message:
        """AddPartitionsToTxn, by a client or (version 4 and later) by a broker."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        listed = [{"Name": name, "Partitions": found} for name, found in topics.items()]
        messages = []
        for producer_id, epoch in producer or self.ids:
            if version < 4:
                messages.append(
                    {
                        "V3AndBelowTransactionalId": self.name,
                        "V3AndBelowProducerId": producer_id,
                        "V3AndBelowProducerEpoch": epoch,
                        "V3AndBelowTopics": listed,
                    }
                )
            else:
                one = {
                    "TransactionalId": self.name,
                    "ProducerId": producer_id,
                    "ProducerEpoch": epoch,
                    "VerifyOnly": verify_only,
                    "Topics": listed,
                }
                messages.append({"Transactions": [one]})
        return self.call("AddPartitionsToTxn", version, messages)

    def add_offsets(
        self, group: str, *, producer: Sequence[tuple[int, int]] | None = None, version: int = 4
    ) -> Message:
        """AddOffsetsToTxn."""
        messages = [
            {"TransactionalId": self.name, "ProducerId": producer_id, "ProducerEpoch": epoch, "GroupId": group}
            for producer_id, epoch in producer or self.ids
        ]
        return self.call("AddOffsetsToTxn", version, messages)

    def end(self, *, is_commit: bool, producer: Sequence[tuple[int, int]] | None = None, version: int = 4) -> Message:
        """EndTxn; from version 5 on the producers continue with what they get."""
        messages = [
            {"TransactionalId": self.name, "ProducerId": producer_id, "ProducerEpoch": epoch, "Committed": is_commit}
            for producer_id, epoch in producer or self.ids
        ]
        answer = self.call("EndTxn", version, messages)
        if version >= 5:
            self._continue()
        return answer

    def described(self) -> Message:
        """The id when its transaction is not being completed."""
        while True:
            answers = self.pair.call("DescribeTransactions", 0, {"TransactionalIds": [self.name]})
            states = [answer["TransactionStates"][0] for answer in answers]
            if not any(state["TransactionState"].startswith("Prepare") for state in states):
                break
            time.sleep(0.01)
        self.described_ids = [(state["ProducerId"], state["ProducerEpoch"]) for state in states]
        for state in states:
            state["TransactionStartTimeMs"] = min(state["TransactionStartTimeMs"], 1)
            for topic in state["Topics"]:
                topic["Partitions"].sort()
                if topic["Topic"] == "__consumer_offsets":
                    topic["Partitions"] = ["one"] * len(topic["Partitions"])  # their counts differ
        return same(states)

    def _continue(self) -> None:
        if self.answers[0]["ErrorCode"] == NONE:
            self.ids = [(one["ProducerId"], one["ProducerEpoch"]) for one in self.answers]


def _code(answer: Message) -> int:
    """The error code of an answer, or of its first part."""
    if answer.get("ErrorCode"):
        return int(answer["ErrorCode"])
    for name in (
        "Coordinators",
        "ResultsByTransaction",
        "TopicResults",
        "ResultsByTopicV3AndBelow",
        "ResultsByPartition",
    ):
        if answer.get(name):
            return _code(answer[name][0])
    return int(answer.get("PartitionErrorCode", 0))
