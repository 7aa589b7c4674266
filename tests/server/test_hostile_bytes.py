"""Malformed and hostile bytes: rows W1 to W4. The server closes the connection, and nothing else happens."""

from __future__ import annotations

import logging
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator

import pytest
import trio

from tests.server.serving import Client, Rig, framed, heart, serving
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsResponse

LIMIT = 100 * 1024 * 1024


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A server on real sockets; every test ends within seconds."""
    with trio.fail_after(20):
        async with serving(in_memory=False) as running:
            yield running


def request(api_key: int, version: int, rest: bytes = b"", *, client_id: bytes = b"raw") -> bytes:
    """A frame with a v1 header."""
    body = struct.pack(">hhih", api_key, version, 1, len(client_id)) + client_id + rest
    return struct.pack(">i", len(body)) + body


async def is_served(rig: Rig) -> bool:
    """Whether the server still answers others."""
    client = await rig.connect()
    await client.send((heart(), 0, 1))
    return await client.receive_heartbeat() == (1, 0)


async def sent(rig: Rig, data: bytes) -> Client:
    """A new connection on which `data` was sent."""
    client = await rig.connect()
    await client.stream.send([data])
    return client


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", -1), id="minus one"),
        pytest.param(struct.pack(">i", -(2**31)), id="the least"),
        pytest.param(struct.pack(">i", LIMIT + 1), id="one too large"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="2 GiB"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", id="HTTP"),
        pytest.param(bytes.fromhex("1603010200010001fc0303"), id="TLS hello"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="SSH"),
    ],
)
async def test_w1_an_impossible_length_closes_the_connection_without_a_reply(rig: Rig, data: bytes) -> None:
    client = await sent(rig, data)
    assert await client.ends_without_reply()
    assert rig.count("connections.closed_for_fault") == 1
    assert await is_served(rig)


async def test_w1_an_announced_length_allocates_nothing(rig: Rig) -> None:
    tracemalloc.start()
    try:
        clients = [await sent(rig, struct.pack(">i", LIMIT) + b"x") for _ in range(20)]
        while sum(connection.frames.pending_bytes for connection in rig.server.connections) < 5 * len(clients):
            await trio.lowlevel.checkpoint()
        assert tracemalloc.get_traced_memory()[1] < 20 * 512 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", 0), id="no header"),
        pytest.param(struct.pack(">i", 5) + b"\0\0\0\7\0", id="header cut"),
        pytest.param(struct.pack(">ihhih", 10, 12, 0, 1, 100), id="client id cut"),
        pytest.param(struct.pack(">ihhih", 10, 12, 0, 1, -2), id="client id of -2 bytes"),
        pytest.param(request(12, 0, client_id=b"\xff\xfe"), id="client id is no text"),
    ],
)
async def test_w2_a_malformed_header_closes_the_connection(rig: Rig, data: bytes) -> None:
    client = await sent(rig, data)
    assert await client.ends_without_reply()
    assert rig.count("connections.closed_for_fault") == 1
    assert rig.count("requests.Heartbeat") == 0


@pytest.mark.parametrize("end", [2, 4, 10, -1])
async def test_w2_a_truncated_request_is_not_applied(rig: Rig, end: int) -> None:
    client = await sent(rig, framed(heart(), 0, 1)[:end])
    client.stream.close()
    await rig.until("connections.closed_for_fault", 1)
    assert rig.count("requests.Heartbeat") == 0


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(0, 0), (0, 2), (0, 12), (0, 14), (12, 5), (12, -1), (4, 0), (62, 0), (200, 0), (-1, 0), (32767, 32767)],
)
async def test_w3_an_unserved_api_closes_the_connection_without_a_reply(rig: Rig, api_key: int, version: int) -> None:
    client = await sent(rig, request(api_key, version, bytes(100)))
    assert await client.ends_without_reply()
    assert rig.count("connections.closed_for_fault") == 1


@pytest.mark.parametrize("version", [5, 9, 32767])
async def test_w3_unknown_versions_of_api_versions_are_answered_in_version_0(rig: Rig, version: int) -> None:
    client = await sent(rig, request(18, version, b"\0" + b"a body that nobody knows"))
    number, response = await client.receive(ApiVersionsResponse, 0)
    assert (number, response.error_code) == (1, ErrorCode.UNSUPPORTED_VERSION)
    assert [(one.api_key, one.min_version, one.max_version) for one in response.api_keys] == [(18, 0, 4)]
    await client.stream.send([request(18, 0)])
    _, response = await client.receive(ApiVersionsResponse, 0)
    assert [(one.api_key, one.min_version, one.max_version) for one in response.api_keys] == [
        (0, 0, 11),
        (1, 4, 17),
        (12, 0, 4),
        (18, 0, 4),
    ]


async def test_w3_unknown_api_versions_after_an_old_header_close_the_connection(rig: Rig) -> None:
    client = await sent(rig, request(18, 9))
    assert await client.ends_without_reply()


async def test_w3_one_address_gets_one_log_line(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="kbroker"):
        for _ in range(30):
            assert await (await sent(rig, request(200, 0))).ends_without_reply()
    assert rig.count("connections.closed_for_fault") == 30
    assert [record.getMessage() for record in caplog.records] == ["connection closed"]


async def test_faults_of_one_address_get_a_line_each_that_names_the_cause(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="kbroker"):
        for data in (bytes.fromhex("1603010200010001fc0303"), *(struct.pack(">i", -each) for each in (1, 22, 333))):
            assert await (await sent(rig, data)).ends_without_reply()
    reasons = [str(record.__dict__["kbroker_fields"]["reason"]) for record in caplog.records]
    assert reasons[0] == "malformed frame: a TLS handshake where a request must be: this listener has no TLS"
    assert "socket.request.max.bytes" in reasons[1]
    assert len(reasons) == 2


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request(12, 0, struct.pack(">h", -1)), id="null where nothing may be null"),
        pytest.param(request(12, 0, struct.pack(">h", 30_000) + b"short"), id="string longer than the frame"),
        pytest.param(request(12, 4, b"\0" + b"\xff" * 10), id="varint of ten bytes"),
        pytest.param(request(12, 4, b"\0" + b"\xff\xff\xff\xff\x0f"), id="string of 4 GiB"),
        pytest.param(request(12, 4, b"\2\0\0\0\0" + b"\2g\0\0\0\1\2m\0\0"), id="duplicate tag"),
        pytest.param(request(0, 7, b"\xff\xff\0\1\0\0\0\1" + struct.pack(">i", 2**31 - 1)), id="array of 2^31 topics"),
        pytest.param(request(0, 7, b"\xff\xff\0\1\0\0\0\1" + struct.pack(">i", -2)), id="array of -2 topics"),
        pytest.param(request(0, 9, b"\0" + b"\0\0\1\0\0\0\1" + b"\xff\xff\xff\xff\x0f"), id="compact array of 2^32"),
    ],
)
async def test_w4_a_malformed_body_closes_the_connection_cheaply(rig: Rig, data: bytes) -> None:
    assert await (await sent(rig, data)).ends_without_reply()  # compiles the codec
    begun = time.process_time()
    for _ in range(20):
        assert await (await sent(rig, data)).ends_without_reply()
    assert time.process_time() - begun < 20 * 0.005
    assert rig.count("connections.closed_for_fault") == 21
    assert await is_served(rig)


async def test_extra_bytes_after_a_valid_body_are_ignored(rig: Rig) -> None:
    body = struct.pack(">h", 0) + struct.pack(">i", 1) + struct.pack(">h", 0)
    client = await sent(rig, request(12, 0, body + b"surplus"))
    assert await client.receive_heartbeat() == (1, 0)
