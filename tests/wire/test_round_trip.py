"""Every class in every version survives a round trip, and the constructs parse what the builders write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wire.generated import class_versions, declared_classes, values
from wire.codec import decode, encode, encode_element
from wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest
from wire.structs import construct_for

PAIRS = class_versions()
EXAMPLES = settings(
    max_examples=8, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip


def test_every_class_and_version_is_covered() -> None:
    assert len(declared_classes()) > 150
    assert len(PAIRS) > 500


@pytest.mark.parametrize("cls", declared_classes(), ids=lambda cls: cls.__name__)
def test_encoded_messages_are_decoded(cls: type) -> None:
    versions = [version for declared, version in PAIRS if declared is cls]

    @EXAMPLES
    @given(st.data())
    def round_trip(data: st.DataObject) -> None:
        for version in versions:
            hold(cls, version, data.draw(values(cls, version)))

    round_trip()


def hold(cls: type, version: int, message: Any) -> None:
    encoded = encode(message, version)
    assert decode(cls, version, encoded, exact=True) == message
    assert decode(cls, version, memoryview(encoded + b"surplus")) == message
    construct = construct_for(cls, version)
    assert construct.parse(encoded) == message
    assert len(encoded) >= construct.min_size - 1


def test_strings_of_every_length_survive() -> None:
    for version in (3, 4):  # lengths of two bytes, and compact lengths
        for size in range(300):
            short, longer = "g" * size, "ö" * size
            hold(HeartbeatRequest, version, HeartbeatRequest(group_id=short, generation_id=1, member_id=longer))


@pytest.mark.parametrize("message", ["", None, "m" * 126, "m" * 127])
@pytest.mark.parametrize("count", range(3))
def test_unusual_shapes_survive(message: str | None, count: int) -> None:
    found = Coordinator(key="g", error_message=message, node_id=1, host="h", port=9092)
    for version in (4, 5, 6):
        hold(FindCoordinatorResponse, version, FindCoordinatorResponse(coordinators=[found] * count))


def test_encoded_elements_replace_their_structs() -> None:
    found = Coordinator(key="g", error_message=None, node_id=1, host="h", port=9092)
    for version in (4, 5, 6):
        ready = encode_element(found, FindCoordinatorResponse, version)
        mixed: list[Any] = [found, ready, found]
        assert encode(FindCoordinatorResponse(coordinators=mixed), version) == encode(
            FindCoordinatorResponse(coordinators=[found] * 3), version
        )
