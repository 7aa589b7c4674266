"""Errors in handlers, and the replies that clients get for them."""

from __future__ import annotations

import logging

import pytest

from kbroker.handlers import discover, handles
from tests.server.serving import heart, serving
from wire.errors import ErrorCode
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
async def test_a_handlers_exception_becomes_the_error_code_of_its_response(
    version: int, group_id: str, code: ErrorCode
) -> None:
    async with serving(in_memory=True, logged_errors=int(group_id != "refuse")) as rig:
        client = await rig.connect()
        await client.send((heart(group_id), version, 1), (heart(), version, 2))
        number, response = await client.receive(HeartbeatResponse, version)
        assert (number, response.error_code) == (1, code)
        assert (await client.receive(HeartbeatResponse, version))[0] == 2


async def test_a_bug_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(in_memory=True, logged_errors=1) as rig:
        client = await rig.connect()
        await client.send((heart("fault"), 0, 1))
        await client.receive_heartbeat()
        assert rig.count("requests.faults") == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_refused_request_is_not_logged_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(in_memory=True) as rig:
        client = await rig.connect()
        await client.send((heart("refuse"), 0, 1))
        await client.receive_heartbeat()
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


async def test_produce_closes_instead_of_returning_unknown_server_error() -> None:
    async with serving(in_memory=True, logged_errors=1) as rig:
        client = await rig.connect()
        data = [PartitionProduceData(index=0, records=b"x")]
        request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="fault", partition_data=data)])
        await client.send((request, 7, 1))
        assert await client.ends_without_reply()
        assert rig.count("requests.faults") == 1


def test_handlers_are_found_by_listing_their_package() -> None:
    found = discover()
    assert list(found) == sorted(found)
    assert 18 in found
    for api_key, handler in found.items():
        assert handler.api_key == api_key
        assert handler.advertised.lowest <= handler.versions.lowest
        assert handler.advertised.highest == handler.versions.highest


def test_undeclared_versions_cannot_be_served() -> None:
    with pytest.raises(AssertionError, match="HeartbeatRequest declares 0-4, not 0-5"):
        handles(HeartbeatRequest, versions="0-5")
