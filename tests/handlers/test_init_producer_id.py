import pytest

from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, memory_broker
from tests.handlers.asking import new_producer
from wire.errors import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest


@pytest.mark.parametrize("version", range(6))
async def test_every_version_gives_a_new_id_at_epoch_0(client: Client, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    answers = [await client.ask(request, version=version) for _ in range(3)]
    assert {answer.error_code for answer in answers} == {answer.producer_epoch for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == 3


async def test_an_id_is_never_given_twice_even_after_crashes() -> None:
    given: list[int] = []
    disk = None
    for loss in (None, Loss.PROCESS_DEATH, Loss.ONLY_SYNCED, None):
        async with memory_broker(disk, stops_cleanly=loss is None) as broker:
            client = await broker.connect()
            given += [await new_producer(client) for _ in range(5)]
            disk = broker.disk if loss is None else broker.disk.crash(loss)
    assert len(set(given)) == len(given) == 20


async def test_ids_are_unique_across_blocks(client: Client) -> None:
    given = [await new_producer(client) for _ in range(1100)]
    assert len(set(given)) == 1100


@pytest.mark.parametrize(
    ("producer_id", "epoch", "transactional_id", "code"),
    [
        (-1, -1, None, 0),
        (7, 3, None, 0),
        (7, -1, None, ErrorCode.INVALID_REQUEST),
        (-1, 3, None, ErrorCode.INVALID_REQUEST),
        (-1, -1, "", ErrorCode.INVALID_REQUEST),
        (-1, -1, "coordinated by nobody", ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_incomplete_ids_are_refused(
    client: Client, producer_id: int, epoch: int, transactional_id: str | None, code: int
) -> None:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=1000,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
    answer = await client.ask(request)
    assert answer.error_code == code
    assert (answer.producer_epoch == 0) == (code == 0)
    assert answer.producer_id != 7, "an idempotent producer gets a new id, never its old one again"
