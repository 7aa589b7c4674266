"""AlterClientQuotas, and the quota of mutations: what is decided, and what is refused."""

from __future__ import annotations

import math

import pytest

from kbroker.controller.port import Sender
from kbroker.metadata.image import Image, QuotaEntity
from kbroker.metadata.snapshot import image_records
from kbroker.quotas.rates import Windows
from tests.controller.cluster import Cluster, topic
from tests.controller.test_partitions import grow
from wire.errors import ErrorCode
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from wire.messages.create_partitions import CreatePartitionsRequest
from wire.messages.create_topics import CreateTopicsRequest
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.messages.describe_client_quotas import EntityData
from wire.types import ZERO_UUID

ALICE: QuotaEntity = (("user", "alice"),)
QUOTA, THROTTLED = "producer_byte_rate", ErrorCode.THROTTLING_QUOTA_EXCEEDED


def entry(entity: QuotaEntity, *ops: tuple[str, float | None]) -> AlterClientQuotasRequestEntryData:
    """Set quotas, or remove those without a value."""
    return AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def alter(
    cluster: Cluster, *entries: AlterClientQuotasRequestEntryData, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    answer: AlterClientQuotasResponse = cluster.ask(request)
    return [(one.error_code, one.error_message) for one in answer.entries]


def test_quotas_are_set_changed_and_removed() -> None:
    cluster = Cluster()
    pair: QuotaEntity = (("client-id", None), ("user", "alice"))
    swapped = (pair[1], pair[0])
    assert alter(cluster, entry(ALICE, (QUOTA, 5)), entry(swapped, ("request_percentage", 0.5))) == [(0, None)] * 2
    assert cluster.image.client_quotas == {ALICE: {QUOTA: 5.0}, pair: {"request_percentage": 0.5}}
    alter(cluster, entry(ALICE, (QUOTA, 7), ("consumer_byte_rate", 1)), entry(pair, ("request_percentage", None)))
    assert cluster.image.client_quotas == {ALICE: {QUOTA: 7.0, "consumer_byte_rate": 1.0}}
    assert Image().apply(image_records(cluster.image), offset=1, epoch=1).client_quotas == cluster.image.client_quotas


def test_unchanged_and_absent_quotas_need_no_record() -> None:
    cluster = Cluster()
    alter(cluster, entry(ALICE, (QUOTA, 5)))
    before = len(cluster.decided)
    assert alter(cluster, entry(ALICE, (QUOTA, 5), ("consumer_byte_rate", None))) == [(0, None)]
    assert len(cluster.decided) == before


def test_validate_only_answers_and_records_nothing() -> None:
    cluster = Cluster()
    assert alter(cluster, entry(ALICE, (QUOTA, 5)), entry(ALICE[:0]), validate_only=True)[0] == (0, None)
    assert not cluster.image.client_quotas


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        ((), QUOTA, 1, "Invalid empty client quota entity"),
        ((("group", "g"),), QUOTA, 1, "Unhandled client quota entity type: group"),
        ((("user", ""),), QUOTA, 1, "Empty user not supported"),
        (ALICE, "connection_creation_rate", 1, "Invalid configuration key connection_creation_rate"),
        ((("ip", "10.0.0.1"),), QUOTA, 1, f"Invalid configuration key {QUOTA}"),
        ((("ip", "no such host"),), QUOTA, 1, "no such host is not a valid IP or resolvable host."),
        (
            (("ip", None), ("user", None)),
            QUOTA,
            1,
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        ),
        (ALICE, QUOTA, 0, f"Quota {QUOTA} must be greater than 0"),
        (ALICE, QUOTA, math.nan, f"Quota {QUOTA} must be greater than 0"),
        (ALICE, QUOTA, 0.5, f"{QUOTA} cannot be a fractional value."),
        (ALICE, QUOTA, 1e19, f"Proposed value for {QUOTA} is too large for a LONG."),
        (
            (("ip", None),),
            "connection_creation_rate",
            2.0**31,
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
    ],
)
def test_an_invalid_quota_is_refused_alone(entity: QuotaEntity, key: str, value: float, text: str) -> None:
    cluster = Cluster()
    bad, good = entry(entity, (key, math.copysign(value, 1))), entry((("user", "bob"),), (QUOTA, 1))
    bad.ops[0].remove, bad.ops[0].value = False, value
    assert alter(cluster, bad, good) == [(ErrorCode.INVALID_REQUEST, text), (0, None)]
    assert cluster.image.client_quotas == {(("user", "bob"),): {QUOTA: 1.0}}


def test_a_duplicate_entity_is_reported_and_changed_once() -> None:
    cluster = Cluster()
    text = "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    assert alter(cluster, entry(ALICE, (QUOTA, 1)), entry(ALICE, (QUOTA, 2))) == [(ErrorCode.INVALID_REQUEST, text)]
    assert cluster.image.client_quotas == {ALICE: {QUOTA: 1.0}}
    assert alter(cluster, entry(ALICE, (QUOTA, 3), (QUOTA, 4))) == [(ErrorCode.INVALID_REQUEST, text)]
    assert cluster.image.client_quotas == {ALICE: {QUOTA: 1.0}}


def test_w11_too_many_quotas_fail_as_a_whole() -> None:
    cluster = Cluster(max_records_per_decision=1)
    both = [entry(ALICE, (QUOTA, 1)), entry((("user", "bob"),), (QUOTA, 1))]
    assert [code for code, _ in alter(cluster, *both)] == [ErrorCode.POLICY_VIOLATION] * 2
    assert not cluster.image.client_quotas


def limited(rate: float) -> Cluster:
    """A cluster where each client may use `rate` partitions per second, and those of 11 seconds at once."""
    cluster = Cluster(quota_windows=Windows(11, 1_000))
    alter(cluster, entry((("client-id", None),), ("controller_mutation_rate", rate)))
    return cluster


def creation(cluster: Cluster, *sizes: int, client_id: str = "c", version: int = 7) -> tuple[list[int], int]:
    """Create topics of these sizes: their error codes, and the throttle time."""
    prefix = f"t{len(cluster.image.topics_by_name)}"
    request = CreateTopicsRequest(
        topics=[topic(f"{prefix}-{at}", size, 1) for at, size in enumerate(sizes)], timeout_ms=1
    )
    answer = cluster.ask(request, version=version, sender=Sender(client_id=client_id))
    return [one.error_code for one in answer.topics], answer.throttle_time_ms


def test_a_strict_quota_refuses_topics_once_its_tokens_are_used_up() -> None:
    cluster = limited(2)
    assert creation(cluster, 30, 1) == ([0, THROTTLED], 4_000)  # 22 tokens at first
    assert creation(cluster, 1) == ([THROTTLED], 4_000)
    assert creation(cluster, 1, client_id="other") == ([0], 0)
    cluster.now_ms += 4_000
    assert creation(cluster, 5) == ([0], 0)
    assert creation(cluster, 1) == ([THROTTLED], 2_500)


def test_an_older_version_is_throttled_and_not_refused() -> None:
    cluster = limited(2)
    assert creation(cluster, 30, 1, version=5) == ([0, 0], 4_500)


def test_partitions_and_deletions_use_the_same_tokens() -> None:
    cluster = limited(1)
    sender = Sender(client_id="c")
    assert creation(cluster, 4) == ([0], 0)
    name = next(iter(cluster.image.topics_by_name))
    more = CreatePartitionsRequest(topics=[grow(name, 12)], timeout_ms=1, validate_only=False)
    answer = cluster.ask(more, version=3, sender=sender)
    assert (answer.results[0].error_code, answer.throttle_time_ms) == (0, 0)
    more.topics[0].count = 13
    cluster.now_ms += 500
    refused = cluster.ask(more, version=3, sender=sender)
    assert (refused.results[0].error_code, refused.throttle_time_ms) == (THROTTLED, 500)
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=name, topic_id=ZERO_UUID)], timeout_ms=1)
    answers = cluster.ask(gone, version=6, sender=sender)
    assert (answers.responses[0].error_code, answers.throttle_time_ms) == (THROTTLED, 500)
    older = DeleteTopicsRequest(topic_names=[name], timeout_ms=1)
    answers = cluster.ask(older, version=4, sender=sender)
    assert (answers.responses[0].error_code, answers.throttle_time_ms) == (0, 12_500)


def test_the_broker_itself_has_no_quota_of_mutations() -> None:
    cluster = limited(1)
    cluster.create(topic("t", 100, 1))
    assert creation(cluster, 1) == ([0], 0)
