"""Transactions from InitProducerId to their markers, with the clients' requests."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

import pytest
import trio

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import (
    batch,
    create_topic,
    delete_topic,
    fetching,
    parts,
    produce,
    wanted,
)
from tests.handlers.transactions import (
    add_partitions,
    described,
    end,
    finalize_transaction_version,
    init,
    init_answer,
    settled,
)
from wire.errors import ErrorCode
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from wire.messages.fetch import PartitionData
from wire.messages.list_transactions import ListTransactionsRequest

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
T0 = ("t", 0)
TIMES = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 1_000,
    "transactional.id.expiration.ms": 60_000,
    "transaction.state.log.num.partitions": 1,
}


async def read_committed(client: Client, topic: str = "t") -> PartitionData:
    return parts(await client.ask(fetching(topic, wanted(), read_committed=True), version=12))[0]


async def write(client: Client, name: str, producer: tuple[int, int], *, sequence: int = 0, version: int = 11) -> int:
    """Produce one record in a transaction; return the error code."""
    data = batch(
        b"1", producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, is_transactional=True
    )
    return (await produce(client, "t", data, transactional_id=name, version=version)).error_code


async def listed(client: Client, **filters: object) -> dict[str, str]:
    """The transactional ids that pass filters, with their states."""
    fields = {"state_filters": [], "producer_id_filters": [], **filters}
    while (answer := await client.ask(ListTransactionsRequest(**fields))).error_code == LOADING:
        await trio.lowlevel.checkpoint()
    assert answer.error_code == 0
    return {one.transactional_id: one.transaction_state for one in answer.transaction_states}


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_ends_with_its_markers(client: Client, is_commit: bool) -> None:
    await create_topic(client, "t")
    producer = await init(client, "x")
    assert await add_partitions(client, "x", *producer, T0) == {T0: 0}
    assert (await described(client, "x")).transaction_state == "Ongoing"
    assert await write(client, "x", producer) == 0
    assert (await read_committed(client)).last_stable_offset == 0
    assert (await end(client, "x", *producer, is_commit=is_commit)).error_code == 0
    assert (await settled(client, "x")).transaction_state == ("CompleteCommit" if is_commit else "CompleteAbort")
    read = await read_committed(client)
    assert read.last_stable_offset == read.high_watermark == 2
    assert bool(read.aborted_transactions) != is_commit


async def test_with_version_2_each_transaction_has_its_epoch(client: Client) -> None:
    await create_topic(client, "t")
    await finalize_transaction_version(client, 2)
    producer_id, epoch = producer = await init(client, "x")
    for number in range(3):
        assert await write(client, "x", producer, version=12) == 0, "Produce adds the partition"
        assert (await described(client, "x")).producer_epoch == epoch + number
        answer = await end(client, "x", *producer, version=5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, producer_id, epoch + number + 1)
        assert await end(client, "x", *producer, version=5) == answer, "the reply was lost"
        late = await end(client, "x", *producer, is_commit=False, version=5)
        assert late.error_code == ErrorCode.INVALID_TXN_STATE
        assert await write(client, "x", producer, sequence=1, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
        producer = producer_id, epoch + number + 1
    assert (await read_committed(client)).last_stable_offset == 6


async def test_a_second_producer_fences_the_first(client: Client) -> None:
    await create_topic(client, "t")
    first = await init(client, "x")
    await add_partitions(client, "x", *first, T0)
    second = await init(client, "x")
    assert second == (first[0], first[1] + 2), "one for the abort, one for the new producer"
    assert await add_partitions(client, "x", *first, T0) == {T0: ErrorCode.PRODUCER_FENCED}
    assert await add_partitions(client, "x", *first, T0, version=1) == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert (await end(client, "x", *first)).error_code == ErrorCode.PRODUCER_FENCED
    assert (await end(client, "x", *first, version=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await add_partitions(client, "x", *second, T0) == {T0: 0}


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_timeouts_outside_the_bounds_are_refused(client: Client, timeout_ms: int) -> None:
    answer = await init_answer(client, "x", timeout_ms=timeout_ms)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1)


@pytest.mark.parametrize("version", [0, 2])
async def test_a_transaction_that_takes_too_long_is_aborted(version: int) -> None:
    async with memory_broker(settings=TIMES) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await finalize_transaction_version(client, version)
        producer = await init(client, "x", timeout_ms=5_000)
        assert await write(client, "x", producer, version=12 if version == 2 else 11) == (
            0 if version == 2 else ErrorCode.TRANSACTION_ABORTABLE
        )
        await add_partitions(client, "x", *producer, T0)
        await trio.sleep(4.9)
        assert (await described(client, "x")).transaction_state == "Ongoing"
        await trio.sleep(0.3)
        found = await settled(client, "x")
        assert (found.transaction_state, found.producer_epoch) == ("CompleteAbort", producer[1] + 1)
        late = await end(client, "x", *producer, version=5 if version == 2 else 4)
        assert late.error_code == (ErrorCode.INVALID_TXN_STATE if version == 2 else ErrorCode.PRODUCER_FENCED)
        read = await read_committed(client)
        assert read.last_stable_offset == read.high_watermark


async def test_markers_wait_until_their_partition_accepts_them(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, T0)
    async with locked(broker):
        assert (await end(client, "x", *producer)).error_code == 0
        await trio.sleep(10)
        assert (await described(client, "x")).transaction_state == "PrepareCommit"
        assert await init_once(client, "x") == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await add_partitions(client, "x", *producer, T0) == {T0: ErrorCode.CONCURRENT_TRANSACTIONS}
        assert (await end(client, "x", *producer)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (await settled(client, "x")).transaction_state == "CompleteCommit"
    assert (await read_committed(client)).high_watermark == 1


def locked(broker: MemoryBroker) -> AbstractAsyncContextManager[None]:
    """Nothing can be appended to t-0."""
    running = broker.node.broker
    assert running is not None
    return running.locked(running.find("t", 0).log)


async def init_once(client: Client, name: str) -> int:
    """The error code of one InitProducerId."""
    from wire.messages.init_producer_id import InitProducerIdRequest

    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
    return int((await client.ask(request)).error_code)


async def test_a_producer_waits_for_its_last_transaction(client: Client) -> None:
    """Kafka's clients would get CONCURRENT_TRANSACTIONS and pause."""
    await create_topic(client, "t")
    producer = await init(client, "x")
    for _ in range(20):
        assert await add_partitions(client, "x", *producer, T0) == {T0: 0}
        assert (await end(client, "x", *producer)).error_code == 0
    await add_partitions(client, "x", *producer, T0)
    assert await init_once(client, "x") == 0, "the open transaction is aborted first"


@pytest.mark.parametrize("is_created_again", [False, True])
async def test_r15_partitions_of_deleted_topics_need_no_marker(client: Client, is_created_again: bool) -> None:
    await create_topic(client, "t")
    await create_topic(client, "gone", partitions=2)
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, T0, ("gone", 0), ("gone", 1))
    await delete_topic(client, "gone")
    if is_created_again:
        await create_topic(client, "gone", partitions=1)
    assert (await end(client, "x", *producer)).error_code == 0
    assert (await settled(client, "x")).transaction_state == "CompleteCommit"
    if is_created_again:
        read = await read_committed(client, "gone")
        assert read.last_stable_offset == read.high_watermark


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit"])
async def test_r11_a_coordinator_that_restarts_continues_in_every_state(state: str, version: int) -> None:
    end_version = 5 if version == 2 else 4
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await finalize_transaction_version(client, version)
        producer = await init(client, "x")
        if state != "Empty":
            await add_partitions(client, "x", *producer, T0)
            assert await write(client, "x", producer) == 0
        async with locked(broker) if state.startswith("Prepare") else nullcontext():
            if state not in ("Empty", "Ongoing"):
                answer = await end(client, "x", *producer, is_commit=state.endswith("Commit"), version=end_version)
                assert answer.error_code == 0
            if state.startswith("Complete"):
                await settled(client, "x")
            before = await described(client, "x")
            disk = broker.disk.crash(Loss.PROCESS_DEATH)
    assert before.transaction_state == state
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        if state.startswith("Prepare"):
            found = await settled(client, "x")
            assert found.transaction_state == state.replace("Prepare", "Complete")
        else:
            assert await described(client, "x") == before
        if state == "Ongoing":
            assert (await end(client, "x", *producer, version=end_version)).error_code == 0
            assert (await settled(client, "x")).transaction_state == "CompleteCommit"
        read = await read_committed(client)
        assert read.last_stable_offset == read.high_watermark == (0 if state == "Empty" else 2)
        assert await init(client, "x") == (producer[0], (await described(client, "x")).producer_epoch)


async def test_idle_ids_expire_with_tombstones() -> None:
    async with memory_broker(settings=TIMES) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        producer = await init(client, "open", timeout_ms=900_000)
        await add_partitions(client, "open", *producer, T0)
        for number in range(3):
            await init(client, f"idle-{number}")
        await trio.sleep(70)
        assert await listed(client) == {"open": "Ongoing"}
        assert (await described(client, "idle-0")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        disk = broker.disk
    async with memory_broker(disk, settings=TIMES) as broker:
        assert await listed(await broker.connect()) == {"open": "Ongoing"}


async def test_the_id_that_was_idle_longest_makes_room() -> None:
    own = {
        "kbroker.max.transactional.ids": 3,
        "transaction.state.log.num.partitions": 1,
        "kbroker.max.partitions.per.transaction": 2,
    }
    async with memory_broker(settings=own) as broker:
        client = await broker.connect()
        await create_topic(client, "t", partitions=3)
        names = ["a", "b", "c"]
        producers = {name: await init(client, name) for name in names}
        await add_partitions(client, "a", *producers["a"], T0)
        await init(client, "d")
        assert await listed(client) == {"a": "Ongoing", "c": "Empty", "d": "Empty"}
        assert (await end(client, "b", *producers["b"])).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        for name in ("c", "d"):
            await add_partitions(client, name, *await init(client, name), T0)
        assert (await init_answer(client, "e")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        codes = await add_partitions(client, "a", *producers["a"], ("t", 1), ("t", 2))
        assert set(codes.values()) == {ErrorCode.POLICY_VIOLATION}
        assert await add_partitions(client, "a", *producers["a"], ("t", 1), T0) == {("t", 1): 0, T0: 0}
        disk = broker.disk
    async with memory_broker(disk, settings=own) as broker:
        client = await broker.connect()
        assert await listed(client) == dict.fromkeys("acd", "Ongoing")


async def test_brokers_ask_about_many_transactions_at_once(client: Client) -> None:
    await create_topic(client, "t", partitions=2)
    producers = {f"x{number}": await init(client, f"x{number}") for number in range(20)}

    def asking(*, verify_only: bool) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer_id,
                    producer_epoch=epoch + (name == "x7"),
                    verify_only=verify_only,
                    topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1] if verify_only else [0])],
                )
                for name, (producer_id, epoch) in producers.items()
            ]
        )

    for verify_only, expected in ((False, [0]), (True, [0, ErrorCode.TRANSACTION_ABORTABLE])):
        answer = await client.ask(asking(verify_only=verify_only), version=4)
        assert [one.transactional_id for one in answer.results_by_transaction] == list(producers)
        for one in answer.results_by_transaction:
            codes = [partition.partition_error_code for partition in one.topic_results[0].results_by_partition]
            fenced = [ErrorCode.PRODUCER_FENCED] * len(expected)
            assert codes == (fenced if one.transactional_id == "x7" else expected)


async def test_unknown_partitions_add_nothing(client: Client) -> None:
    await create_topic(client, "t")
    producer = await init(client, "x")
    codes = await add_partitions(client, "x", *producer, T0, ("t", 1), ("missing", 0))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {T0: ErrorCode.OPERATION_NOT_ATTEMPTED, ("t", 1): unknown, ("missing", 0): unknown}
    assert (await described(client, "x")).transaction_state == "Empty"


async def test_transactions_are_listed_by_state_id_duration_and_pattern(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    empty, first = await init(client, "empty"), await init(client, "first")
    await add_partitions(client, "first", *first, T0)
    await trio.sleep(5)
    second = await init(client, "second")
    await add_partitions(client, "second", *second, T0)
    everything = {"empty": "Empty", "first": "Ongoing", "second": "Ongoing"}
    assert await listed(client) == everything
    assert await listed(client, state_filters=["Ongoing", "?"]) == {"first": "Ongoing", "second": "Ongoing"}
    assert await listed(client, state_filters=["?"]) == {}
    assert await listed(client, producer_id_filters=[empty[0], 12345]) == {"empty": "Empty"}
    assert await listed(client, state_filters=["Ongoing"], duration_filter=4_999) == {"first": "Ongoing"}
    assert await listed(client, state_filters=["Ongoing"], duration_filter=5_000) == {}
    assert await listed(client, transactional_id_pattern="f.*t|sec") == {"first": "Ongoing"}
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern="(")
    assert (await client.ask(request)).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    answer = await client.ask(ListTransactionsRequest(state_filters=["?", "Dead", "?"], producer_id_filters=[]))
    assert answer.unknown_state_filters == ["?"]


@pytest.mark.parametrize("name", ["x" * 32_767, "\0../\n", "\u00e9\U0001f600"])
async def test_any_text_can_be_a_transactional_id(client: Client, name: str) -> None:
    assert (await init_answer(client, name)).error_code == 0
    assert await listed(client) == {name: "Empty"}


async def test_the_empty_text_is_no_transactional_id(client: Client) -> None:
    assert (await init_answer(client, "")).error_code == ErrorCode.INVALID_REQUEST
    assert (await described(client, "")).error_code == ErrorCode.INVALID_REQUEST
    assert (await end(client, "", 1, 0)).error_code == ErrorCode.INVALID_REQUEST
    assert await add_partitions(client, "", 1, 0) == {}
