"""Refused producer id blocks, feature levels, and record versions."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.controller.features import require_supported
from kbroker.controller.records import decode_value, encode_value, record_version
from kbroker.metadata.errors import UnusableMetadata
from tests.controller.cluster import Cluster
from wire.errors import ErrorCode, KafkaError
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wire.stored import metadata as stored
from wire.stored.control import KRaftVersionFeature, KRaftVersionRecord, VotersRecord, VotersVoter


def test_c7_a_stale_broker_gets_no_block() -> None:
    with pytest.raises(KafkaError) as caught:
        Cluster().decide(AllocateProducerIdsRequest(broker_id=1, broker_epoch=0))
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_do_not_exceed_int64() -> None:
    cluster = Cluster()
    epoch = cluster.image.brokers[1].epoch
    record = stored.ProducerIdsRecord(broker_id=1, broker_epoch=epoch, next_producer_id=2**63 - 1000)
    cluster.controller.replay([record], offset=cluster.image.offset + 1, epoch=1)
    with pytest.raises(KafkaError):
        cluster.decide(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))


def update(cluster: Cluster, level: int, upgrade_type: int = 1, feature: str = "metadata.version") -> int:
    request = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)]
    )
    return cluster.ask(request).error_code


@pytest.mark.parametrize(
    ("level", "upgrade_type", "feature", "code"),
    [
        (21, 1, "metadata.version", 0),
        (31, 1, "metadata.version", 95),
        (20, 1, "metadata.version", 95),
        (16, 2, "metadata.version", 95),
        (17, 1, "metadata.version", 95),
        (16, 3, "metadata.version", 95),
        (6, 3, "metadata.version", 95),
        (-1, 1, "metadata.version", 95),
        (21, 9, "metadata.version", 95),
        (2, 1, "group.version", 95),
        (1, 1, "share.version", 95),
        (1, 1, "streams.version", 95),
        (1, 1, "eligible.leader.replicas.version", 95),
        (0, 1, "kraft.version", 0),
        (1, 1, "kraft.version", 95),
        (2, 1, "kraft.version", 95),
    ],
)
def test_unsupported_feature_updates_are_refused(level: int, upgrade_type: int, feature: str, code: int) -> None:
    cluster = Cluster()
    before = cluster.image
    assert update(cluster, level, upgrade_type, feature) == code
    assert cluster.image is before, "the level must not change"


@pytest.mark.parametrize("level", [17, 20])
def test_the_metadata_version_falls_if_no_record_is_lost(level: int) -> None:
    cluster = Cluster()
    assert update(cluster, level, 2) == 0
    assert cluster.image.metadata_version == level


def test_the_group_version_rises_and_falls() -> None:
    cluster = Cluster()
    for level, kind in ((0, 2), (1, 1), (0, 2)):
        assert update(cluster, level, kind, "group.version") == 0
        assert cluster.image.features.get("group.version", 0) == level


def test_one_failed_feature_update_fails_all() -> None:
    cluster = Cluster()
    updates = [
        FeatureUpdateKey(feature="metadata.version", max_version_level=20, upgrade_type=2),
        FeatureUpdateKey(feature="bogus", max_version_level=1),
    ]
    outcome = cluster.decide(UpdateFeaturesRequest(feature_updates=updates))
    assert (outcome.records, outcome.response.error_code, outcome.response.results) == ([], 95, [])
    assert "does not support this feature" in str(outcome.response.error_message)


def test_validate_only_changes_no_feature_level() -> None:
    cluster = Cluster()
    update = FeatureUpdateKey(feature="metadata.version", max_version_level=20, upgrade_type=2)
    request = UpdateFeaturesRequest(feature_updates=[update], validate_only=True)
    assert cluster.decide(request).records == []


def test_an_older_metadata_version_can_be_raised() -> None:
    cluster = Cluster()
    record = stored.FeatureLevelRecord(name="metadata.version", feature_level=20)
    cluster.controller.replay([record], offset=cluster.image.offset + 1, epoch=1)
    assert update(cluster, 21) == 0
    assert cluster.image.metadata_version == 21


@pytest.mark.parametrize(("level", "falls_to"), [(22, 21), (29, 23)])
def test_levels_above_3_9_rise_and_fall_if_no_record_is_lost(level: int, falls_to: int) -> None:
    cluster = Cluster()
    assert update(cluster, level) == 0
    assert update(cluster, falls_to, 2) == 0
    assert update(cluster, 30) == 0
    for lower in (29, 22):
        assert update(cluster, lower, 2) == 95, "records of a changed version may exist"
    assert cluster.image.metadata_version == 30


@pytest.mark.parametrize(
    ("level", "remedy"), [(4, "raise metadata.version with `kafka-features.sh"), (31, "format a new directory")]
)
def test_a_directory_at_an_unsupported_level_is_refused_with_a_remedy(level: int, remedy: str) -> None:
    with pytest.raises(UnusableMetadata, match=rf"metadata.version={level} .*: {remedy}"):
        require_supported({"metadata.version": level}, "the log")


@pytest.mark.parametrize("feature", ["share.version", "streams.version"])
def test_a_feature_of_a_directory_that_is_not_served_only_falls(feature: str) -> None:
    cluster = Cluster()
    record = stored.FeatureLevelRecord(name=feature, feature_level=1)
    cluster.controller.replay([record], offset=cluster.image.offset + 1, epoch=1)
    require_supported(cluster.image.features, "the log")
    assert update(cluster, 0, 2, feature) == 0
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=feature, max_version_level=1)])
    assert "kbroker serves no share groups" in cluster.ask(request).error_message


def test_the_voter_of_a_dynamic_quorum_is_described_with_its_directory() -> None:
    cluster = Cluster()
    feature = KRaftVersionFeature(min_supported_version=0, max_supported_version=1)
    voter = VotersVoter(voter_id=1, voter_directory_id=UUID(int=501), endpoints=[], kraft_version_feature=feature)
    records = [KRaftVersionRecord(version=0, kraft_version=1), VotersRecord(version=0, voters=[voter])]
    cluster.controller.replay(records, offset=cluster.image.offset + 2, epoch=1)
    asked = [DescribeQuorumRequestPartitionData(partition_index=0)]
    topic = DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=asked)
    answer = cluster.ask(DescribeQuorumRequest(topics=[topic]))
    assert answer.topics[0].partitions[0].current_voters[0].replica_directory_id == UUID(int=501)
    assert update(cluster, 0, 2, "kraft.version") == update(cluster, 2, 1, "kraft.version") == 95


PARTITION = stored.PartitionRecord(
    partition_id=0,
    topic_id=UUID(int=1),
    replicas=[1],
    isr=[1],
    removing_replicas=[],
    adding_replicas=[],
    leader=1,
    leader_epoch=0,
    partition_epoch=0,
)
CHANGE = stored.PartitionChangeRecord(partition_id=0, topic_id=UUID(int=1), leader=1)
REGISTER = stored.RegisterBrokerRecord(
    broker_id=1, incarnation_id=UUID(int=1), broker_epoch=1, end_points=[], features=[], rack=None
)


@pytest.mark.parametrize(
    ("record", "level", "version"),
    [
        (PARTITION, 16, 0),
        (PARTITION, 17, 1),
        (PARTITION, 21, 1),
        (PARTITION, 23, 2),
        (CHANGE, 16, 0),
        (CHANGE, 21, 1),
        (CHANGE, 30, 2),
        (REGISTER, 7, 1),
        (REGISTER, 8, 2),
        (REGISTER, 17, 3),
        (REGISTER, 21, 3),
        (REGISTER, 30, 4),
        (stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1), 21, 0),
        (stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=1), 21, 1),
        (stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, log_dirs=[UUID(int=1)]), 21, 2),
        (stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, cordoned_log_dirs=[]), 30, 3),
        (stored.TopicRecord(name="a", topic_id=UUID(int=1)), 21, 0),
    ],
)
def test_the_metadata_level_decides_the_record_version(record: object, level: int, version: int) -> None:
    assert record_version(record, level) == version
    assert decode_value(encode_value(record, level)) == record


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\x00\x02\x00",  # frame version 0
        b"\x01\x1d\x00\x00",  # record type 29 does not exist
        b"\x01\x02\x01\x00",  # TopicRecord has no version 1
        encode_value(CHANGE, 21)[:-1],
        encode_value(CHANGE, 21) + b"\x00",
    ],
)
def test_c4_an_unknown_record_is_unusable_metadata(value: bytes | None) -> None:
    with pytest.raises(UnusableMetadata):
        decode_value(value)


def test_a_level_that_a_broker_does_not_support_is_refused() -> None:
    cluster = Cluster(brokers=2)
    request = cluster.registration(2, 2)
    request.features[0].min_supported_version = 21
    cluster.now_ms = 9_000
    cluster.ask(request)
    update = FeatureUpdateKey(feature="metadata.version", max_version_level=20, upgrade_type=2)
    answer = cluster.ask(UpdateFeaturesRequest(feature_updates=[update]))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Broker 2 only supports versions 21-30" in answer.error_message
