"""Asking the transaction coordinator whether partitions belong to a transaction (KIP-890).

The leader of a partition asks before the first write of a transaction to it, and so does a group coordinator before
the first pending offsets. With transaction.version 2 the same request adds the partitions, so that clients need not.

Each coordinator gets one request at a time. Transactions that arrive during a request are in the next one, so the
number of requests does not grow with the number of producers. There is no task for this: every caller waits for the
lock of its coordinator, and the first one that gets it sends for all. If it is cancelled, the next one sends.

A coordinator that cannot be reached or does not answer gives NETWORK_EXCEPTION. Producers retry it; the group
coordinator answers COORDINATOR_LOAD_IN_PROGRESS instead, which transactional clients retry.

Source  AddPartitionsToTxnManager of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import trio

from kbroker.broker.peers import connect_to_peer
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.storage.checkpoint import TopicPartition
from wire.errors import ErrorCode, Malformed, code_of
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

API_VERSION: Final = 5
OLD_API_VERSION: Final = 4
"""Without the code TRANSACTION_ABORTABLE."""
FIRST_LEVEL_WITH_NEW_VERSION: Final = 20
"""The metadata.version 3.8-IV0: every broker of such a cluster knows API_VERSION. kbroker asks others for no versions.
"""
MAX_TRANSACTIONS: Final = 1_000
"""In one request; others wait for the next one."""


class Coordinator(Protocol):
    """The coordinator on this broker."""

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, *, api_version: int
    ) -> AddPartitionsToTxnResponse: ...


class _Asked:
    """A transaction to ask about; `code` or `codes` is set when the answer is there."""

    __slots__ = ("code", "codes", "is_answered", "transaction")

    def __init__(self, transaction: AddPartitionsToTxnTransaction) -> None:
        self.transaction = transaction
        self.is_answered = False
        self.code = ErrorCode.NONE
        self.codes: dict[TopicPartition, ErrorCode] = {}

    def fail(self, code: ErrorCode) -> None:
        self.code, self.is_answered = code, True

    def take(self, answer: AddPartitionsToTxnResponse) -> None:
        """Take this transaction's part of the answer; without one, the request failed."""
        for result in answer.results_by_transaction:
            if result.transactional_id == self.transaction.transactional_id:
                for topic in result.topic_results:
                    for one in topic.results_by_partition:
                        self.codes[topic.name, one.partition_index] = code_of(one.partition_error_code)
                self.is_answered = True
                return
        self.fail(ErrorCode.NETWORK_EXCEPTION)


class _Line:
    """The transactions that wait to be in a request to one coordinator."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.waiting: list[_Asked] = []
        self.connection: Connection | None = None

    def next(self) -> list[_Asked]:
        """The transactions of the next request: no transactional id twice, because the answer could not tell."""
        found: dict[str, _Asked] = {}
        for asked in self.waiting:
            found.setdefault(asked.transaction.transactional_id, asked)
            if len(found) == MAX_TRANSACTIONS:
                break
        return list(found.values())

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class TransactionVerifier:
    """See the module docstring. `coordinator` is the one on this broker, if it can be one."""

    def __init__(self, broker: Broker) -> None:
        self.coordinator: Coordinator | None = None
        self._broker = broker
        self._lines: dict[int, _Line] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether transactional records are accepted only in verified transactions."""
        return self._broker.settings.transactions.transaction_partition_verification_enable

    async def ask(self, transaction: AddPartitionsToTxnTransaction) -> _Asked:
        """Ask the coordinator of a transaction."""
        asked = _Asked(transaction)
        coordinator_id = self._broker.find_transaction_coordinator(transaction.transactional_id)
        if coordinator_id < 0:
            asked.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return asked
        line = self._lines.get(coordinator_id)
        if line is None:
            self._forget_gone()
            line = self._lines[coordinator_id] = _Line()
        line.waiting.append(asked)
        try:
            while not asked.is_answered:
                async with line.lock:
                    if not asked.is_answered:
                        await self._send(coordinator_id, line)
        finally:
            if not asked.is_answered:
                line.waiting.remove(asked)
        return asked

    def _forget_gone(self) -> None:
        """Close the connections to brokers that are no longer registered."""
        for broker_id in [one for one in self._lines if one not in self._broker.image.brokers]:
            if not self._lines[broker_id].waiting:
                self._lines.pop(broker_id).close()

    async def _send(self, coordinator_id: int, line: _Line) -> None:
        """Send one request for the transactions that wait, and give each its answer."""
        batch = line.next()
        request = AddPartitionsToTxnRequest(transactions=[asked.transaction for asked in batch])
        answer: AddPartitionsToTxnResponse | None = None
        if coordinator_id != self._broker.node_id:
            answer = await self._ask_peer(coordinator_id, line, request)
        elif self.coordinator is not None:
            answer = await self.coordinator.add_partitions(request, api_version=API_VERSION)
        sent = set(map(id, batch))
        line.waiting = [asked for asked in line.waiting if id(asked) not in sent]
        for asked in batch:
            if answer is None:
                asked.fail(ErrorCode.NETWORK_EXCEPTION)
            elif answer.error_code:
                # Kafka's coordinator refuses the request as a whole only if this broker may not send it.
                code = code_of(answer.error_code)
                asked.fail(ErrorCode.INVALID_TXN_STATE if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else code)
            else:
                asked.take(answer)

    async def _ask_peer(
        self, coordinator_id: int, line: _Line, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse | None:
        """The answer of another broker, None without one. A connection that was idle may be closed: try a new one."""
        broker = self._broker
        timeout_ms = broker.settings.server.request_timeout_ms
        is_new = broker.image.metadata_version >= FIRST_LEVEL_WITH_NEW_VERSION
        version = API_VERSION if is_new else OLD_API_VERSION
        was_open = line.connection is not None
        answer: AddPartitionsToTxnResponse | None = None
        try:
            with trio.move_on_after(timeout_ms / 1000):
                while True:
                    try:
                        if line.connection is None:
                            line.connection = await connect_to_peer(
                                broker,
                                coordinator_id,
                                client_id=f"broker-{broker.node_id}-transactions",
                                timeout_ms=broker.settings.replication.replica_socket_timeout_ms,
                            )
                        answer = await line.connection.ask(request, version=version)
                        break
                    except (OSError, ConnectionClosed, Malformed):
                        line.close()
                        if not was_open:
                            break
                        was_open = False
        finally:
            if answer is None:
                line.close()
        return answer


async def verify(
    broker: Broker,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TopicPartition],
    *,
    adds: bool,
) -> dict[TopicPartition, ErrorCode]:
    """Ask the coordinator whether partitions are in a transaction, or add them; returns a code for each partition.

    NONE: the partition is in the transaction. Else the coordinator's code, except PRODUCER_FENCED, which is
    INVALID_PRODUCER_EPOCH for producers; COORDINATOR_NOT_AVAILABLE or NETWORK_EXCEPTION if it does not answer.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    asked = await broker.transaction_verifier.ask(
        AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=not adds,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in by_topic.items()],
        )
    )
    if asked.code is not ErrorCode.NONE:
        return dict.fromkeys(partitions, asked.code)
    found = {partition: asked.codes.get(partition, ErrorCode.NETWORK_EXCEPTION) for partition in partitions}
    return {
        partition: ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
        for partition, code in found.items()
    }
