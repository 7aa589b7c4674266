"""kafka-transactions: list and describe transactions and producers, find hanging transactions, and abort them.

A transaction hangs if a log has it open for longer than max-transaction-timeout, and its coordinator does not know it,
or not in this partition (KIP-664).

Source  TransactionsCommand of Apache Kafka 4.3.1, and a test that runs it beside this
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from administration import tool_parser

from kbroker.cli import CommandFailed
from kbroker.cli._admin import admin_client, explain
from kbroker.cli._say import say
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import by_topic
from kbroker.runtime.clocks import RealClocks
from wire.errors import ErrorCode, KafkaError, check, code_of
from wire.messages import describe_producers as producers_api
from wire.messages.describe_transactions import DescribeTransactionsRequest
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.list_transactions import ListTransactionsRequest
from wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

_TRANSACTION: Final = 1  # the key type of FindCoordinator
_PARTITIONS_AT_ONCE: Final = 500
_DURATIONS, _PATTERNS = 1, 2  # the first versions of ListTransactions with these filters
_MS_PER_MINUTE: Final = 60_000
_PRODUCER_COLUMNS: Final = (
    *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"),
    "CurrentTransactionStartOffset",
)
_TRANSACTION_COLUMNS: Final = (
    *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs"),
    *("CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions"),
)
_HANGING_COLUMNS: Final = (
    *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp"),
    "Duration(min)",
)


class Open(NamedTuple):
    """An open transaction in the log of a partition."""

    partition: Partition
    producer: producers_api.ProducerState


def transactions(words: Sequence[str]) -> int:
    """kafka-transactions."""
    options = _options(words)
    with admin_client(options) as client:
        options.run(client, options)
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    texts = {
        "list": "list transactions",
        "describe": "describe the state of an active transactional id",
        "describe-producers": "describe the states of active producers of a partition",
        "abort": "abort a hanging transaction (requires administrative privileges)",
        "find-hanging": "find hanging transactions",
        "forceTerminateTransaction": "abort the ongoing transaction of a transactional id",
    }
    parser, actions = tool_parser("kafka-transactions", texts)
    for name, run in _ACTIONS.items():
        actions[name].set_defaults(run=run)
    actions["list"].add_argument("--duration-filter", type=int, default=-1, metavar="MS")
    actions["list"].add_argument("--transactional-id-pattern", metavar="REGEX")
    actions["describe"].add_argument("--transactional-id", required=True)
    actions["forceTerminateTransaction"].add_argument("--transactionalId", required=True, dest="transactional_id")
    for name in ("describe-producers", "abort", "find-hanging"):
        is_required = name != "find-hanging"
        actions[name].add_argument("--topic", required=is_required)
        actions[name].add_argument("--partition", type=int, required=is_required)
    for name in ("describe-producers", "find-hanging"):
        actions[name].add_argument("--broker-id", type=int)
    actions["find-hanging"].add_argument("--max-transaction-timeout", type=int, default=15, metavar="MINUTES")
    for name in ("start-offset", "producer-id", "producer-epoch", "coordinator-epoch"):
        actions["abort"].add_argument(f"--{name}", type=int)
    return parser.parse_args(list(words))


@contextmanager
def _failing(to_do: str) -> Iterator[None]:
    """Say what failed, as Kafka's tool does."""
    try:
        yield
    except KafkaError as error:
        raise CommandFailed(f"Failed to {to_do}: {explain(error)}") from error


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Kafka's table: padded columns, with a tab after each."""
    lines = [[*map(str, row)] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("".join(f"{cell:<{width}}\t" for cell, width in zip(line, widths, strict=True)))


# --- transactional ids ---


def _list(client: Cluster, options: argparse.Namespace) -> None:
    duration_ms, pattern = options.duration_filter, options.transactional_id_pattern
    request = ListTransactionsRequest(
        state_filters=[], producer_id_filters=[], duration_filter=duration_ms, transactional_id_pattern=pattern
    )
    needed = _PATTERNS if pattern else _DURATIONS if duration_ms >= 0 else 0
    with _failing("list transactions"):
        if not client.serves(ListTransactionsRequest, version=needed):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker does not support this filter")
        rows = [
            (each.transactional_id, node_id, each.producer_id, each.transaction_state)
            for node_id, each in _listed(client, request)
        ]
    _print_table(("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), rows)


def _listed(client: Cluster, request: ListTransactionsRequest) -> Iterator[tuple[int, Any]]:
    """The transactions of every broker, with the id of the broker."""
    client.metadata([])
    for node_id in sorted(client.nodes):

        def attempt(node_id: int = node_id) -> list[Any]:
            answer = client.ask(request, node_id)
            check(answer.error_code)
            found: list[Any] = answer.transaction_states
            return found

        for each in client.retry(attempt):
            yield node_id, each


def _described(client: Cluster, transactional_id: str) -> tuple[int, Any]:
    """The id of the coordinator, and the state of the transaction. Errors: TRANSACTIONAL_ID_NOT_FOUND."""

    def attempt() -> tuple[int, Any]:
        node_id = client.coordinator(transactional_id, _TRANSACTION)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (state,) = client.ask(request, node_id).transaction_states
        check(state.error_code)
        return node_id, state

    return client.retry(attempt)


def _describe(client: Cluster, options: argparse.Namespace) -> None:
    name = options.transactional_id
    with _failing(f"describe transaction state of transactional-id `{name}`"):
        node_id, state = _described(client, name)
    began_ms = state.transaction_start_time_ms
    times = ("None", "None") if began_ms < 0 else (began_ms, RealClocks().timestamp_ms() - began_ms)
    partitions = ",".join(f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions)
    row = (node_id, name, state.producer_id, state.producer_epoch, state.transaction_state)
    _print_table(_TRANSACTION_COLUMNS, [(*row, state.transaction_timeout_ms, *times, partitions)])


def _terminate(client: Cluster, options: argparse.Namespace) -> None:
    """Begin a session of the transactional id, which aborts its transaction and fences its producer."""
    name = options.transactional_id
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1)

    def attempt() -> None:
        answer = client.ask(request, client.coordinator(name, _TRANSACTION))
        check(answer.error_code)

    with _failing(f"force terminate transactionalId `{name}`"):
        client.retry(attempt, also=[ErrorCode.CONCURRENT_TRANSACTIONS])


# --- producers in the logs ---


def _producers(
    client: Cluster, partitions: Sequence[Partition], broker_id: int | None
) -> dict[Partition, list[producers_api.ProducerState]]:
    """The producers of each partition, as its leader or the broker with this id knows them."""

    def request(wanted: Iterable[Partition]) -> object:
        topics = by_topic(wanted, lambda _, index: index)
        return producers_api.DescribeProducersRequest(
            topics=[producers_api.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics]
        )

    def read(answer: Any) -> Iterator[tuple[Partition, int, list[producers_api.ProducerState]]]:
        for topic in answer.topics:
            for each in topic.partitions:
                yield (topic.name, each.partition_index), each.error_code, each.active_producers

    if broker_id is None:
        return client.ask_leaders(partitions, request, read)
    found = {}
    for partition, code, states in read(client.ask(request(partitions), broker_id)):
        check(code)
        found[partition] = states
    return found


def _describe_producers(client: Cluster, options: argparse.Namespace) -> None:
    partition, broker_id = (options.topic, options.partition), options.broker_id
    where = "leader" if broker_id is None else f"broker {broker_id}"
    with _failing(f"describe producers for partition {options.topic}-{options.partition} on {where}"):
        states = _producers(client, [partition], broker_id)[partition]
    _print_table(
        _PRODUCER_COLUMNS,
        (
            (
                *(each.producer_id, each.producer_epoch, each.coordinator_epoch),
                *(each.last_sequence, each.last_timestamp),
                each.current_txn_start_offset if each.current_txn_start_offset >= 0 else "None",
            )
            for each in states
        ),
    )


def _abort(client: Cluster, options: argparse.Namespace) -> None:
    partition = options.topic, options.partition
    if options.start_offset is not None:
        producer = _producer_at(client, partition, options.start_offset)
        named = producer.producer_id, producer.producer_epoch, producer.coordinator_epoch
    elif options.producer_id is None:
        raise CommandFailed(
            "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) or "
            "with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    else:
        for flag in ("producer_epoch", "coordinator_epoch"):
            if getattr(options, flag) is None:
                raise CommandFailed(f"Missing required argument --{flag.replace('_', '-')}")
        named = options.producer_id, options.producer_epoch, options.coordinator_epoch
    producer_id, epoch, coordinator_epoch = named
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        # It is unknown in the first transaction of a producer. Zero is below that of every coordinator.
        coordinator_epoch=max(coordinator_epoch, 0),
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=options.topic, partition_indexes=[options.partition])],
    )

    def read(answer: Any) -> Iterator[tuple[Partition, int, None]]:
        for topic in (topic for result in answer.markers for topic in result.topics):
            yield from (((topic.name, each.partition_index), each.error_code, None) for each in topic.partitions)

    with _failing(f"abort the transaction of producer {producer_id} in {options.topic}-{options.partition}"):
        client.ask_leaders([partition], lambda _: WriteTxnMarkersRequest(markers=[marker]), read)


def _producer_at(client: Cluster, partition: Partition, start_offset: int) -> producers_api.ProducerState:
    """The producer whose open transaction begins there."""
    name = f"{partition[0]}-{partition[1]}"
    with _failing(f"validate producer state for partition {name}"):
        states = _producers(client, [partition], None)[partition]
    for each in states:
        if each.current_txn_start_offset == start_offset >= 0:
            return each
    raise CommandFailed(f"Could not find any open transactions starting at offset {start_offset} on partition {name}")


# --- hanging transactions ---


def _find_hanging(client: Cluster, options: argparse.Namespace) -> None:
    if options.topic is None and options.broker_id is None:
        raise CommandFailed(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    if options.partition is not None and options.topic is None:
        raise CommandFailed("The --partition argument requires --topic to be provided")
    now_ms = RealClocks().timestamp_ms()
    longest_ms = options.max_transaction_timeout * _MS_PER_MINUTE
    found: dict[int, list[Open]] = {}
    with _failing("describe producers"):
        searched = _searched(client, options)
        for first in range(0, len(searched), _PARTITIONS_AT_ONCE):
            some = searched[first : first + _PARTITIONS_AT_ONCE]
            for partition, states in _producers(client, some, options.broker_id).items():
                for each in states:
                    if each.current_txn_start_offset >= 0 and now_ms - each.last_timestamp > longest_ms:
                        found.setdefault(each.producer_id, []).append(Open(partition, each))
    hanging = _hanging(client, found) if found else []
    _print_table(
        _HANGING_COLUMNS,
        (
            (
                *each.partition,
                *(producer.producer_id, producer.producer_epoch, producer.coordinator_epoch),
                *(producer.current_txn_start_offset, producer.last_timestamp),
                (now_ms - producer.last_timestamp) // _MS_PER_MINUTE,
            )
            for each in hanging
            for producer in [each.producer]
        ),
    )


def _searched(client: Cluster, options: argparse.Namespace) -> list[Partition]:
    """The partitions that the flags choose."""
    if options.partition is not None:
        return [(options.topic, options.partition)]
    found = client.metadata(None if options.topic is None else [options.topic])
    for topic in found.topics:
        check(topic.error_code, f"topic {topic.name}: {code_of(topic.error_code).name}")
    return [
        (str(topic.name), each.partition_index)
        for topic in sorted(found.topics, key=lambda topic: str(topic.name))
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        if options.broker_id is None or options.broker_id in each.replica_nodes
    ]


def _hanging(client: Cluster, found: dict[int, list[Open]]) -> list[Open]:
    """The open transactions, by producer id, that no coordinator will end."""
    with _failing(f"list transactions for {len(found)} producers"):
        request = ListTransactionsRequest(state_filters=[], producer_id_filters=list(found))
        ids = {each.producer_id: each.transactional_id for _, each in _listed(client, request)}
    hanging = []
    for producer_id, transactions in found.items():
        known: set[Partition] = set()
        if transactional_id := ids.get(producer_id):
            with _failing(f"describe transaction {transactional_id}"):
                known = _partitions_of(client, transactional_id)
        hanging += [each for each in transactions if each.partition not in known]
    return hanging


def _partitions_of(client: Cluster, transactional_id: str) -> set[Partition]:
    """The partitions in which the coordinator will end the transaction."""
    try:
        _, state = _described(client, transactional_id)
    except KafkaError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return set()
    return {(topic.topic, index) for topic in state.topics for index in topic.partitions}


_ACTIONS: Final = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
    "forceTerminateTransaction": _terminate,
}
