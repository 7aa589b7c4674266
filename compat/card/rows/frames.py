"""Malformed frames: whether the broker replies, closes the connection or stays silent, and is there afterwards."""

from __future__ import annotations

import functools
import struct

from compat.card.client import Client
from compat.card.codec import Message, decode_response, encode_request
from compat.card.registry import Area
from compat.oracle.frame_table import (
    ACCEPTED_BY_KAFKA,
    ADDITIONS,
    BODIES,
    HEADERS,
    LENGTHS,
    UNKNOWN_KEYS,
    UNKNOWN_VERSIONS,
)
from compat.oracle.raw import Reply
from compat.oracle.schema import framed, request_header

AREA = Area("frames", is_harsh=True)
REFUSING = "Kafka takes it for null, none or valid; a broker may refuse it, since no client sends it"


def _reaction(data: bytes, client: Client) -> None:
    client.note("reaction", client.reaction(data))
    client.note("the broker answers others afterwards", client.is_alive())


for _label, _data in {**LENGTHS, **HEADERS, **BODIES}.items():
    AREA.add(_label, functools.partial(_reaction, _data))
for _label, _data in ACCEPTED_BY_KAFKA.items():
    AREA.add(_label, functools.partial(_reaction, _data), accepted=["close"], reason=REFUSING)
for _label, _data in ADDITIONS.items():
    AREA.add(_label, functools.partial(_reaction, _data))


@AREA.row("a frame that ends with the stream")
def _(client: Client) -> None:
    frame = encode_request("Metadata", client.newest("Metadata", 9), {"Topics": None})
    for keep in (1, 3, 4, 5, 20):
        client.note(f"after {keep} bytes", client.reaction(frame[:keep], finish=True))


@AREA.row("an unknown API")
def _(client: Client) -> None:
    for key in UNKNOWN_KEYS:
        data = framed(request_header(key, 0, 1, "card", flexible=False) + bytes(8))
        client.note(f"key {key}", client.reaction(data))


@AREA.row("a version that is not served")
def _(client: Client) -> None:
    for key, version in UNKNOWN_VERSIONS:
        data = framed(request_header(key, version, 1, "card", flexible=False) + bytes(40))
        client.note(f"key {key} version {version}", client.reaction(data))


@AREA.row("ApiVersions in an unknown version with an old header")
def _(client: Client) -> None:
    client.note("reaction", client.reaction(framed(request_header(18, 99, 1, "card", flexible=False))))


@AREA.row("requests sent ahead are answered in order")
def _(client: Client) -> None:
    apis = [("Metadata", 1), ("ApiVersions", 0), ("Metadata", 4), ("ApiVersions", 2)]
    connection = client.connection()
    for number, (api, version) in enumerate(apis):
        message: Message = {"Topics": []} if api == "Metadata" else {}
        client.send(connection, api, version, message, correlation_id=number)
    for number, (api, version) in enumerate(apis):
        got = connection.answer()
        if isinstance(got, Reply):
            decode_response(api, version, got.payload, correlation_id=number)
        client.note(f"request {number}", type(got).__name__)


@AREA.row("a frame that arrives byte by byte")
def _(client: Client) -> None:
    connection = client.connection()
    frame = encode_request("Metadata", 5, {"Topics": []})
    for place in range(len(frame)):
        connection.send(frame[place : place + 1])
    client.note("reaction", type(connection.answer()).__name__)


@AREA.row("a null client id")
def _(client: Client) -> None:
    for version, flexible in ((1, False), (9, True)):
        body = b"\x01\x00\x00\x00\x00" if flexible else bytes(4)
        data = framed(request_header(3, version, 1, None, flexible=flexible) + body)
        client.note(f"Metadata version {version}", client.reaction(data))


@AREA.row("the correlation id comes back")
def _(client: Client) -> None:
    for number in (0, -1, 2**31 - 1, -(2**31)):
        got = client.ask(encode_request("ApiVersions", 0, {}, correlation_id=number))
        client.note(
            f"{number}", struct.unpack(">i", got.payload[:4])[0] if isinstance(got, Reply) else type(got).__name__
        )
