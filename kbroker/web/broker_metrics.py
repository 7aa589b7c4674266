"""Metrics of topics, partitions, replication, the controller and groups."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.broker import Broker
from kbroker.coordinator.common.led import State
from kbroker.metadata.image import NO_LEADER, Image, PartitionImage
from kbroker.replication.partition import Partition
from kbroker.replication.partition_state import Traffic
from kbroker.storage.log import Log
from kbroker.web.groups import committed, count, groups, shards
from kbroker.web.isr_changes import EXPANDS, SHRINKS, UNCLEAN
from kbroker.web.metrics import COUNTER, GAUGE, Samples, by_topic, of_broker, of_controller, of_image, of_node
from kbroker.web.ports import Observed

_RUNNING, _STARTING, _STOPPING = 3, 1, 6  # Kafka's BrokerState


def _held(broker: Broker) -> tuple[Partition, ...]:
    return tuple(broker.replicas.partitions.values())


@of_broker(COUNTER, "kbroker_authorizer_denied_total", "request", "resource")
def _denied(broker: Broker) -> Samples:
    """Requests that the authorizer denied, by API and type of resource: one for each resource."""
    return () if broker.authorizer is None else tuple(broker.authorizer.denials.counts.items())


@of_broker(GAUGE, "kbroker_authorizer_acls")
def _acls(broker: Broker) -> float:
    """Access control lists in force; 0 without an authorizer."""
    return 0 if broker.authorizer is None else broker.authorizer.count


# Traffic of clients


def _traffic(name: str, help: str, read: Callable[[Traffic], int]) -> None:
    def samples(broker: Broker) -> Samples:
        return by_topic((partition.topic, read(partition.traffic)) for partition in _held(broker))

    def total(broker: Broker) -> float:
        return sum(read(partition.traffic) for partition in _held(broker)) + read(broker.replicas.traffic_of_retired)

    of_broker(COUNTER, f"kafka_server_brokertopicmetrics_{name}_total", "topic", help=help)(samples)
    of_broker(COUNTER, f"kbroker_all_topics_{name}_total", help=f"{help} All topics, including deleted ones.")(total)


_traffic("messagesin", "Records that clients produced.", lambda traffic: traffic.messages_in)
_traffic("bytesin", "Bytes of the batches that clients produced.", lambda traffic: traffic.bytes_in)
_traffic("bytesout", "Bytes of the batches that clients fetched.", lambda traffic: traffic.bytes_out)


# Logs


def _of_logs(name: str, help: str, read: Callable[[Log], int]) -> None:
    def samples(broker: Broker) -> Samples:
        return (((held.topic, str(held.index)), read(held.log)) for held in _held(broker))

    of_broker(GAUGE, f"kafka_log_log_{name}", "topic", "partition", help=help)(samples)


_of_logs("size", "Bytes of a partition's segments.", lambda log: log.segments.size)
_of_logs("numlogsegments", "Segments of a partition.", lambda log: len(log.segments))
_of_logs("logstartoffset", "The first offset of a partition.", lambda log: log.log_start_offset)
_of_logs("logendoffset", "The offset of a partition's next record.", lambda log: log.log_end_offset)


@of_broker(GAUGE, "kafka_log_logmanager_offlinelogdirectorycount")
def _offline_directories(broker: Broker) -> float:
    """Log directories that have failed."""
    return broker.replicas.directory.state.failure is not None


@of_broker(GAUGE, "kbroker_stray_directories")
def _stray_directories(broker: Broker) -> float:
    """Partition directories that are kept although the metadata does not list them."""
    return broker.replicas.directory.stray_count


@of_node(GAUGE, "kbroker_disk_free_bytes")
def _free_bytes(node: Observed) -> Samples:
    """Free bytes of the disk with the data directory, for processes without privileges."""
    return _disk_bytes(None if node.directory is None else node.directory.state.free_bytes)


@of_node(GAUGE, "kbroker_disk_total_bytes")
def _total_bytes(node: Observed) -> Samples:
    """Bytes of the disk with the data directory."""
    return _disk_bytes(None if node.directory is None else node.directory.state.total_bytes)


def _disk_bytes(known: int | None) -> Samples:
    return () if known is None else (((), known),)


@of_broker(GAUGE, "kbroker_short_of_space")
def _short_of_space(broker: Broker) -> float:
    """1 while the disk is nearly full and records are refused."""
    return broker.replicas.directory.state.is_short_of_space


# Replicas


@of_broker(GAUGE, "kafka_server_replicamanager_partitioncount")
def _partition_count(broker: Broker) -> float:
    """Partitions that this broker holds."""
    return len(broker.replicas.partitions)


@of_broker(GAUGE, "kafka_server_replicamanager_leadercount")
def _leader_count(broker: Broker) -> float:
    """Partitions that this broker leads."""
    return sum(held.is_leader for held in _held(broker))


@of_broker(GAUGE, "kafka_server_replicamanager_underreplicatedpartitions")
def _under_replicated(broker: Broker) -> float:
    """Partitions led by this broker with fewer in-sync replicas than replicas."""
    return sum(held.is_leader and len(held.isr) < len(held.replicas) for held in _held(broker))


@of_broker(GAUGE, "kafka_server_replicamanager_underminisrpartitioncount")
def _under_min_isr(broker: Broker) -> float:
    """Partitions led by this broker with fewer in-sync replicas than acks=all requires."""
    progresses = (held.progress for held in _held(broker))
    return sum(progress is not None and not progress.has_enough_replicas for progress in progresses)


@of_broker(GAUGE, "kafka_server_replicamanager_offlinereplicacount")
def _offline_replicas(broker: Broker) -> float:
    """Partitions whose log could not be opened, or all of them once the directory has failed."""
    replicas = broker.replicas
    failed = len(replicas.failed)
    return failed + len(replicas.partitions) if replicas.directory.state.failure is not None else failed


@of_node(COUNTER, "kafka_server_replicamanager_isrshrinks_total")
def _isr_shrinks(node: Observed) -> float:
    """Times that a partition led by this broker lost an in-sync replica."""
    return node.metrics.counter(SHRINKS).value


@of_node(COUNTER, "kafka_server_replicamanager_isrexpands_total")
def _isr_expands(node: Observed) -> float:
    """Times that a partition led by this broker gained an in-sync replica."""
    return node.metrics.counter(EXPANDS).value


@of_node(COUNTER, "kafka_controller_controllerstats_uncleanleaderelections_total")
def _unclean_elections(node: Observed) -> float:
    """Elections of this broker although it may lack committed records; Kafka's controller counts all brokers."""
    return node.metrics.counter(UNCLEAN).value


@of_broker(COUNTER, "kafka_server_replicamanager_failedisrupdates_total")
def _failed_isr_updates(broker: Broker) -> float:
    """Proposed ISRs that the controller has not accepted."""
    return broker.isr_changes.failed


# Replication


@of_broker(COUNTER, "kafka_server_brokertopicmetrics_replicationbytesin_total")
def _replication_bytes_in(broker: Broker) -> float:
    """Bytes of the batches that this broker fetched from leaders."""
    return broker.fetchers.bytes_in


@of_broker(COUNTER, "kafka_server_brokertopicmetrics_replicationbytesout_total")
def _replication_bytes_out(broker: Broker) -> float:
    """Bytes of the batches that followers fetched."""
    return broker.fetchers.bytes_out


@of_broker(GAUGE, "kafka_server_replicafetchermanager_maxlag")
def _max_lag(broker: Broker) -> float:
    """The largest lag of the partitions that this broker copies, in records."""
    return max(broker.fetchers.lags().values(), default=0)


@of_broker(GAUGE, "kafka_server_replicafetchermanager_failedpartitionscount")
def _failed_partitions(broker: Broker) -> float:
    """Partitions that this broker does not copy until newer metadata arrive."""
    sources = broker.fetchers.sources.values()
    return sum(one.is_stopped for source in sources for one in source.fetcher.partitions.values())


@of_broker(GAUGE, "kafka_server_fetcherlagmetrics_consumerlag", "topic", "partition")
def _lags(broker: Broker) -> Samples:
    """Committed records that a copy on this broker lacks, as of the leader's last answer."""
    for (topic, index), lag in sorted(broker.fetchers.lags().items()):
        yield (topic, str(index)), lag


# Waiting


@of_broker(GAUGE, "kafka_server_delayedoperationpurgatory_purgatorysize", "delayedOperation")
def _purgatory(broker: Broker) -> Samples:
    """Requests that wait on a partition: a Fetch for records, or a Produce for in-sync replicas."""
    yield ("Fetch",), broker.purgatory.size


@of_broker(GAUGE, "kafka_server_fetchsessioncache_numincrementalfetchsessions")
def _fetch_sessions(broker: Broker) -> float:
    """Fetch sessions that clients have open."""
    return len(broker.fetch_sessions)


@of_broker(GAUGE, "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached")
def _fetch_session_partitions(broker: Broker) -> float:
    """Partitions in all fetch sessions."""
    return broker.fetch_sessions.partition_count


# The controller


def _partitions(image: Image) -> list[PartitionImage]:
    return [partition for topic in image.topics_by_id.values() for partition in topic.partitions.values()]


@of_node(GAUGE, "kafka_controller_kafkacontroller_activecontrollercount")
def _active_controllers(node: Observed) -> float:
    """1 on the node that is the active controller."""
    return float(node.settings.server.is_controller)


@of_broker(GAUGE, "kafka_server_raft_metrics_current_leader")
def _current_leader(broker: Broker) -> float:
    """Node id of the active controller as this node knows it, -1 if none is known."""
    return broker.controller.active_id


@of_controller(GAUGE, "kafka_controller_kafkacontroller_globaltopiccount")
def _topic_count(image: Image) -> float:
    """Topics of the cluster."""
    return len(image.topics_by_id)


@of_controller(GAUGE, "kafka_controller_kafkacontroller_globalpartitioncount")
def _global_partition_count(image: Image) -> float:
    """Partitions of the cluster."""
    return sum(len(topic.partitions) for topic in image.topics_by_id.values())


@of_controller(GAUGE, "kafka_controller_kafkacontroller_offlinepartitionscount")
def _offline_partitions(image: Image) -> float:
    """Partitions without a leader."""
    return sum(partition.leader == NO_LEADER for partition in _partitions(image))


@of_controller(GAUGE, "kafka_controller_kafkacontroller_preferredreplicaimbalancecount")
def _imbalance(image: Image) -> float:
    """Partitions that are not led by their first replica."""
    return sum(partition.leader != partition.replicas[0] for partition in _partitions(image))


@of_controller(GAUGE, "kafka_controller_kafkacontroller_activebrokercount")
def _active_brokers(image: Image) -> float:
    """Registered brokers that are not fenced."""
    return sum(not registered.fenced for registered in image.brokers.values())


@of_controller(GAUGE, "kafka_controller_kafkacontroller_fencedbrokercount")
def _fenced_brokers(image: Image) -> float:
    """Registered brokers that are fenced."""
    return sum(registered.fenced for registered in image.brokers.values())


@of_image(GAUGE, "kafka_server_broker_metadata_metrics_last_applied_record_offset")
def _metadata_offset(image: Image) -> float:
    """Offset of the last metadata record that this node acts on."""
    return image.offset


@of_node(GAUGE, "kafka_server_kafkaserver_brokerstate")
def _broker_state(node: Observed) -> float:
    """1 while the broker starts, 3 while it runs, 6 while it stops."""
    return _STOPPING if node.is_stopping else _RUNNING if node.is_serving else _STARTING


# Groups


@of_broker(GAUGE, "kafka_coordinator_group_groupmetadatamanager_numgroups")
def _groups(broker: Broker) -> float:
    """Groups that this broker coordinates."""
    return sum(len(shard.group_ids()) for shard in shards(broker))


@of_broker(GAUGE, "kafka_coordinator_group_groupmetadatamanager_numoffsets")
def _offsets(broker: Broker) -> float:
    """Offsets that groups have committed."""
    return sum(shard.offset_count for shard in shards(broker))


@of_broker(GAUGE, "kbroker_group_partitions", "state")
def _group_partitions(broker: Broker) -> Samples:
    """Partitions of __consumer_offsets that this broker leads, by state."""
    for state in (State.LOADING, State.ACTIVE, State.FAILED):
        yield (state.value,), count(broker, state)


@of_broker(GAUGE, "kbroker_group_unreadable_records")
def _unreadable_records(broker: Broker) -> float:
    """Records of __consumer_offsets that were skipped during loading, because they could not be read."""
    return sum(led.unreadable_records for led in broker.groups.led.values())


@of_broker(COUNTER, "kafka_server_group_coordinator_metrics_offset_commit_total")
def _commits(broker: Broker) -> float:
    """Committed offsets, each partition counted."""
    return sum(shard.counts.offset_commits for shard in shards(broker))


@of_broker(COUNTER, "kafka_server_group_coordinator_metrics_offset_expiration_total")
def _expirations(broker: Broker) -> float:
    """Offsets that expired."""
    return sum(shard.counts.offset_expirations for shard in shards(broker))


@of_broker(COUNTER, "kafka_server_group_coordinator_metrics_offset_deletion_total")
def _deletions(broker: Broker) -> float:
    """Offsets that clients deleted."""
    return sum(shard.counts.offset_deletions for shard in shards(broker))


@of_broker(COUNTER, "kafka_server_group_coordinator_metrics_group_completed_rebalance_total")
def _rebalances(broker: Broker) -> float:
    """Rebalances that completed with a new generation."""
    return sum(shard.counts.completed_rebalances for shard in shards(broker))


@of_broker(COUNTER, "kafka_server_group_coordinator_metrics_consumer_group_rebalance_total")
def _consumer_group_rebalances(broker: Broker) -> float:
    """Rises of the epochs of consumer groups of KIP-848; each one makes a new target assignment."""
    return sum(shard.counts.consumer_rebalances for shard in shards(broker))


@of_broker(GAUGE, "kafka_consumergroup_members", "consumergroup", "state")
def _members(broker: Broker) -> Samples:
    """Members of a group."""
    for _, group in groups(broker):
        yield (group.group_id, group.state_name), len(group.members)


@of_broker(GAUGE, "kafka_consumergroup_current_offset", "consumergroup", "topic", "partition")
def _committed(broker: Broker) -> Samples:
    """The offset that a group has committed."""
    for shard, group in groups(broker):
        for held in committed(shard, group, broker):
            yield (group.group_id, held.topic, str(held.partition)), held.offset


@of_broker(GAUGE, "kafka_consumergroup_lag", "consumergroup", "topic", "partition")
def _lag(broker: Broker) -> Samples:
    """Records between a group's committed offset and the high watermark."""
    for shard, group in groups(broker):
        for held in committed(shard, group, broker):
            if held.lag is not None:
                yield (group.group_id, held.topic, str(held.partition)), held.lag
