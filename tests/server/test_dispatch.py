"""What goes wrong in a handler, and what the client gets."""

from __future__ import annotations

import logging

import pytest
import trio

from kbroker.handlers import discover, handles
from tests.server.serving import heart, serving
from wire.errors import ErrorCode
from wire.messages.fetch import FetchRequest
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


@pytest.mark.parametrize("version", [0, 4])
@pytest.mark.parametrize(
    ("group_id", "code"),
    [
        ("refuse", ErrorCode.UNKNOWN_MEMBER_ID),
        ("disk", ErrorCode.KAFKA_STORAGE_ERROR),
        ("fault", ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_a_handler_raises_becomes_the_code_of_its_own_response(
    version: int, group_id: str, code: ErrorCode
) -> None:
    async with serving(in_memory=True, raise_faults=False) as rig:
        client = await rig.connect()
        await client.send((heart(group_id), version, 1), (heart(), version, 2))
        number, response = await client.receive(HeartbeatResponse, version)
        assert (number, response.error_code) == (1, code)
        assert (await client.receive(HeartbeatResponse, version))[0] == 2
        assert rig.count("requests.errors") == 1


async def test_a_fault_of_ours_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(in_memory=True, raise_faults=False) as rig:
        client = await rig.connect()
        await client.send((heart("fault"), 0, 1))
        await client.receive_heartbeat()
        assert rig.count("requests.faults") == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_refusal_is_no_event_for_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        await client.send((heart("refuse"), 0, 1))
        await client.receive_heartbeat()
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


async def test_produce_never_says_unknown_server_error_but_closes() -> None:
    async with serving(in_memory=True, raise_faults=False) as rig:
        client = await rig.connect()
        data = [PartitionProduceData(index=0, records=b"x")]
        request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="fault", partition_data=data)])
        await client.send((request, 7, 1))
        assert await client.ends_without_reply()
        assert rig.count("requests.faults") == 1


async def test_in_tests_a_fault_of_ours_is_raised() -> None:
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with serving(in_memory=True) as rig:
            client = await rig.connect()
            await client.send((heart("fault"), 0, 1))
            await trio.sleep_forever()


def test_handlers_are_found_by_listing_their_package() -> None:
    found = discover()
    assert list(found) == sorted(found)
    assert 18 in found
    for api_key, handler in found.items():
        assert handler.api_key == api_key
        assert handler.advertised.lowest <= handler.versions.lowest
        assert handler.advertised.highest == handler.versions.highest


def test_versions_that_are_not_declared_cannot_be_served() -> None:
    with pytest.raises(AssertionError, match="HeartbeatRequest declares 0-4, not 0-5"):
        handles(HeartbeatRequest, versions="0-5")


def test_an_api_without_a_code_for_the_whole_request_needs_on_error() -> None:
    async def fetch(request: FetchRequest, broker: object, context: object) -> None: ...

    with pytest.raises(AssertionError, match="give on_error"):
        handles(FetchRequest, versions="4-17")(fetch)
