"""Random histories of a cluster: replay and snapshots give the same state, and epochs only rise."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.controller.records import decode_value, encode_value
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import NO_LEADER, Image, PartitionImage
from kbroker.metadata.snapshot import image_records
from tests.controller.cluster import Cluster, topic
from wire.errors import KafkaError
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BROKERS = (1, 2, 3)
NAMES = ("a", "b", "c")

_brokers = st.sampled_from(BROKERS)
_names = st.sampled_from(NAMES)
STEPS = st.one_of(
    st.tuples(st.just("create"), _names, st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.just("delete"), _names),
    st.tuples(st.just("grow"), _names, st.integers(1, 8)),
    st.tuples(st.just("configure"), _names, st.sampled_from(["5", None])),
    st.tuples(st.just("fence"), _brokers),
    st.tuples(st.just("unfence"), _brokers),
    st.tuples(st.just("stop"), _brokers),
    st.tuples(st.just("restart"), _brokers),
    st.tuples(st.just("isr"), _names, st.integers(0, 3), st.sets(_brokers)),
    st.tuples(st.just("producer ids"), _brokers),
)


def take_step(cluster: Cluster, step: tuple[Any, ...], number: int) -> None:
    """Take a step as far as it is possible in the current state."""
    kind, *rest = step
    if kind == "create":
        cluster.create(topic(rest[0], rest[1], rest[2]))
    elif kind == "delete":
        request = DeleteTopicsRequest(topic_names=[rest[0]], timeout_ms=1)
        cluster.ask(request, version=5)
    elif kind == "grow":
        topics = [CreatePartitionsTopic(name=rest[0], count=rest[1], assignments=None)]
        grow = CreatePartitionsRequest(topics=topics, timeout_ms=1, validate_only=False)
        cluster.ask(grow)
    elif kind == "configure":
        config = AlterableConfig(name="retention.ms", config_operation=0 if rest[1] else 1, value=rest[1])
        resource = AlterConfigsResource(resource_type=2, resource_name=rest[0], configs=[config])
        alter = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        cluster.ask(alter)
    elif kind == "fence":
        cluster.heartbeat(rest[0], fence=True)
    elif kind == "unfence":
        cluster.heartbeat(rest[0])
    elif kind == "stop":
        cluster.heartbeat(rest[0], shut_down=True)
    elif kind == "restart":
        cluster.start(rest[0], incarnation=number + 2)
    elif kind == "isr":
        change_isr(cluster, *rest)
    else:
        ids = AllocateProducerIdsRequest(broker_id=rest[0], broker_epoch=cluster.image.brokers[rest[0]].epoch)
        cluster.ask(ids)


def change_isr(cluster: Cluster, name: str, index: int, isr: set[int]) -> None:
    partition = cluster.image.partition(name, index)
    if partition is None or partition.leader == NO_LEADER:
        return
    request = AlterPartitionRequest(
        broker_id=partition.leader,
        broker_epoch=cluster.image.brokers[partition.leader].epoch,
        topics=[
            AlterPartitionRequestTopic(
                topic_id=cluster.image.topics_by_name[name].id,
                partitions=[
                    AlterPartitionRequestPartition(
                        partition_index=index,
                        leader_epoch=partition.leader_epoch,
                        partition_epoch=partition.partition_epoch,
                        new_isr_with_epochs=[BrokerState(broker_id=member) for member in sorted(isr)],
                    )
                ],
            )
        ],
    )
    cluster.ask(request, version=3)


def check_partition(image: Image, partition: PartitionImage) -> None:
    assert partition.isr, "an ISR is never empty without eligible leader replicas"
    assert set(partition.isr) <= set(partition.replicas)
    assert len(partition.directories) == len(partition.replicas)
    if partition.leader != NO_LEADER:
        assert partition.leader in partition.isr
        assert image.brokers[partition.leader].active, "a fenced broker leads nothing"


def check_step(before: Image, after: Image) -> None:
    """Epochs rise, a leader change raises the leader epoch, and the delta contains every difference."""
    for topic_id, image_topic in after.topics_by_id.items():
        old = before.topics_by_id.get(topic_id)
        for index, partition in image_topic.partitions.items():
            check_partition(after, partition)
            known = None if old is None else old.partitions.get(index)
            if known is None:
                continue
            assert partition.leader_epoch >= known.leader_epoch
            assert partition.partition_epoch >= known.partition_epoch
            if partition.leader != known.leader:
                assert partition.leader_epoch > known.leader_epoch
            if partition != known:
                assert partition.partition_epoch > known.partition_epoch
    assert {one.name: one for one in after.topics_by_id.values()} == after.topics_by_name
    rebuilt = {topic_id: dict(one.partitions) for topic_id, one in before.topics_by_id.items()}
    for change in Delta(before, after).changed_partitions:
        if change.after is None:
            del rebuilt[change.topic.id][change.index]
        else:
            rebuilt.setdefault(change.topic.id, {})[change.index] = change.after
    for gone in Delta(before, after).deleted_topics:
        assert not rebuilt.pop(gone.id)
    assert rebuilt == {topic_id: dict(one.partitions) for topic_id, one in after.topics_by_id.items()}


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40), st.data())
def test_k8_replay_and_snapshot_with_tail_give_the_same_image(steps: list[tuple[Any, ...]], data: Any) -> None:
    cluster = Cluster(brokers=3)
    images = {cluster.image.offset: cluster.image}
    for number, step in enumerate(steps):
        before = cluster.image
        try:
            take_step(cluster, step, number)
        except KafkaError:
            assert cluster.image is before, "an error changes nothing"
        check_step(before, cluster.image)
        images[cluster.image.offset] = cluster.image
    end = cluster.image
    log = [decode_value(encode_value(record, 21)) for record in cluster.decided]
    assert log == cluster.decided
    assert Image().apply(log, offset=end.offset, epoch=end.epoch) == end
    taken = images[data.draw(st.sampled_from(sorted(images)))]
    snapshot = [decode_value(encode_value(record, 21)) for record in image_records(taken)]
    loaded = Image().apply(snapshot, offset=taken.offset, epoch=taken.epoch)
    assert loaded == taken
    assert loaded.apply(log[taken.offset + 1 :], offset=end.offset, epoch=end.epoch) == end
