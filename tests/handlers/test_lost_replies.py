"""A reply is lost, and the client sends the request again on a new connection: row R6.

The broker has executed the first request, so it must recognize the second one, or execute it again without harm.
"""

from __future__ import annotations

import pytest

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import MemoryBroker, memory_broker
from tests.handlers.asking import NAMED, batch, create_topic, lose_the_reply, new_producer, producing, read
from tests.handlers.groups import beat, commit, committing, find, form, offsets_of
from wire.errors import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.produce import PartitionProduceResponse

ROUNDS = 8
WINDOW = 5


@pytest.mark.parametrize("lost", range(ROUNDS))
async def test_r6_a_commit_with_a_lost_reply_can_be_repeated(broker: MemoryBroker, lost: int) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    await find(client)
    joined = await form(client)
    for number in range(ROUNDS):
        wanted = {("t", 0): 10 * number}
        if number == lost:
            client = await lose_the_reply(broker, committing(wanted, joined=joined), version=9)
            assert await offsets_of(client) == wanted, "the request was executed"
        assert await commit(client, wanted, joined=joined) == {("t", 0): 0}
        assert await offsets_of(client) == wanted
    assert await beat(client, joined) == 0, "the group is unchanged"
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
        assert await offsets_of(await again.connect()) == wanted


@pytest.mark.parametrize("lost", range(ROUNDS))
async def test_r6_k4_a_repeated_batch_gets_its_original_offset(broker: MemoryBroker, lost: int) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    producer_id = await new_producer(client)
    for number in range(ROUNDS):
        request = numbered(producer_id, number)
        if number == lost:
            client = await lose_the_reply(broker, request, version=NAMED)
        answer = produced(await client.ask(request, version=NAMED))
        assert (answer.error_code, answer.base_offset) == (0, number)
    assert await read(client, "t") == [b"%d" % number for number in range(ROUNDS)]


@pytest.mark.parametrize("later", range(1, WINDOW + 3))
async def test_r6_k4_only_the_last_five_batches_are_recognized(broker: MemoryBroker, later: int) -> None:
    """A client also treats code 46 as success; after -1 it would write the batch again."""
    client = await broker.connect()
    await create_topic(client, "t")
    producer_id = await new_producer(client)
    client = await lose_the_reply(broker, numbered(producer_id, 0), version=NAMED)
    for number in range(1, later + 1):
        assert produced(await client.ask(numbered(producer_id, number), version=NAMED)).error_code == 0
    answer = produced(await client.ask(numbered(producer_id, 0), version=NAMED))
    if later < WINDOW:
        assert (answer.error_code, answer.base_offset) == (0, 0)
    else:
        assert (answer.error_code, answer.base_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await read(client, "t") == [b"%d" % number for number in range(later + 1)]


async def test_r6_a_producer_with_a_lost_id_gets_another_one(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    before = await new_producer(client)
    client = await lose_the_reply(broker, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000))
    after = await new_producer(client)
    assert after > before
    assert produced(await client.ask(numbered(after, 0), version=NAMED)).base_offset == 0


def numbered(producer_id: int, number: int) -> object:
    """The Produce of one batch of an idempotent producer."""
    records = batch(b"%d" % number, producer_id=producer_id, producer_epoch=0, base_sequence=number)
    return producing(("t", 0, records))


def produced(answer: object) -> PartitionProduceResponse:
    found = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
    assert isinstance(found, PartitionProduceResponse)
    return found
