"""Frames that stock clients and Apache Kafka 4.3.1 have exchanged can be decoded, and encode to the same bytes.

compat/clients/capture.py records them: one request and its response for each API and version of each client.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.wire.generated import declared_classes
from wire.codec import decode
from wire.framing import decode_request_header, decode_response, encode_request_frame, encode_response_frame
from wire.schema import request_class, response_class

CAPTURED = Path(__file__).parent / "fixtures" / "captured"

declared_classes()  # imports all modules
PAIRS = [
    pytest.param(pair, id=f"{file.stem}-{pair['api_key']}v{pair['version']}")
    for file in sorted(CAPTURED.glob("*.json"))
    for pair in json.loads(file.read_text())
    if request_class(pair["api_key"]) is not None
]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_captured_request_encodes_to_the_same_bytes(pair: dict[str, Any]) -> None:
    frame = bytes.fromhex(pair["request"])
    header, body = decode_request_header(frame)
    assert (header.api_key, header.api_version) == (pair["api_key"], pair["version"])
    cls = request_class(header.api_key)
    assert cls is not None
    message = decode(cls, header.api_version, body, exact=True)
    parts = encode_request_frame(
        message, header.api_version, correlation_id=header.correlation_id, client_id=header.client_id
    )
    assert joined(parts) == frame


@pytest.mark.parametrize("pair", [param for param in PAIRS if param.values[0]["response"] is not None])
def test_a_captured_response_encodes_to_the_same_bytes(pair: dict[str, Any]) -> None:
    frame = bytes.fromhex(pair["response"])
    cls = response_class(pair["api_key"])
    assert cls is not None
    correlation_id, message = decode_response(cls, pair["version"], frame)
    assert joined(encode_response_frame(correlation_id, message, pair["version"])) == frame


def test_every_client_has_frames() -> None:
    spoken = {file.stem: {pair["api_key"] for pair in json.loads(file.read_text())} for file in CAPTURED.glob("*.json")}
    assert spoken.keys() == {"aiokafka", "confluent-kafka", "java", "kafka-python", "kcat"}
    for keys in spoken.values():
        assert {0, 1, 3, 18} <= keys


def joined(parts: list[Any]) -> bytes:
    """The frame after its length."""
    return b"".join(bytes(part) for part in parts)[4:]
