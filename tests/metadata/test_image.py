"""Replaying metadata records into an image."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.metadata.delta import Delta
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image, PartitionImage
from kbroker.metadata.snapshot import image_records
from wire.messages.broker_registration import Endpoint, FeatureRange
from wire.stored import metadata as stored

TOPIC, OTHER = UUID(int=700), UUID(int=701)
DIRECTORY = UUID(int=900)


def partition(index: int = 0, topic_id: UUID = TOPIC, **fields: Any) -> stored.PartitionRecord:
    given = {
        "replicas": [1, 2],
        "isr": [1, 2],
        "leader": 1,
        "leader_epoch": 4,
        "partition_epoch": 9,
        "removing_replicas": [],
        "adding_replicas": [],
        "directories": [DIRECTORY, DIRECTORY],
        **fields,
    }
    return stored.PartitionRecord(partition_id=index, topic_id=topic_id, **given)


def change(**fields: Any) -> stored.PartitionChangeRecord:
    return stored.PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)


def register(broker_id: int = 1, epoch: int = 5, **fields: Any) -> stored.RegisterBrokerRecord:
    return stored.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=3),
        broker_epoch=epoch,
        end_points=[Endpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
        features=[FeatureRange(name="metadata.version", min_supported_version=7, max_supported_version=21)],
        rack="r",
        **fields,
    )


def image_of(*records: Any) -> Image:
    return Image().apply(records, offset=len(records) - 1, epoch=1)


def topic_of(*changes: Any, **fields: Any) -> PartitionImage:
    image = image_of(stored.TopicRecord(name="t", topic_id=TOPIC), partition(**fields), *changes)
    found = image.partition("t", 0)
    assert found is not None
    return found


def test_a_partition_record_is_applied_unchanged() -> None:
    assert topic_of() == PartitionImage((1, 2), (1, 2), 1, 4, 9, (DIRECTORY, DIRECTORY))


def test_a_partition_without_directories_has_unknown_ones() -> None:
    assert topic_of(directories=[]).directories == (UUID(int=0), UUID(int=0))


@pytest.mark.parametrize(
    ("fields", "leader_epoch"),
    [
        ({}, 4),  # every change raises partition_epoch, only one with a leader raises leader_epoch
        ({"isr": [1]}, 4),
        ({"leader": 2}, 5),
        ({"leader": 1}, 5),  # even the same leader
        ({"leader": -1}, 5),
        ({"leader_recovery_state": 1}, 4),
    ],
)
def test_changes_raise_the_partition_epoch_and_leaders_the_leader_epoch(
    fields: dict[str, Any], leader_epoch: int
) -> None:
    changed = topic_of(change(**fields))
    assert (changed.partition_epoch, changed.leader_epoch) == (10, leader_epoch)


def test_a_change_keeps_what_it_does_not_carry() -> None:
    changed = topic_of(change(isr=[2], leader=2), adding_replicas=[7], leader_recovery_state=1)
    assert changed == PartitionImage((1, 2), (2,), 2, 5, 10, (DIRECTORY, DIRECTORY), (), (7,), 1)


def test_an_empty_list_in_a_change_differs_from_none() -> None:
    assert topic_of(change(adding_replicas=[]), adding_replicas=[7]).adding_replicas == ()


def test_directories_stay_positional_unless_none_is_real() -> None:
    assert topic_of(change(replicas=[3, 1, 2])).directories == (DIRECTORY, DIRECTORY)
    assert topic_of(change(replicas=[3, 1, 2]), directories=[]).directories == (UUID(int=0),) * 3
    new = UUID(int=901)
    assert topic_of(change(replicas=[3], directories=[new])).directories == (new,)


def test_removing_a_topic_removes_its_configs() -> None:
    image = image_of(
        stored.TopicRecord(name="t", topic_id=TOPIC),
        stored.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1"),
        stored.ConfigRecord(resource_type=4, resource_name="t", name="x", value="1"),
        partition(),
        stored.RemoveTopicRecord(topic_id=TOPIC),
    )
    assert image.topics_by_name == image.topics_by_id == {}
    assert image.configs == {(4, "t"): {"x": "1"}}


def test_a_config_without_a_value_is_removed() -> None:
    set_one = stored.ConfigRecord(resource_type=4, resource_name="", name="a", value="1")
    delete = stored.ConfigRecord(resource_type=4, resource_name="", name="a", value=None)
    assert image_of(set_one).broker_configs(None) == {"a": "1"}
    assert image_of(set_one, delete).configs == {}


def test_registration_changes_fence_unfence_and_shut_down() -> None:
    def changed(**fields: Any) -> tuple[bool, bool]:
        records = (register(), stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, **fields))
        broker = image_of(*records).brokers[1]
        return broker.fenced, broker.in_controlled_shutdown

    assert changed() == (True, False)
    assert changed(fenced=-1) == (False, False)
    assert changed(fenced=1) == (True, False)
    assert changed(fenced=-1, in_controlled_shutdown=1) == (False, True)


def test_level_0_removes_a_feature() -> None:
    level = stored.FeatureLevelRecord(name="group.version", feature_level=1)
    assert image_of(level).features == {"group.version": 1}
    assert image_of(level, stored.FeatureLevelRecord(name="group.version", feature_level=0)).features == {}


def test_clear_elr_clears_one_topic_or_all() -> None:
    def elr(name: str) -> list[tuple[int, ...]]:
        image = image_of(
            stored.TopicRecord(name="t", topic_id=TOPIC),
            stored.TopicRecord(name="u", topic_id=OTHER),
            partition(eligible_leader_replicas=[2]),
            partition(topic_id=OTHER, eligible_leader_replicas=[2], last_known_elr=[1]),
            stored.ClearElrRecord(topic_name=name),
        )
        return [topic.partitions[0].eligible_leader_replicas for topic in image.topics_by_id.values()]

    assert elr("t") == [(), (2,)]
    assert elr("") == [(), ()]


def test_unused_records_are_kept_for_the_next_snapshot() -> None:
    entity = [stored.EntityData(entity_type="user", entity_name=None)]
    image = image_of(
        stored.ClientQuotaRecord(entity=entity, key="producer_byte_rate", value=5.5, remove=False),
        stored.AccessControlEntryRecord(
            id=UUID(int=1),
            resource_type=2,
            resource_name="*",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        ),
        stored.UserScramCredentialRecord(
            name="a", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
        ),
        stored.DelegationTokenRecord(
            owner="User:a",
            requester="User:a",
            renewers=[],
            issue_timestamp=1,
            max_timestamp=2,
            expiration_timestamp=3,
            token_id="t",
        ),
        stored.ZkMigrationStateRecord(zk_migration_state=0),
    )
    assert image_of(*image_records(image)) == image._replace(offset=4, epoch=1)
    assert image.client_quotas == {(("user", None),): {"producer_byte_rate": 5.5}}


@pytest.mark.parametrize(
    "records",
    [
        [partition()],
        [change()],
        [stored.TopicRecord(name="t", topic_id=TOPIC), change()],
        [stored.TopicRecord(name="t", topic_id=TOPIC), stored.TopicRecord(name="t", topic_id=OTHER)],
        [stored.TopicRecord(name="t", topic_id=TOPIC), partition(directories=[DIRECTORY])],
        [stored.RemoveTopicRecord(topic_id=TOPIC)],
        [stored.UnregisterBrokerRecord(broker_id=1, broker_epoch=5)],
        [register(), stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6, fenced=1)],
        [stored.EndTransactionRecord()],
        [stored.AbortTransactionRecord()],
        [stored.BeginTransactionRecord(), stored.BeginTransactionRecord()],
        [stored.ClearElrRecord(topic_name="t")],
        [stored.RemoveAccessControlEntryRecord(id=TOPIC)],
        [
            stored.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=2000),
            stored.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000),
        ],
        [object()],
    ],
)
def test_k12_a_record_that_does_not_fit_is_never_skipped(records: list[Any]) -> None:
    with pytest.raises(UnusableMetadata):
        image_of(*records)


def test_a_transaction_becomes_visible_at_its_end() -> None:
    begin, topic = stored.BeginTransactionRecord(name="x"), stored.TopicRecord(name="t", topic_id=TOPIC)
    inside = image_of(begin, topic)
    assert inside.topics_by_name == {}
    assert inside.open_transaction == (topic,)
    ended = inside.apply([stored.EndTransactionRecord()], offset=2, epoch=1)
    assert list(ended.topics_by_name) == ["t"]
    assert ended.open_transaction is None
    aborted = inside.apply([stored.AbortTransactionRecord()], offset=2, epoch=1)
    assert aborted.topics_by_name == {}
    assert aborted.open_transaction is None


def test_images_share_what_did_not_change() -> None:
    before = image_of(
        stored.TopicRecord(name="t", topic_id=TOPIC),
        stored.TopicRecord(name="u", topic_id=OTHER),
        partition(),
        partition(1),
        partition(topic_id=OTHER),
    )
    after = before.apply([change(leader=2)], offset=5, epoch=1)
    assert after.topics_by_id[OTHER] is before.topics_by_id[OTHER]
    assert after.topics_by_id[TOPIC].partitions[1] is before.topics_by_id[TOPIC].partitions[1]
    assert after.brokers is before.brokers
    assert before.topics_by_name["t"].partitions[0].leader == 1, "the older image must not change"


def test_partitions_are_sorted_by_index() -> None:
    image = image_of(stored.TopicRecord(name="t", topic_id=TOPIC), partition(2), partition(0), partition(1))
    assert list(image.topics_by_name["t"].partitions) == [0, 1, 2]


def test_a_delta_has_created_changed_and_deleted_items() -> None:
    before = image_of(
        stored.TopicRecord(name="t", topic_id=TOPIC),
        partition(),
        partition(1),
        stored.TopicRecord(name="gone", topic_id=OTHER),
        partition(topic_id=OTHER),
        stored.ConfigRecord(resource_type=2, resource_name="gone", name="a", value="1"),
        register(),
    )
    born = UUID(int=777)
    after = before.apply(
        [
            change(leader=2),
            stored.RemoveTopicRecord(topic_id=OTHER),
            stored.TopicRecord(name="gone", topic_id=born),
            partition(topic_id=born),
            stored.ConfigRecord(resource_type=4, resource_name="", name="a", value="1"),
            stored.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1),
            stored.FeatureLevelRecord(name="metadata.version", feature_level=21),
        ],
        offset=13,
        epoch=1,
    )
    delta = Delta(before, after)
    assert [topic.id for topic in delta.deleted_topics] == [OTHER]
    assert [topic.id for topic in delta.created_topics] == [born]
    changed = [(one.topic.id, one.index, one.before is None, one.after is None) for one in delta.changed_partitions]
    assert changed == [(OTHER, 0, False, True), (TOPIC, 0, False, False), (born, 0, True, False)]
    assert delta.changed_configs == [(2, "gone"), (4, "")]
    assert delta.features_changed


def test_a_delta_between_equal_images_is_empty() -> None:
    before = image_of(stored.TopicRecord(name="t", topic_id=TOPIC), partition(), register())
    delta = Delta(before, before.apply([stored.NoOpRecord()], offset=3, epoch=1))
    assert not delta.created_topics
    assert not delta.deleted_topics
    assert not delta.changed_partitions
    assert not delta.changed_configs
    assert not delta.features_changed
