"""Requests of a transactional producer whose replies are lost, or that arrive twice or late: rows R6 and R7.

With transaction.version 1 a producer keeps its epoch, and adds partitions and groups before it uses them. With version
2 each transaction has its own epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest
import trio

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import batch, create_topic, fetching, lose_the_reply, parts, produce, wanted
from tests.handlers.groups import commit, find, offsets_of
from tests.handlers.transactions import (
    add_offsets,
    add_partitions,
    commit_in_transaction,
    committing_in_transaction,
    described,
    end,
    ending,
    finalize_transaction_version,
    init,
    is_stable,
    settled,
)
from wire.errors import ErrorCode
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from wire.messages.end_txn import EndTxnResponse
from wire.messages.fetch import PartitionData
from wire.messages.init_producer_id import InitProducerIdRequest

VERSIONS = pytest.mark.parametrize("version", [1, 2])
T0 = ("t", 0)
# By transaction.version.
PRODUCE, END, COMMIT = {1: 11, 2: 12}, {1: 4, 2: 5}, {1: 4, 2: 5}


async def started(broker: MemoryBroker, version: int) -> Client:
    """A client of a broker with the topic t, a group's coordinator and a transaction.version."""
    client = await broker.connect()
    await create_topic(client, "t")
    await find(client)
    await finalize_transaction_version(client, version)
    return client


async def write(client: Client, producer: tuple[int, int], version: int, *, sequence: int = 0) -> None:
    """Produce one record in a transaction of `t`, which may begin with it."""
    if version == 1:
        assert await add_partitions(client, "t", *producer, T0) == {T0: 0}
    data = batch(
        b"v", producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, is_transactional=True
    )
    answer = await produce(client, "t", data, transactional_id="t", version=PRODUCE[version])
    assert answer.error_code == 0


async def again(ask: Callable[[], Awaitable[EndTxnResponse]]) -> EndTxnResponse:
    """Repeat a request as clients do, until no transaction is being completed."""
    while True:
        answer = await ask()
        if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            return answer
        await trio.sleep(0.01)


async def committed(client: Client) -> PartitionData:
    return parts(await client.ask(fetching("t", wanted(), read_committed=True), version=12))[0]


@VERSIONS
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("is_early", [True, False], ids=["before-markers", "after-markers"])
async def test_r6_an_end_with_a_lost_reply_is_answered_again(
    broker: MemoryBroker, version: int, is_commit: bool, is_early: bool
) -> None:
    client = await started(broker, version)
    producer_id, epoch = await init(client, "t")
    await write(client, (producer_id, epoch), version)
    running = broker.node.broker
    assert running is not None
    async with running.locked(running.find("t", 0).log) if is_early else nullcontext():
        request = ending("t", producer_id, epoch, is_commit=is_commit)
        client = await lose_the_reply(broker, request, version=END[version])
        if is_early:
            early = await end(client, "t", producer_id, epoch, is_commit=is_commit, version=END[version])
            assert early.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    for wanted_code, decision in ((ErrorCode.NONE, is_commit), (ErrorCode.INVALID_TXN_STATE, not is_commit)):
        answer = await again(
            lambda decision=decision: end(  # type: ignore[misc]
                client, "t", producer_id, epoch, is_commit=decision, version=END[version]
            )
        )
        assert answer.error_code == wanted_code
        if decision is is_commit and version == 2:
            assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
    read = await committed(client)
    assert read.high_watermark == read.last_stable_offset == 2, "one record and one marker"
    assert len(read.aborted_transactions or ()) == (not is_commit)
    # The producer goes on with the answer to its repetition.
    await write(client, (producer_id, epoch + version - 1), version, sequence=1 if version == 1 else 0)
    assert (await end(client, "t", producer_id, epoch + version - 1, version=END[version])).error_code == 0
    await settled(client, "t")
    assert (await committed(client)).last_stable_offset == 4


@VERSIONS
async def test_r6_an_end_is_answered_again_after_a_crash(version: int) -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await started(broker, version)
        producer_id, epoch = await init(client, "t")
        await write(client, (producer_id, epoch), version)
        await lose_the_reply(broker, ending("t", producer_id, epoch), version=END[version])
        disk = broker.disk.crash(Loss.PROCESS_DEATH)
    async with memory_broker(disk) as broker:
        client = await broker.connect()
        await settled(client, "t")  # which also loads it
        answer = await again(lambda: end(client, "t", producer_id, epoch, version=END[version]))
        assert answer.error_code == 0
        assert version == 1 or (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
        assert (await committed(client)).last_stable_offset == 2


@VERSIONS
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
async def test_r6_offsets_with_lost_replies_are_committed_with_their_transaction(
    broker: MemoryBroker, version: int, is_commit: bool
) -> None:
    client = await started(broker, version)
    await commit(client, {T0: 5})
    producer_id, epoch = producer = await init(client, "t")
    if version == 1:
        request = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=producer_id, producer_epoch=epoch, group_id="g"
        )
        client = await lose_the_reply(broker, request)
        assert await add_offsets(client, producer) == 0
    first = committing_in_transaction({T0: 9}, producer=producer)
    client = await lose_the_reply(broker, first, version=COMMIT[version])
    assert not await is_stable(client), "the request was executed"
    assert await commit_in_transaction(client, {T0: 9}, producer=producer, version=COMMIT[version]) == {T0: 0}
    assert await offsets_of(client) == {T0: 5}
    assert (await end(client, "t", *producer, is_commit=is_commit, version=END[version])).error_code == 0
    await settled(client, "t")
    assert await offsets_of(client) == {T0: 9 if is_commit else 5}
    # A copy of the request that arrives after the end opens no transaction and leaves no pending offset.
    late = await commit_in_transaction(client, {T0: 9}, producer=producer, version=COMMIT[version])
    assert late == {T0: ErrorCode.TRANSACTION_ABORTABLE if version == 1 else ErrorCode.INVALID_PRODUCER_EPOCH}
    assert await is_stable(client)
    assert (await described(client, "t")).transaction_state == ("CompleteCommit" if is_commit else "CompleteAbort")


@VERSIONS
async def test_r6_a_producer_with_a_lost_epoch_gets_one_that_works(broker: MemoryBroker, version: int) -> None:
    client = await started(broker, version)
    before = await init(client, "t")
    new = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    client = await lose_the_reply(broker, new)
    after = await init(client, "t")
    assert after == (before[0], before[1] + 2), "the epoch of the lost reply stays unused"
    # A producer that names its epoch gets the same answer again (KIP-360).
    next_one = InitProducerIdRequest(
        transactional_id="t", transaction_timeout_ms=60_000, producer_id=after[0], producer_epoch=after[1]
    )
    client = await lose_the_reply(broker, next_one)
    bumped = await init(client, "t", producer=after)
    assert bumped == (after[0], after[1] + 1)
    await write(client, bumped, version)
    assert (await end(client, "t", *bumped, version=END[version])).error_code == 0
    await settled(client, "t")
    assert (await committed(client)).last_stable_offset == 2


@VERSIONS
async def test_r6_a_producer_that_lost_its_epoch_aborts_what_is_open(broker: MemoryBroker, version: int) -> None:
    """The reply to the InitProducerId of a restarted producer is lost, while its predecessor has a transaction."""
    client = await started(broker, version)
    old = await init(client, "t")
    await write(client, old, version)
    new = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    client = await lose_the_reply(broker, new)
    after = await init(client, "t")
    assert after[0] == old[0]
    assert after[1] > old[1]
    fenced = await end(client, "t", *old, version=END[version])
    assert fenced.error_code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)
    read = await committed(client)
    assert read.last_stable_offset == read.high_watermark == 2, "one record and one marker"
    assert len(read.aborted_transactions or ()) == 1


@VERSIONS
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
async def test_r7_an_end_that_arrives_in_the_next_transaction(
    broker: MemoryBroker, version: int, is_commit: bool
) -> None:
    """With version 1 it ends that transaction, as in Apache Kafka, which is why version 2 exists (KIP-890)."""
    client = await started(broker, version)
    producer_id, epoch = await init(client, "t")
    await write(client, (producer_id, epoch), version)
    first = await end(client, "t", producer_id, epoch, is_commit=is_commit, version=END[version])
    assert first.error_code == 0
    await settled(client, "t")
    second = producer_id, epoch + version - 1
    await write(client, second, version, sequence=1 if version == 1 else 0)
    delayed = await broker.connect()
    late = await end(delayed, "t", producer_id, epoch, is_commit=is_commit, version=END[version])
    if version == 1:
        assert late.error_code == 0
        assert (await settled(client, "t")).transaction_state == ("CompleteCommit" if is_commit else "CompleteAbort")
        return
    assert late.error_code == ErrorCode.PRODUCER_FENCED
    state = await described(client, "t")
    assert (state.transaction_state, state.producer_epoch, len(state.topics)) == ("Ongoing", epoch + 1, 1)
    assert (await committed(client)).last_stable_offset == 2, "the record of the second one is undecided"
    running = broker.node.broker
    assert running is not None
    async with running.locked(running.find("t", 0).log):
        assert (await end(client, "t", *second, is_commit=not is_commit, version=5)).error_code == 0
        late = await end(delayed, "t", producer_id, epoch, is_commit=is_commit, version=5)
        assert late.error_code == ErrorCode.CONCURRENT_TRANSACTIONS, "its markers are being written"
    state = await settled(client, "t")
    assert state.transaction_state == ("CompleteAbort" if is_commit else "CompleteCommit")
    late = await end(delayed, "t", producer_id, epoch, is_commit=is_commit, version=5)
    assert late.error_code == ErrorCode.PRODUCER_FENCED
    read = await committed(client)
    assert read.last_stable_offset == read.high_watermark == 4, "two records and two markers"
    assert [one.first_offset for one in read.aborted_transactions or ()] == [2 if is_commit else 0]
