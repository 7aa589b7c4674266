"""Convert an image to the records of a metadata snapshot, which recreate the same image when replayed.

The order is Kafka's: features, brokers and controllers, topics with their partitions, configs, quotas, producer ids,
ACLs, SCRAM, tokens. A snapshot is never taken inside a metadata transaction, so no open transaction is written.

Source: Kafka's MetadataImage.write and the images that it visits.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.metadata.image import BrokerImage, Image, Record
from kbroker.metadata.parts import METADATA_VERSION_FEATURE, feature_ranges, partition_record
from wire.stored import metadata as stored
from wire.stored.control import KRaftVersionRecord


def image_records(image: Image) -> Iterator[Record]:
    """The records that recreate this image."""
    assert image.open_transaction is None, "no snapshot inside a metadata transaction"
    yield from _features(image)
    for _, broker in sorted(image.brokers.items()):
        yield register_broker_record(broker)
    yield from _controllers(image)
    for topic in image.topics_by_id.values():
        yield stored.TopicRecord(name=topic.name, topic_id=topic.id)
        for index, partition in topic.partitions.items():
            yield partition_record(topic.id, index, partition)
    for (resource_type, resource_name), keys in image.configs.items():
        for name, value in keys.items():
            yield stored.ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
    for entity, quotas in image.client_quotas.items():
        parts = [stored.EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity]
        for key, limit in quotas.items():
            yield stored.ClientQuotaRecord(entity=parts, key=key, value=limit, remove=False)
    if image.producer_ids_owner is not None:
        broker_id, broker_epoch = image.producer_ids_owner
        yield stored.ProducerIdsRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=image.next_producer_id
        )
    yield from image.acls.values()
    yield from image.scram_credentials.values()
    yield from image.delegation_tokens.values()


def quorum_records(image: Image) -> list[Record]:
    """The control records of a dynamic quorum (KIP-853), which a snapshot has in its first batch."""
    if image.voters is None:
        return []
    return [KRaftVersionRecord(version=0, kraft_version=image.kraft_version), image.voters]


def _features(image: Image) -> Iterator[Record]:
    """metadata.version comes first, because readers need it to decode the rest."""
    names = sorted(image.features, key=lambda name: (name != METADATA_VERSION_FEATURE, name))
    for name in names:
        yield stored.FeatureLevelRecord(name=name, feature_level=image.features[name])
    if image.zk_migration_state is not None:
        yield stored.ZkMigrationStateRecord(zk_migration_state=image.zk_migration_state)


def register_broker_record(broker: BrokerImage) -> stored.RegisterBrokerRecord:
    """The registration in its current state, fenced or not."""
    return stored.RegisterBrokerRecord(
        broker_id=broker.id,
        is_migrating_zk_broker=broker.is_migrating_zk_broker,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=list(broker.endpoints.values()),
        features=feature_ranges(broker.features),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=None if broker.cordoned_log_dirs is None else list(broker.cordoned_log_dirs),
    )


def _controllers(image: Image) -> Iterator[Record]:
    for _, controller in sorted(image.controllers.items()):
        yield stored.RegisterControllerRecord(
            controller_id=controller.id,
            incarnation_id=controller.incarnation_id,
            zk_migration_ready=controller.zk_migration_ready,
            end_points=list(controller.endpoints.values()),
            features=feature_ranges(controller.features),
        )
