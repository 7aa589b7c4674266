"""Metrics of topics, partitions, replication, the controller and groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from kbroker.broker import Broker
from kbroker.coordinator.common.led import State
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import NO_LEADER, Image, PartitionImage
from kbroker.replication.partition import Partition, Traffic
from kbroker.runtime.metrics import Metrics
from kbroker.web.groups import committed, count, groups, shards
from kbroker.web.metrics import COUNTER, GAUGE, Samples, of_broker, of_node, one
from kbroker.web.ports import Observed

_SHRINKS, _EXPANDS = "isr.shrinks", "isr.expands"
_RUNNING, _STARTING, _STOPPING = 3, 1, 6  # Kafka's BrokerState


def count_isr_changes(metrics: Metrics, broker_id: int) -> Callable[[Image, Delta], None]:
    """An image listener that counts ISR shrinks and expansions of the partitions that this broker leads."""
    shrinks, expands = metrics.counter(_SHRINKS), metrics.counter(_EXPANDS)

    def on_image(_image: Image, delta: Delta) -> None:
        for change in delta.changed_partitions:
            before, after = change.before, change.after
            if before is not None and after is not None and after.leader == broker_id:
                shrinks.add(len(after.isr) < len(before.isr))
                expands.add(len(after.isr) > len(before.isr))

    return on_image


def _held(broker: Broker) -> tuple[Partition, ...]:
    return tuple(broker.replicas.partitions.values())


# Traffic of clients


def _traffic(broker: Broker, read: Callable[[Traffic], int]) -> Samples:
    topics: defaultdict[str, int] = defaultdict(int)
    for partition in _held(broker):
        topics[partition.topic] += read(partition.traffic)
    yield (), sum(topics.values()) + read(broker.replicas.traffic_of_retired)
    for topic, value in topics.items():
        yield (topic,), value


_TRAFFIC_NOTE = "Without a label: all topics, including deleted ones."


@of_broker(
    COUNTER,
    "kafka_server_brokertopicmetrics_messagesin_total",
    f"Records that clients produced. {_TRAFFIC_NOTE}",
    "topic",
)
def _messages_in(broker: Broker) -> Samples:
    return _traffic(broker, lambda traffic: traffic.messages_in)


@of_broker(
    COUNTER,
    "kafka_server_brokertopicmetrics_bytesin_total",
    f"Bytes of the batches that clients produced. {_TRAFFIC_NOTE}",
    "topic",
)
def _bytes_in(broker: Broker) -> Samples:
    return _traffic(broker, lambda traffic: traffic.bytes_in)


@of_broker(
    COUNTER,
    "kafka_server_brokertopicmetrics_bytesout_total",
    f"Bytes of the batches that clients fetched. {_TRAFFIC_NOTE}",
    "topic",
)
def _bytes_out(broker: Broker) -> Samples:
    return _traffic(broker, lambda traffic: traffic.bytes_out)


# Logs


@of_broker(GAUGE, "kafka_log_log_size", "Bytes of a partition's segments.", "topic", "partition")
def _size(broker: Broker) -> Samples:
    for held in _held(broker):
        yield (held.topic, str(held.index)), held.log.segments.size


@of_broker(GAUGE, "kafka_log_log_numlogsegments", "Segments of a partition.", "topic", "partition")
def _segments(broker: Broker) -> Samples:
    for held in _held(broker):
        yield (held.topic, str(held.index)), len(held.log.segments)


@of_broker(GAUGE, "kafka_log_log_logstartoffset", "The first offset of a partition.", "topic", "partition")
def _log_start_offset(broker: Broker) -> Samples:
    for held in _held(broker):
        yield (held.topic, str(held.index)), held.log.log_start_offset


@of_broker(GAUGE, "kafka_log_log_logendoffset", "The offset of a partition's next record.", "topic", "partition")
def _log_end_offset(broker: Broker) -> Samples:
    for held in _held(broker):
        yield (held.topic, str(held.index)), held.log.log_end_offset


@of_broker(GAUGE, "kafka_log_logmanager_offlinelogdirectorycount", "Log directories that have failed.")
def _offline_directories(broker: Broker) -> Samples:
    return one(broker.replicas.directory.state.failure is not None)


@of_broker(
    GAUGE, "kbroker_stray_directories", "Partition directories that are kept although the metadata does not list them."
)
def _stray_directories(broker: Broker) -> Samples:
    return one(broker.replicas.directory.stray_count)


@of_broker(GAUGE, "kbroker_short_of_space", "1 while the disk is nearly full and records are refused.")
def _short_of_space(broker: Broker) -> Samples:
    return one(broker.replicas.directory.state.is_short_of_space)


# Replicas


@of_broker(GAUGE, "kafka_server_replicamanager_partitioncount", "Partitions that this broker holds.")
def _partition_count(broker: Broker) -> Samples:
    return one(len(broker.replicas.partitions))


@of_broker(GAUGE, "kafka_server_replicamanager_leadercount", "Partitions that this broker leads.")
def _leader_count(broker: Broker) -> Samples:
    return one(sum(held.is_leader for held in _held(broker)))


@of_broker(
    GAUGE,
    "kafka_server_replicamanager_underreplicatedpartitions",
    "Partitions led by this broker with fewer in-sync replicas than replicas.",
)
def _under_replicated(broker: Broker) -> Samples:
    return one(sum(held.is_leader and len(held.isr) < len(held.replicas) for held in _held(broker)))


@of_broker(
    GAUGE,
    "kafka_server_replicamanager_underminisrpartitioncount",
    "Partitions led by this broker with fewer in-sync replicas than acks=all requires.",
)
def _under_min_isr(broker: Broker) -> Samples:
    progresses = (held.progress for held in _held(broker))
    return one(sum(progress is not None and not progress.has_enough_replicas for progress in progresses))


@of_broker(
    GAUGE,
    "kafka_server_replicamanager_offlinereplicacount",
    "Partitions whose log could not be opened, or all of them once the directory has failed.",
)
def _offline_replicas(broker: Broker) -> Samples:
    replicas = broker.replicas
    failed = len(replicas.failed)
    return one(failed + len(replicas.partitions) if replicas.directory.state.failure is not None else failed)


@of_node(
    COUNTER,
    "kafka_server_replicamanager_isrshrinks_total",
    "Times that a partition led by this broker lost an in-sync replica.",
)
def _isr_shrinks(node: Observed) -> Samples:
    return one(node.metrics.counter(_SHRINKS).value)


@of_node(
    COUNTER,
    "kafka_server_replicamanager_isrexpands_total",
    "Times that a partition led by this broker gained an in-sync replica.",
)
def _isr_expands(node: Observed) -> Samples:
    return one(node.metrics.counter(_EXPANDS).value)


# Waiting


@of_broker(
    GAUGE,
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "Requests that wait on a partition: a Fetch for records, or a Produce for in-sync replicas.",
    "delayedOperation",
)
def _purgatory(broker: Broker) -> Samples:
    yield ("Fetch",), broker.purgatory.size


@of_broker(
    GAUGE, "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions that clients have open."
)
def _fetch_sessions(broker: Broker) -> Samples:
    return one(len(broker.fetch_sessions))


@of_broker(
    GAUGE, "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions in all fetch sessions."
)
def _fetch_session_partitions(broker: Broker) -> Samples:
    return one(broker.fetch_sessions.partition_count)


# The controller


def _partitions(broker: Broker) -> list[PartitionImage]:
    return [partition for topic in broker.image.topics_by_id.values() for partition in topic.partitions.values()]


@of_broker(GAUGE, "kafka_controller_kafkacontroller_activecontrollercount", "1 where the active controller runs.")
def _active_controllers(broker: Broker) -> Samples:
    del broker
    return one(1)


@of_broker(GAUGE, "kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster.")
def _topic_count(broker: Broker) -> Samples:
    return one(len(broker.image.topics_by_id))


@of_broker(GAUGE, "kafka_controller_kafkacontroller_globalpartitioncount", "Partitions of the cluster.")
def _global_partition_count(broker: Broker) -> Samples:
    return one(sum(len(topic.partitions) for topic in broker.image.topics_by_id.values()))


@of_broker(GAUGE, "kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions without a leader.")
def _offline_partitions(broker: Broker) -> Samples:
    return one(sum(partition.leader == NO_LEADER for partition in _partitions(broker)))


@of_broker(
    GAUGE,
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "Partitions that are not led by their first replica.",
)
def _imbalance(broker: Broker) -> Samples:
    return one(sum(partition.leader != partition.replicas[0] for partition in _partitions(broker)))


@of_broker(GAUGE, "kafka_controller_kafkacontroller_activebrokercount", "Registered brokers that are not fenced.")
def _active_brokers(broker: Broker) -> Samples:
    return one(sum(not registered.fenced for registered in broker.image.brokers.values()))


@of_broker(GAUGE, "kafka_controller_kafkacontroller_fencedbrokercount", "Registered brokers that are fenced.")
def _fenced_brokers(broker: Broker) -> Samples:
    return one(sum(registered.fenced for registered in broker.image.brokers.values()))


@of_broker(
    GAUGE,
    "kafka_server_broker_metadata_metrics_last_applied_record_offset",
    "Offset of the last metadata record that this broker acts on.",
)
def _metadata_offset(broker: Broker) -> Samples:
    return one(broker.image.offset)


@of_node(GAUGE, "kafka_server_kafkaserver_brokerstate", "1 while the broker starts, 3 while it runs, 6 while it stops.")
def _broker_state(node: Observed) -> Samples:
    return one(_STOPPING if node.is_stopping else _RUNNING if node.is_serving else _STARTING)


# Groups


@of_broker(GAUGE, "kafka_coordinator_group_groupmetadatamanager_numgroups", "Groups that this broker coordinates.")
def _groups(broker: Broker) -> Samples:
    return one(sum(len(shard.group_ids()) for shard in shards(broker)))


@of_broker(GAUGE, "kafka_coordinator_group_groupmetadatamanager_numoffsets", "Offsets that groups have committed.")
def _offsets(broker: Broker) -> Samples:
    return one(sum(shard.offset_count for shard in shards(broker)))


@of_broker(
    GAUGE,
    "kbroker_group_partitions",
    "Partitions of __consumer_offsets that this broker leads, by state.",
    "state",
)
def _group_partitions(broker: Broker) -> Samples:
    for state in (State.LOADING, State.ACTIVE, State.FAILED):
        yield (state.value,), count(broker, state)


@of_broker(
    GAUGE,
    "kbroker_group_unreadable_records",
    "Records of __consumer_offsets that were skipped during loading, because they could not be read.",
)
def _unreadable_records(broker: Broker) -> Samples:
    return one(sum(led.unreadable_records for led in broker.groups.led.values()))


@of_broker(
    COUNTER, "kafka_server_group_coordinator_metrics_offset_commit_total", "Committed offsets, each partition counted."
)
def _commits(broker: Broker) -> Samples:
    return one(sum(shard.counts.offset_commits for shard in shards(broker)))


@of_broker(
    COUNTER,
    "kafka_server_group_coordinator_metrics_offset_expiration_total",
    "Offsets that expired.",
)
def _expirations(broker: Broker) -> Samples:
    return one(sum(shard.counts.offset_expirations for shard in shards(broker)))


@of_broker(COUNTER, "kafka_server_group_coordinator_metrics_offset_deletion_total", "Offsets that clients deleted.")
def _deletions(broker: Broker) -> Samples:
    return one(sum(shard.counts.offset_deletions for shard in shards(broker)))


@of_broker(
    COUNTER,
    "kafka_server_group_coordinator_metrics_group_completed_rebalance_total",
    "Rebalances that completed with a new generation.",
)
def _rebalances(broker: Broker) -> Samples:
    return one(sum(shard.counts.completed_rebalances for shard in shards(broker)))


@of_broker(GAUGE, "kafka_consumergroup_members", "Members of a group.", "consumergroup", "state")
def _members(broker: Broker) -> Samples:
    for _, group in groups(broker):
        yield (group.group_id, group.state.value), len(group.members)


@of_broker(
    GAUGE,
    "kafka_consumergroup_current_offset",
    "The offset that a group has committed.",
    "consumergroup",
    "topic",
    "partition",
)
def _committed(broker: Broker) -> Samples:
    for shard, group in groups(broker):
        for held in committed(shard, group, broker):
            yield (group.group_id, held.topic, str(held.partition)), held.offset


@of_broker(
    GAUGE,
    "kafka_consumergroup_lag",
    "Records between a group's committed offset and the high watermark.",
    "consumergroup",
    "topic",
    "partition",
)
def _lag(broker: Broker) -> Samples:
    for shard, group in groups(broker):
        for held in committed(shard, group, broker):
            if held.lag is not None:
                yield (group.group_id, held.topic, str(held.partition)), held.lag
