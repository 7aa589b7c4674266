"""Declared classes: constructor, equality, repr, versions, defaults, and the registry."""

import copy
from uuid import UUID

import pytest

from tests.wire.generated import declared_classes
from wire.codec import decode, decode_prefix, encode
from wire.codegen import NotInVersion
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.messages.sasl_authenticate import SaslAuthenticateRequest
from wire.schema import Versions, maker, request_class, response_class, schema_of, struct
from wire.types import ZERO_UUID, int32, uuid_from_text, uuid_to_text


def fetch(**values: object) -> FetchRequest:
    return FetchRequest(**{"max_wait_ms": 500, "min_bytes": 1, "topics": []} | values)  # type: ignore[arg-type]


def test_fields_have_kafkas_defaults() -> None:
    request = fetch()
    assert (request.max_bytes, request.replica_id, request.session_epoch) == (0x7FFFFFFF, -1, -1)
    assert (request.cluster_id, request.replica_state, request.rack_id) == (None, None, "")


def test_instances_do_not_share_a_default_list() -> None:
    fetch().forgotten_topics_data.append(None)  # type: ignore[arg-type]
    assert fetch().forgotten_topics_data == []
    request = fetch()
    decoded = decode(FetchRequest, 4, encode(request, 4))
    decoded.forgotten_topics_data.append(None)  # type: ignore[arg-type]
    assert decode(FetchRequest, 4, encode(request, 4)).forgotten_topics_data == []


def test_constructors_require_keywords_for_fields_without_default() -> None:
    with pytest.raises(TypeError, match="generation_id"):
        HeartbeatRequest(group_id="g", member_id="m")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="misspelt"):
        fetch(misspelt=1)
    with pytest.raises(TypeError):
        HeartbeatRequest("g", 1, "m")  # type: ignore[call-arg]


def test_a_maker_does_what_the_constructor_does() -> None:
    make = maker(FetchRequest)
    assert make(max_wait_ms=500, min_bytes=1, topics=[], rack_id="r1") == fetch(rack_id="r1")
    make(max_wait_ms=500, min_bytes=1, topics=[]).forgotten_topics_data.append(None)  # type: ignore[arg-type]
    assert make(max_wait_ms=500, min_bytes=1, topics=[]) == fetch()
    with pytest.raises(TypeError, match="min_bytes"):
        make(max_wait_ms=500, topics=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="misspelt"):
        make(max_wait_ms=500, min_bytes=1, topics=[], misspelt=1)  # type: ignore[call-arg]


def test_messages_have_slots_and_no_other_attributes() -> None:
    request = fetch()
    with pytest.raises(AttributeError):
        request.misspelt = 1  # type: ignore[attr-defined]
    assert not hasattr(request, "__dict__")


def test_messages_are_equal_by_their_fields() -> None:
    assert fetch(max_bytes=5) == fetch(max_bytes=5)
    assert fetch(max_bytes=5) != fetch(max_bytes=6)
    other: object = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert fetch() != other
    assert copy.deepcopy(fetch(max_bytes=5)) == fetch(max_bytes=5)


def test_a_repr_names_fields_and_shows_no_bytes() -> None:
    assert repr(HeartbeatRequest(group_id="g", generation_id=1, member_id="m")) == (
        "HeartbeatRequest(group_id='g', generation_id=1, member_id='m', group_instance_id=None)"
    )
    assert "swordfish" not in repr(SaslAuthenticateRequest(auth_bytes=b"\0user\0swordfish"))


@pytest.mark.parametrize(
    ("text", "lowest", "highest"), [("0-4", 0, 4), ("3+", 3, 32767), ("2", 2, 2), ("none", 0, -1), ("0", 0, 0)]
)
def test_versions_use_kafkas_notation(text: str, lowest: int, highest: int) -> None:
    assert Versions.parse(text) == Versions(lowest, highest)
    assert str(Versions.parse(text)) == text
    assert (lowest in Versions.parse(text)) == (lowest <= highest)
    assert highest + 1 not in Versions.parse(text)


@pytest.mark.parametrize("text", ["", "+", "1-", "a", "1-2+", "-1", "1 - 2"])
def test_other_versions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a range"):
        Versions.parse(text)


def test_an_ignorable_value_is_dropped_by_versions_without_the_field() -> None:
    assert encode(fetch(rack_id="r1", session_id=7), 4) == encode(fetch(), 4)


def test_other_values_that_the_version_lacks_are_refused() -> None:
    topic = FetchTopic(topic="t", partitions=[])
    with pytest.raises(NotInVersion, match="forgotten_topics_data"):
        encode(fetch(forgotten_topics_data=[topic]), 6)
    with pytest.raises(NotInVersion, match="replica_state"):
        encode(fetch(replica_state=ReplicaState(replica_id=1)), 14)
    with pytest.raises(NotInVersion, match="replica_id"):
        encode(fetch(replica_id=1), 15)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1, last_fetched_epoch=3)
    with pytest.raises(NotInVersion, match="last_fetched_epoch"):
        encode(fetch(topics=[FetchTopic(topic="t", partitions=[partition])]), 11)


def test_a_tagged_struct_at_its_default_is_left_out() -> None:
    assert encode(fetch(replica_state=ReplicaState()), 15) == encode(fetch(), 15)
    assert decode(FetchRequest, 15, encode(fetch(replica_state=ReplicaState()), 15)).replica_state is None


def test_null_is_refused_if_the_version_has_no_null() -> None:
    with pytest.raises((TypeError, AttributeError)):
        encode(fetch(rack_id=None), 11)
    with pytest.raises((TypeError, AttributeError)):
        encode(fetch(topics=None), 11)


def test_a_string_longer_than_an_int16_is_refused() -> None:
    for version in (11, 12):
        with pytest.raises(Exception, match=r"exceeds 32767|short format|format requires"):
            encode(fetch(rack_id="x" * 32_768), version)
        assert decode(FetchRequest, version, encode(fetch(rack_id="x" * 32_767), version)).rack_id == "x" * 32_767


def test_versions_that_are_not_declared_are_unsupported() -> None:
    for version in (3, 19, -1):
        with pytest.raises(KafkaError) as refusal:
            decode(FetchRequest, version, b"")
        assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_records_are_a_view_over_the_input() -> None:
    partition = PartitionProduceData(index=0, records=b"batch")
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
    )
    for version in (3, 9):
        data = bytearray(encode(request, version))
        (topic,) = decode(ProduceRequest, version, data).topic_data
        records = topic.partition_data[0].records
        assert isinstance(records, memoryview)
        assert records.obj is data
        data[data.index(b"batch")] = ord("h")
        assert bytes(records) == b"hatch"


def test_messages_can_follow_each_other() -> None:
    one = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    data = b"ab" + encode(one, 4) + encode(one, 0)
    first, position = decode_prefix(HeartbeatRequest, 4, data, 2)
    second, end = decode_prefix(HeartbeatRequest, 0, data, position)
    assert (first, second, end) == (one, one, len(data))


def test_a_field_without_a_wire_type_is_refused() -> None:
    @struct
    class Broken:
        good: int32
        bad: int

    with pytest.raises(AssertionError, match="bad has no wire type"):
        schema_of(Broken).fields  # noqa: B018


def test_the_registry_finds_request_and_response_of_an_api() -> None:
    declared_classes()  # imports all modules
    assert request_class(0) is ProduceRequest
    assert response_class(0) is ProduceResponse
    assert request_class(4) is None
    for key in range(100):
        if (request_type := request_class(key)) is not None:
            request, response = schema_of(request_type), schema_of(response_class(key) or object)
            assert (request.api_key, request.kind, response.api_key, response.kind) == (key, "request", key, "response")
            assert request.versions == response.versions


def test_ids_are_22_characters_of_url_safe_base64() -> None:
    assert uuid_to_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_text(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_from_text("5L6g3nShT-eMCtK--X86sw") == UUID("e4bea0de-74a1-4fe7-8c0a-d2bef97f3ab3")
    for bad in ("", "AAAA", "A" * 23, "5L6g3nShT+eMCtK//X86sw", "!" * 22):
        with pytest.raises(ValueError, match="is not an id"):
            uuid_from_text(bad)


def test_error_codes_know_their_retriability() -> None:
    assert ErrorCode(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.INVALID_TOPIC_EXCEPTION.retriable
    assert len(ErrorCode) == 135
    error = KafkaError(ErrorCode.INVALID_REQUEST, "no")
    assert (error.code, error.message, str(error)) == (ErrorCode.INVALID_REQUEST, "no", "INVALID_REQUEST: no")
    assert issubclass(Malformed, ValueError)
