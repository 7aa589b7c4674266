"""Defects that fuzzing found, each with its smallest input."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import pytest

from kbroker.config import Settings
from kbroker.config.sasl import SaslSettings
from kbroker.controller.quorum_state import parse_quorum_state
from kbroker.handlers.controller import elect_leaders
from kbroker.handlers.find_coordinator import find_coordinator
from kbroker.metadata.errors import UnusableMetadata
from kbroker.security.certificates import alternative_names, subject
from kbroker.security.sasl.jwks import UnreadableKeys, usable_keys
from kbroker.security.sasl.oauth import OauthExchange, TokenRules
from kbroker.storage.checkpoint import parse_number, parse_offsets
from kbroker.storage.directory_names import CLEAN_SHUTDOWN
from kbroker.storage.formatting import parse_identity, read_clean_shutdown
from kbroker.storage.leader_epoch import parse_epochs
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import RemoteStorageError
from kbroker.tiered.layout import MANIFEST, Manifest, object_name
from tests.security.certificates import Authority
from wire.codec import decode, encode
from wire.errors import ErrorCode
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.types import uuid_to_text

DEEP = b"[" * 100_000


def test_every_version_of_elect_leaders_can_be_refused() -> None:
    """Version 0 has no error code at the top: the refusal could not be encoded."""
    asked = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
    for version in range(3):
        refusal = elect_leaders.refusal(asked, ErrorCode.NOT_CONTROLLER, version)
        assert refusal.error_code == (ErrorCode.NOT_CONTROLLER if version else 0)
        assert refusal.replica_election_results[0].partition_result[0].error_code == ErrorCode.NOT_CONTROLLER
        assert encode(refusal, version)


def test_a_find_coordinator_without_keys_can_be_refused() -> None:
    """From version 4 on the refusal could not be encoded."""
    for version in range(4, 7):
        refusal = find_coordinator.refusal(FindCoordinatorRequest(), ErrorCode.COORDINATOR_NOT_AVAILABLE, version)
        assert encode(refusal, version)


@pytest.mark.parametrize("word", ["1_0", "+1", " 1", "1e3", "\u0661", "--1", "-", "", str(1 << 63), "9" * 5_000])
def test_d3_d4_checkpoints_take_plain_numbers_of_64_bits_only(word: str) -> None:
    with pytest.raises(ValueError, match=r"number|exceeds"):
        parse_number(word)
    with pytest.raises(ValueError, match=r"number|exceeds|line"):
        parse_offsets(f"0\n1\norders 0 {word}\n")


@pytest.mark.parametrize("line", ["0 1_000", f"{1 << 31} 5", f"0 {1 << 63}", "-5 7", "0 -7"])
def test_d4_impossible_leader_epochs_are_malformed(line: str) -> None:
    with pytest.raises(ValueError, match=r"number|exceeds|follow"):
        parse_epochs(f"0\n1\n{line}\n")


def test_d12_a_node_id_beyond_32_bits_is_malformed() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        parse_identity(f"version=1\ncluster.id=c\nnode.id={1 << 40}\ndirectory.id={uuid_to_text(UUID(int=7))}\n")


@pytest.mark.parametrize(
    "content", [DEEP, b"[]", b'{"data_version":0,"leaderId":0,"leaderEpoch":99999999999,"votedId":-1}']
)
def test_c4_a_damaged_quorum_state_stops_the_start(content: bytes) -> None:
    with pytest.raises(UnusableMetadata):
        parse_quorum_state(content, "quorum-state")


@pytest.mark.parametrize(
    "content", [DEEP, b'{"brokerEpoch":Infinity}', b'{"brokerEpoch":1e300}', b'{"brokerEpoch":"x"}']
)
def test_a_damaged_clean_shutdown_marker_counts_as_none(content: bytes) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    file = disk.open(f"/d/{CLEAN_SHUTDOWN}", create=True)
    file.pwrite(content, 0)
    file.close()
    assert read_clean_shutdown(disk, "/d") == -1


@pytest.mark.parametrize(
    "changed",
    [
        {"end_offset": 1 << 63},
        {"broker_id": 1 << 31},
        {"segment_leader_epochs": [[1 << 31, 0]]},
        {"max_timestamp_ms": 1 << 70},
    ],
)
def test_m7_a_manifest_with_numbers_that_no_record_can_hold_is_refused(changed: dict[str, Any]) -> None:
    document = {
        "version": 1, "cluster_id": "c", "topic": "t", "topic_id": uuid_to_text(UUID(int=1)), "partition": 0,
        "segment_id": uuid_to_text(UUID(int=2)), "start_offset": 0, "end_offset": 9, "max_timestamp_ms": 1,
        "broker_id": 1, "event_timestamp_ms": 1, "segment_leader_epochs": [[0, 0]], "segment_size_in_bytes": 5,
        "txn_index_empty": True, "files": {},
    }  # fmt: skip
    whole = Manifest.parse(json.dumps(document).encode())
    name = object_name(whole.metadata, MANIFEST)
    assert Manifest.parse_named(json.dumps(document).encode(), name) == whole
    with pytest.raises(RemoteStorageError, match="impossible"):
        Manifest.parse_named(json.dumps(document | changed).encode(), name)


@pytest.mark.parametrize(
    "changed", [{"exp": 10**400}, {"nbf": -(10**400)}, {"iat": float("nan")}, {"exp": float("inf")}, {"sub": "\ud800"}]
)
def test_x8_claims_that_are_no_times_or_no_text_are_refused(changed: dict[str, Any]) -> None:
    """NaN and huge numbers break comparisons, and half a character has no encoding."""
    settings = Settings.load(
        overrides=["kbroker.sasl.oauthbearer.unsecured=true"], defaults={"log.dirs": "/none"}
    ).for_listener(SaslSettings, "SASL")
    exchange = OauthExchange(TokenRules(settings, None, lambda: 1_000_000))
    claims = {"sub": "alice", "exp": 2_000, "iat": 1_000} | changed
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in ({"alg": "none"}, claims)]
    step = exchange.respond(b"n,,\x01auth=Bearer %b.%b.\x01\x01" % tuple(parts))
    assert step[:3] == (b'{"status":"invalid_token"}', None, None)
    assert step.refusal is not None


def test_x6_a_damaged_certificate_is_a_declared_error() -> None:
    """It was an IndexError, which the handshake does not catch."""
    der = Authority().sign(names=("a.example",)).der
    at = der.rindex(b"\x06\x03\x55\x04\x03")
    with pytest.raises(ValueError, match="empty object identifier"):
        subject(der[:at] + b"\x06\0\x0c\x0a" + der[at + 2 : at + 5] + der[at + 7 :])
    at = der.rindex(b"\x06\x03\x55\x1d\x11")
    with pytest.raises(ValueError, match="values to unpack"):
        alternative_names(der[: at - 1] + b"\0" + der[at:])


def test_x8_keys_that_are_nested_too_deeply_are_unreadable() -> None:
    with pytest.raises(UnreadableKeys):
        usable_keys(DEEP)


def test_w4_a_null_whose_length_takes_two_bytes_is_null() -> None:
    """Kafka's clients write one byte, and Kafka reads both. The codec refused two for strings, but not for arrays."""
    asked = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
    body = encode(asked, 1)
    nulls = [at for at in range(8, len(body) - 1) if body[at] == 0]
    assert len(nulls) == 6, "two texts before the time-out, a list, two texts and a list behind it"
    for at in nulls:
        changed = body[:at] + b"\x80\x00" + body[at + 1 :]
        assert decode(ConsumerGroupHeartbeatRequest, 1, changed, exact=True) == asked
