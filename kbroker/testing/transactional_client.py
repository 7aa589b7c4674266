"""The protocol of one transactional producer, as model clients speak it.

Theory of operation: before each transaction the client asks for the finalized features, and speaks the protocol of
KIP-890 part 2 from `transaction.version` 2 on: partitions and offsets are added by Produce and TxnOffsetCommit
themselves, and EndTxn answers with the next epoch. Otherwise it adds them first (KIP-98). Requests are repeated until
they have an answer that is final, or until a deadline. After an answer that ends the producer, or without a final
answer, its caller must call `init` again, which aborts what is open and fences this producer's earlier requests.

A send, a commit of offsets or a transaction has failed (`fail`) only if its first request was refused. After an earlier
request without an answer it may have been served.

Source  TransactionManager of Apache Kafka 4.3.1; KIP-98, KIP-360, KIP-447, KIP-890
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from kbroker.client.operations import produce_request
from kbroker.metadata.parts import TRANSACTION_VERSION_FEATURE
from kbroker.testing.env import WALL_START_MS
from kbroker.testing.history import Function, Type, value_of
from kbroker.testing.model_group import REJOIN
from kbroker.testing.model_router import BACKOFF_MS, MAX_BACKOFF_MS, REQUEST_MS, Partition, Router, Unreachable
from kbroker.testing.recorder import History
from wire.batch_header import NO_PRODUCER_ID
from wire.errors import ErrorCode, code_of
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.end_txn import EndTxnRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from wire.record_batch import Record, build_batch

TRANSACTION: Final = 1
"""The key type of FindCoordinator."""
PERSIST_MS: Final = 40_000
LAST_MS: Final = 15_000
"""How long requests are repeated after the run has stopped."""
_FEATURES_VERSION, _INIT_VERSION, _ADD_VERSION, _OFFSETS_VERSION = 3, 4, 3, 3
_PRODUCE_VERSIONS: Final = (11, 12)
_COMMIT_VERSIONS: Final = (3, 5)
_END_VERSIONS: Final = (3, 5)
_NOT_SERVED: Final = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class Broken(Exception):
    """The transaction cannot go on, and the producer needs another epoch."""


class Refused(Exception):
    """The transaction cannot be committed; the producer may abort it and go on."""


class TransactionalClient:
    """One producer of a transactional id. Its methods raise Broken or Refused."""

    def __init__(
        self, router: Router, name: str, transactional_id: str, history: History, *, timeout_ms: int,
        stopping: trio.Event, patience_ms: int | None = None,
    ) -> None:  # fmt: skip
        """`patience_ms` is how long a batch is sent again before its transaction is aborted (`delivery.timeout.ms`)."""
        self.name = name
        self._router = router
        self._id = transactional_id
        self._history = history
        self._timeout_ms = timeout_ms
        self._patience_ms = patience_ms
        self._has_given_up = False
        self._stopping = stopping
        self._coordinator = self._group_coordinator = -1
        self._producer = (NO_PRODUCER_ID, -1)
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition | str] = set()
        self._is_new = False
        self._number = self._sent = 0
        self._transaction = ""

    @property
    def is_ready(self) -> bool:
        """Whether it has a producer id and an epoch."""
        return self._producer[0] != NO_PRODUCER_ID

    async def init(self, *, bumps: bool = False) -> None:
        """Get an epoch; with `bumps` the next one of this producer, which only a producer that is not fenced gets."""
        known = self._producer if bumps else (NO_PRODUCER_ID, -1)
        self._producer = (NO_PRODUCER_ID, -1)
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=self._timeout_ms, producer_id=known[0],
            producer_epoch=known[1],
        )  # fmt: skip
        answer, code, _ = await self._persist(lambda: self._ask(request, _INIT_VERSION))
        if code is not ErrorCode.NONE:
            raise Broken(code.name)
        self._has_given_up = False
        self._adopt(answer.producer_id, answer.producer_epoch)
        self._history.note(self.name, Function.INIT, Type.OK, value=self._id, epoch=answer.producer_epoch)

    async def begin(self) -> str:
        """Begin a transaction. Returns its name in the history."""
        self._number += 1
        self._transaction = f"{self.name}/{self._number}"
        self._added.clear()
        try:
            answer = await self._router.any(
                ApiVersionsRequest(client_software_name="model", client_software_version="1"),
                version=_FEATURES_VERSION,
            )
        except Unreachable:
            raise Broken("no features") from None
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        self._is_new = levels.get(TRANSACTION_VERSION_FEATURE, 0) >= 2
        return self._transaction

    async def send(self, partition: Partition, payloads: Sequence[bytes]) -> None:
        """Produce one batch, and wait until it is acknowledged."""
        values, records = [], []
        for payload in payloads:
            self._sent += 1
            named = f"{self.name}-{self._sent}|".encode() + payload
            records.append(Record(timestamp=WALL_START_MS + self._history.now(), value=named))
            values.append(value_of(named))
        key = f"{partition[0]}-{partition[1]}"
        for value in values:
            self._note(Function.SEND, Type.INVOKE, key, value=value)
        outcome, base_offset, error = Type.INFO, -1, "timed out"
        try:
            await self._add(partition)
            data = build_batch(
                records, producer_id=self._producer[0], producer_epoch=self._producer[1],
                base_sequence=self._sequences.get(partition, 0), is_transactional=True,
            )  # fmt: skip
            answer, code, is_first = await self._persist(
                lambda: self._produce(partition, data), gives_up_after_ms=self._patience_ms
            )
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                outcome, base_offset = Type.OK, answer.responses[0].partition_responses[0].base_offset
                self._sequences[partition] = self._sequences.get(partition, 0) + len(records)
                return
            outcome, error = Type.FAIL if is_first else Type.INFO, code.name
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self._history.is_lossy(key):
                text = f"{self.name} sends the next batch in order, and is refused: {code.name}"
                self._history.complain("K4", "sequence-refused", key, -1, text)
            self._give_up(code)
        finally:
            for number, value in enumerate(values):
                offset = None if outcome is not Type.OK else base_offset + number if base_offset >= 0 else -1
                given = None if outcome is Type.OK else error
                self._note(Function.SEND, outcome, key, value=value, offset=offset, error=given)

    async def commit_offset(
        self, group: str, partition: Partition, offset: int, *, generation: int, member_id: str
    ) -> ErrorCode:
        """Commit an offset in the transaction. Returns NONE, or the error that sends the member back to its group."""
        key = f"{partition[0]}-{partition[1]}"
        line = {"value": group, "offset": offset, "epoch": generation}
        self._note(Function.COMMIT, Type.INVOKE, key, **line)
        outcome = Type.INFO
        try:
            if not self._is_new and group not in self._added:
                request = AddOffsetsToTxnRequest(
                    transactional_id=self._id, producer_id=self._producer[0], producer_epoch=self._producer[1],
                    group_id=group,
                )  # fmt: skip
                _, code, _ = await self._persist(lambda: self._ask(request, _OFFSETS_VERSION))
                if code is not ErrorCode.NONE:
                    outcome = Type.FAIL
                    self._give_up(code)
                self._added.add(group)
            part = TxnOffsetCommitRequestPartition(
                partition_index=partition[1], committed_offset=offset, committed_metadata=None
            )
            commit = TxnOffsetCommitRequest(
                transactional_id=self._id, group_id=group, producer_id=self._producer[0],
                producer_epoch=self._producer[1], generation_id=generation, member_id=member_id,
                topics=[TxnOffsetCommitRequestTopic(name=partition[0], partitions=[part])],
            )  # fmt: skip
            _, code, is_first = await self._persist(lambda: self._ask_group(group, commit))
            outcome = Type.OK if code is ErrorCode.NONE else Type.FAIL if is_first else Type.INFO
            if code is not ErrorCode.NONE and code not in REJOIN:
                self._give_up(code)
            return code
        finally:
            self._note(Function.COMMIT, outcome, key, **line)

    async def end(self, *, committed: bool) -> None:
        """Commit or abort the transaction."""
        request = EndTxnRequest(
            transactional_id=self._id, producer_id=self._producer[0], producer_epoch=self._producer[1],
            committed=committed,
        )  # fmt: skip
        outcome = Type.INFO
        if committed:
            self._history.note(self.name, Function.TXN, Type.INVOKE, value=self._transaction)
        try:
            answer, code, is_first = await self._persist(lambda: self._ask(request, _END_VERSIONS[self._is_new]))
            if code is not ErrorCode.NONE:
                outcome = Type.FAIL if is_first else Type.INFO
                self._give_up(code, is_end=True)
            outcome = Type.OK
            if self._is_new:
                self._adopt(answer.producer_id, answer.producer_epoch)
        finally:
            if committed:
                self._history.note(self.name, Function.TXN, outcome, value=self._transaction)
        if self._has_given_up:
            await self.init(bumps=True)  # a batch may still arrive (KIP-360)

    def forget(self) -> None:
        """Die in the middle: the next `init` is that of another process."""
        self._producer = (NO_PRODUCER_ID, -1)

    def _adopt(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != self._producer:
            self._sequences.clear()
        self._producer = (producer_id, producer_epoch)

    def _give_up(self, code: ErrorCode, *, is_end: bool = False) -> None:
        if not is_end and code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
            raise Refused(code.name)
        self._producer = (NO_PRODUCER_ID, -1)
        raise Broken(code.name)

    async def _add(self, partition: Partition) -> None:
        if self._is_new or partition in self._added:
            return
        topic = AddPartitionsToTxnTopic(name=partition[0], partitions=[partition[1]])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id, v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1], v3_and_below_topics=[topic],
        )  # fmt: skip
        _, code, _ = await self._persist(lambda: self._ask(request, _ADD_VERSION))
        if code is not ErrorCode.NONE:
            self._give_up(code)
        self._added.add(partition)

    def _note(self, function: Function, kind: Type, key: str, **fields: Any) -> None:
        self._history.note(self.name, function, kind, key, transaction=self._transaction, **fields)

    # Requests

    async def _persist(
        self, ask: Callable[[], Awaitable[Any]], *, gives_up_after_ms: int | None = None
    ) -> tuple[Any, ErrorCode, bool]:
        """Repeat a request until its answer is final.

        Returns the answer, its code, and whether no other request can have been served.
        Errors  Broken; Refused after gives_up_after_ms
        """
        began, backoff_ms, is_first = self._history.now(), BACKOFF_MS / 4, True
        repeated = self._router.cluster.network.repeated
        before = repeated[self._router.host]
        while (waited_ms := self._history.now() - began) < (LAST_MS if self._stopping.is_set() else PERSIST_MS):
            if gives_up_after_ms is not None and waited_ms >= gives_up_after_ms:
                self._has_given_up = True
                raise Refused("timed out")
            try:
                answer = await ask()
                code = _final_code(answer)
            except Unreachable:
                answer, code = None, ErrorCode.NETWORK_EXCEPTION
            if not code.retriable:
                return answer, code, is_first and repeated[self._router.host] == before
            is_first = is_first and code in _NOT_SERVED
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinator = self._group_coordinator = -1
            await trio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS)
        self._producer = (NO_PRODUCER_ID, -1)
        raise Broken("timed out")

    async def _ask(self, request: object, version: int) -> Any:
        if self._coordinator < 0:
            self._coordinator = await self._router.coordinator(self._id, key_type=TRANSACTION)
        return await self._router.ask(self._coordinator, request, version=version)

    async def _ask_group(self, group: str, request: object) -> Any:
        if self._group_coordinator < 0:
            self._group_coordinator = await self._router.coordinator(group)
        return await self._router.ask(self._group_coordinator, request, version=_COMMIT_VERSIONS[self._is_new])

    async def _produce(self, partition: Partition, data: bytes) -> Any:
        request = produce_request({partition: data}, acks=-1, timeout_ms=8_000)
        request.transactional_id = self._id
        try:
            node = await self._router.leader(partition)
            answer = await self._router.ask(
                node, request, version=_PRODUCE_VERSIONS[self._is_new], timeout_ms=self._patience_ms or REQUEST_MS
            )
        except Unreachable:
            await self._router.forget(partition)
            raise
        if _final_code(answer).retriable:
            await self._router.forget(partition)
        return answer


def _final_code(answer: Any) -> ErrorCode:
    """The error of an answer that is about one thing."""
    if hasattr(answer, "results_by_topic_v3_and_below"):
        return code_of(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
    if hasattr(answer, "responses"):
        return code_of(answer.responses[0].partition_responses[0].error_code)
    if hasattr(answer, "topics"):
        return code_of(answer.topics[0].partitions[0].error_code)
    return code_of(answer.error_code)
