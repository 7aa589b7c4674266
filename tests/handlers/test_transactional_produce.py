"""Transactional batches from Produce to read_committed readers, their verification, and markers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.broker import Broker
from kbroker.broker.transaction_verification import verify
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.testing.memory_node import Client, MemoryBroker
from tests.handlers.asking import (
    BROKER,
    alter_configs,
    batch,
    create_topic,
    delete_records,
    delete_topic,
    fetch_in_background,
    fetching,
    list_offset,
    parts,
    produce,
    producing,
    values,
    wanted,
)
from tests.handlers.test_authorization import Rights
from tests.handlers.transactions import add_partitions, end, finalize_transaction_version, init, settled
from wire.errors import ErrorCode
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from wire.messages.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from wire.messages.fetch import PartitionData
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

CLASSIC = 11


def sent(producer: tuple[int, int], sequence: int, *, value: bytes = b"v", transactional: bool = True) -> bytes:
    producer_id, epoch = producer
    return batch(
        value, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional
    )


async def write(
    client: Client, producer: tuple[int, int], sequence: int, *, version: int = CLASSIC, **more: Any
) -> tuple[int, int]:
    """Produce one transactional batch to t-0; returns (error code, base offset)."""
    answer = await produce(
        client, "t", sent(producer, sequence, **more), transactional_id="x", version=version, timeout_ms=5_000
    )
    return answer.error_code, answer.base_offset


async def mark(
    client: Client, producer: tuple[int, int], *partitions: int, is_commit: bool = True, **more: Any
) -> dict[int, int]:
    """WriteTxnMarkers for partitions of t; returns the error codes."""
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=list(partitions or (0,)))
    marker = WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=is_commit,
        topics=[topic],
        **{"coordinator_epoch": 0, **more},
    )
    answer = await client.ask(WriteTxnMarkersRequest(markers=[marker]), version=2)
    (found,) = answer.markers
    assert found.producer_id == producer[0]
    return {one.partition_index: one.error_code for topic in found.topics for one in topic.partitions}


async def committed(client: Client, *, offset: int = 0) -> PartitionData:
    return parts(await client.ask(fetching("t", wanted(0, offset), read_committed=True), version=12))[0]


async def producers(client: Client) -> dict[int, ProducerState]:
    answer = await client.ask(DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])]))
    (found,) = answer.topics[0].partitions
    assert found.error_code == 0
    return {one.producer_id: one for one in found.active_producers}


class SlowCoordinator:
    """The coordinator of a broker, but its answers wait for `may_answer`. It keeps the requests."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.may_answer = trio.Event()
        self._real = domain(broker).transactions
        domain(broker).transaction_verifier.coordinator = self

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, *, api_version: int
    ) -> AddPartitionsToTxnResponse:
        self.requests.append(request)
        await self.may_answer.wait()
        return await self._real.add_partitions(request, api_version=api_version)


def domain(broker: MemoryBroker) -> Broker:
    found = broker.node.broker
    assert found is not None
    return found


# --- a transaction ---


@pytest.mark.parametrize("is_commit", [True, False])
async def test_readers_of_committed_records_wait_for_the_marker(client: Client, is_commit: bool) -> None:
    await create_topic(client, "t")
    producer = await init(client, "x")
    assert await add_partitions(client, "x", *producer, ("t", 0)) == {("t", 0): 0}
    assert await write(client, producer, 0, value=b"a") == (0, 0)
    assert (await produce(client, "t", batch(b"other"))).base_offset == 1
    assert await write(client, producer, 1, value=b"b") == (0, 2)
    found = await committed(client)
    assert (values(found), found.last_stable_offset, found.high_watermark) == ([], 0, 3)
    assert found.aborted_transactions == []
    assert (await list_offset(client, "t", -1, isolation_level=1))[1] == 0
    assert (await list_offset(client, "t", -1))[1] == 3
    state = (await producers(client))[producer[0]]
    assert (state.current_txn_start_offset, state.coordinator_epoch, state.last_sequence) == (0, -1, 1)
    await end(client, "x", *producer, is_commit=is_commit)
    await settled(client, "x")
    found = await committed(client)
    assert found.last_stable_offset == 4
    assert found.aborted_transactions is not None
    aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions]
    assert aborted == ([] if is_commit else [(producer[0], 0)])
    assert values(found)[:3] == [b"a", b"other", b"b"], "consumers drop the aborted ones"
    assert parts(await client.ask(fetching("t", wanted()), version=12))[0].aborted_transactions is None
    state = (await producers(client))[producer[0]]
    assert (state.current_txn_start_offset, state.coordinator_epoch) == (-1, 0)


async def test_a_waiting_reader_wakes_when_the_marker_moves_the_stable_offset(
    broker: MemoryBroker, nursery: trio.Nursery
) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, ("t", 0))
    await write(client, producer, 0)
    request = fetching("t", wanted(), max_wait_ms=30_000, read_committed=True)
    answers = await fetch_in_background(nursery, broker, request)
    began = trio.current_time()
    await end(client, "x", *producer)
    await wait_all_tasks_blocked()
    ((answered, answer),) = answers
    assert answered - began < 1
    assert values(parts(answer)[0])[0] == b"v"


async def test_the_stable_offset_is_never_below_the_start_of_the_log(client: Client) -> None:
    await create_topic(client, "t")
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, ("t", 0))
    for sequence in range(4):
        await write(client, producer, sequence)
    assert await delete_records(client, "t", 3) == (0, 3)
    found = await committed(client, offset=3)
    assert (found.error_code, found.last_stable_offset, found.log_start_offset, values(found)) == (0, 3, 3, [])
    await end(client, "x", *producer, is_commit=False)
    await settled(client, "x")
    found = await committed(client, offset=3)
    assert found.aborted_transactions is not None
    assert [one.first_offset for one in found.aborted_transactions] == [0]


# --- verification ---


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
async def test_records_of_an_unopened_transaction_are_refused(client: Client, version: int, code: ErrorCode) -> None:
    await create_topic(client, "t", partitions=2)
    producer = await init(client, "x")
    request = producing(("t", 0, sent(producer, 0)), ("t", 1, batch(b"v")), transactional_id="x")
    answer = await client.ask(request, version=version)
    refused, accepted = answer.responses[0].partition_responses
    assert (refused.error_code, refused.base_offset, refused.log_start_offset) == (code, -1, -1)
    assert accepted.error_code == 0
    assert await list_offset(client, "t", -1) == (0, 0, -1, 0)


@pytest.mark.parametrize("version", [11, 12])
async def test_without_a_coordinator_producers_retry(client: Client, version: int) -> None:
    await create_topic(client, "t")
    code, _ = await write(client, (1, 0), 0, version=version)
    assert code == ErrorCode.NOT_ENOUGH_REPLICAS


async def test_version_12_adds_the_partition(client: Client) -> None:
    await create_topic(client, "t")
    await finalize_transaction_version(client, 2)
    producer = await init(client, "x")
    assert await write(client, producer, 0, version=12) == (0, 0)
    assert await write(client, producer, 1, version=12) == (0, 1)
    await end(client, "x", *producer, version=5)
    await settled(client, "x")
    assert (await committed(client)).last_stable_offset == 3


async def test_version_13_names_topics_by_id(client: Client) -> None:
    topic_id = await create_topic(client, "t")
    await finalize_transaction_version(client, 2)
    producer = await init(client, "x")
    topics = [
        TopicProduceData(topic_id=one, partition_data=[PartitionProduceData(index=0, records=sent(producer, 0))])
        for one in (topic_id, uuid4())
    ]
    request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1_000, topic_data=topics)
    known, unknown = (await client.ask(request, version=13)).responses
    assert (known.topic_id, known.name, known.partition_responses[0].error_code) == (topic_id, "", 0)
    assert unknown.topic_id == topics[1].topic_id
    assert unknown.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_one_request_has_one_transactional_producer(client: Client) -> None:
    await create_topic(client, "t", partitions=3)
    request = producing(
        ("t", 0, sent((1, 0), 0)), ("t", 1, sent((2, 0), 0)), ("t", 2, batch(b"v")), transactional_id="x"
    )
    answer = await client.ask(request, version=CLASSIC)
    codes = [one.error_code for one in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3
    assert (await list_offset(client, "t", -1, partition=2))[1] == 0, "nothing was appended"


async def test_another_producer_id_has_no_part_in_the_transaction(client: Client) -> None:
    await create_topic(client, "t")
    producer_id, epoch = await init(client, "x")
    assert (await write(client, (producer_id + 1, epoch), 0))[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    await init(client, "x")  # fences epoch 0
    assert (await write(client, (producer_id, epoch), 0))[0] == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_fenced_epoch_is_refused_without_a_request(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    coordinator = SlowCoordinator(broker)
    assert await mark(client, (5, 3)) == {0: 0}
    assert (await write(client, (5, 2), 0))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert not coordinator.requests


async def test_verification_can_be_disabled_at_run_time(client: Client) -> None:
    await create_topic(client, "t")
    producer = await init(client, "x")
    assert (await write(client, producer, 0))[0] == ErrorCode.TRANSACTION_ABORTABLE
    await alter_configs(client, BROKER, "", {"transaction.partition.verification.enable": "false"})
    assert await write(client, producer, 0) == (0, 0)
    assert (await committed(client)).last_stable_offset == 0
    await alter_configs(client, BROKER, "", {"transaction.partition.verification.enable": None})
    assert await write(client, producer, 1) == (0, 1), "it is open now"


async def test_a_marker_during_the_verification_refuses_the_append(broker: MemoryBroker, nursery: trio.Nursery) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, ("t", 0))
    coordinator, answers = SlowCoordinator(broker), []

    async def write_slowly() -> None:
        answers.append(await write(await broker.connect(), producer, 0))

    nursery.start_soon(write_slowly)
    await wait_all_tasks_blocked()
    assert await mark(client, producer, is_commit=False) == {0: 0}
    coordinator.may_answer.set()
    await wait_all_tasks_blocked()
    assert answers == [(ErrorCode.INVALID_TXN_STATE, -1)]
    assert (await committed(client)).last_stable_offset == 1, "no transaction was left open"


@pytest.mark.parametrize("created_again", [False, True])
async def test_a_topic_may_be_deleted_during_the_verification(
    broker: MemoryBroker, nursery: trio.Nursery, created_again: bool
) -> None:
    client = await broker.connect()
    topic_id = await create_topic(client, "t")
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, ("t", 0))
    coordinator = SlowCoordinator(broker)
    codes: dict[int, int] = {}

    async def write_slowly(version: int) -> None:
        data = [PartitionProduceData(index=0, records=sent(producer, 0))]
        topic = TopicProduceData(name="t", topic_id=topic_id, partition_data=data)
        request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1_000, topic_data=[topic])
        answer = await (await broker.connect()).ask(request, version=version)
        codes[version] = answer.responses[0].partition_responses[0].error_code

    for version in (CLASSIC, 13):
        nursery.start_soon(write_slowly, version)
    await wait_all_tasks_blocked()
    await delete_topic(client, "t")
    if created_again:
        await create_topic(client, "t")
    coordinator.may_answer.set()
    await wait_all_tasks_blocked()
    if created_again:
        assert codes == {CLASSIC: ErrorCode.INVALID_TXN_STATE, 13: ErrorCode.INCONSISTENT_TOPIC_ID}
        assert (await committed(client)).high_watermark == 0
    else:
        assert codes == dict.fromkeys((CLASSIC, 13), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def write_to_t_and(topic: str, client: Client, producer: tuple[int, int]) -> dict[str, int]:
    """Produce a transactional batch to t-0 and another topic; returns the error codes."""
    request = producing(("t", 0, sent(producer, 0)), (topic, 0, sent(producer, 0)))
    request.transactional_id = "x"
    answer = await client.ask(request, version=12)
    return {one.name: one.partition_responses[0].error_code for one in answer.responses}


async def test_a_topic_created_during_the_verification_is_still_unknown(
    broker: MemoryBroker, nursery: trio.Nursery
) -> None:
    client = await broker.connect()
    await finalize_transaction_version(client, 2)
    await create_topic(client, "t")
    producer = await init(client, "x")
    coordinator, codes = SlowCoordinator(broker), dict[str, int]()

    async def write_slowly() -> None:
        codes.update(await write_to_t_and("late", await broker.connect(), producer))

    nursery.start_soon(write_slowly)
    await wait_all_tasks_blocked()
    await create_topic(client, "late")
    coordinator.may_answer.set()
    await wait_all_tasks_blocked()
    assert codes == {"t": 0, "late": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_right_that_arrives_during_the_verification_is_too_late(
    broker: MemoryBroker, nursery: trio.Nursery
) -> None:
    client = await broker.connect()
    await finalize_transaction_version(client, 2)
    await create_topic(client, "t")
    await create_topic(client, "secret")
    producer = await init(client, "x")
    coordinator, codes = SlowCoordinator(broker), dict[str, int]()
    rights = domain(broker).authorizer = Rights()
    mine = [(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"), (Operation.WRITE, ResourceType.TOPIC, "t")]
    rights.grant(*mine)

    async def write_slowly() -> None:
        codes.update(await write_to_t_and("secret", await broker.connect(), producer))

    nursery.start_soon(write_slowly)
    await wait_all_tasks_blocked()
    events = list(rights.denials)
    rights.grant(*mine, (Operation.WRITE, ResourceType.TOPIC, "secret"))
    coordinator.may_answer.set()
    await wait_all_tasks_blocked()
    assert codes == {"t": 0, "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert events + rights.denials == [("Produce", Operation.WRITE, ResourceType.TOPIC, "secret")]


async def test_producers_that_wait_share_the_next_request(broker: MemoryBroker, nursery: trio.Nursery) -> None:
    client = await broker.connect()
    await create_topic(client, "t", partitions=4)
    made = {name: await init(client, name) for name in ("a", "b", "c", "d")}
    for name, producer in made.items():
        await add_partitions(client, name, *producer, ("t", 0), ("t", 1))
    coordinator, codes = SlowCoordinator(broker), []

    async def write_one(name: str, partition: int) -> None:
        answer = await produce(
            await broker.connect(),
            "t",
            sent(made[name], 0),
            partition=partition,
            transactional_id=name,
            version=CLASSIC,
        )
        codes.append(answer.error_code)

    for name in made:
        nursery.start_soon(write_one, name, 0)
        await wait_all_tasks_blocked()
    nursery.start_soon(write_one, "d", 1)
    await wait_all_tasks_blocked()
    coordinator.may_answer.set()
    await wait_all_tasks_blocked()
    asked = [[one.transactional_id for one in request.transactions] for request in coordinator.requests]
    assert asked == [["a"], ["b", "c", "d"], ["d"]], "no id twice in a request"
    assert codes == [0] * 5


async def test_a_cancelled_request_does_not_stop_those_behind_it(broker: MemoryBroker, nursery: trio.Nursery) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    made = {name: await init(client, name) for name in ("a", "b")}
    for name, producer in made.items():
        await add_partitions(client, name, *producer, ("t", 0))
    coordinator, answers = SlowCoordinator(broker), []
    first = trio.CancelScope()

    async def ask(name: str, scope: trio.CancelScope) -> None:

        with scope:
            answers.append(await verify(domain(broker), name, *made[name], [("t", 0)], adds=False))

    nursery.start_soon(ask, "a", first)
    await wait_all_tasks_blocked()
    nursery.start_soon(ask, "b", trio.CancelScope())
    await wait_all_tasks_blocked()
    first.cancel()
    coordinator.may_answer.set()
    await wait_all_tasks_blocked()
    assert answers == [{("t", 0): ErrorCode.NONE}]


# --- markers ---


async def test_each_partition_of_a_marker_has_its_own_result(client: Client) -> None:
    await create_topic(client, "t", partitions=3)
    assert await mark(client, (5, 2), 1, coordinator_epoch=7) == {1: 0}
    assert await mark(client, (5, 3), 0, 1, 8, coordinator_epoch=6) == {
        0: 0,
        1: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        8: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await mark(client, (5, 1), 0, 2, coordinator_epoch=6) == {0: ErrorCode.INVALID_PRODUCER_EPOCH, 2: 0}


async def test_a_marker_is_no_record_for_clients_to_write(client: Client) -> None:
    await create_topic(client, "t")
    control = batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True, is_control=True)
    answer = await produce(client, "t", control, transactional_id="x", version=CLASSIC)
    assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (await list_offset(client, "t", -1))[1] == 0


async def test_r6_a_lost_reply_of_a_transactional_batch_can_be_repeated(client: Client) -> None:
    await create_topic(client, "t")
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, ("t", 0))
    for sequence in range(7):
        assert await write(client, producer, sequence, version=CLASSIC) == (0, sequence)
    for sequence in range(2, 7):
        assert await write(client, producer, sequence, version=CLASSIC) == (0, sequence)
    await end(client, "x", *producer)
    await settled(client, "x")
    await add_partitions(client, "x", *producer, ("t", 0))
    assert await write(client, producer, 6, version=CLASSIC) == (0, 6), "r6: also after the marker"


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_repetition_that_arrives_after_the_end_harms_no_later_transaction(
    client: Client, is_commit: bool
) -> None:
    await create_topic(client, "t")
    producer = await init(client, "x")
    await add_partitions(client, "x", *producer, ("t", 0))
    assert await write(client, producer, 0) == (0, 0)
    assert await write(client, producer, 1) == (0, 1)
    await end(client, "x", *producer, is_commit=is_commit)
    await settled(client, "x")
    assert await write(client, producer, 0) == (0, 0), "the original's offset, though no transaction is open"
    assert (await producers(client))[producer[0]].current_txn_start_offset == -1
    await add_partitions(client, "x", *producer, ("t", 0))
    assert await write(client, producer, 2) == (0, 3), "not OUT_OF_ORDER_SEQUENCE_NUMBER"
