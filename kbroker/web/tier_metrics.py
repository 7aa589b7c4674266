"""Metrics of the tier: what Kafka's BrokerTopicMetrics have of it, by topic and over all topics.

Lags and sizes are those that the partition's tasks last found, which they look for whether or not a copy succeeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from kbroker.broker import Broker
from kbroker.tiered.partition import RemotePartition, TierCounters
from kbroker.web.metrics import COUNTER, GAUGE, Samples, of_broker, one

_NAME: Final = "kafka_server_brokertopicmetrics_{}".format
_ALL_TIME: Final = "Without a label: all topics, deleted ones as well."
_ALL: Final = "Without a label: all topics."


def _tiered(broker: Broker) -> list[RemotePartition]:
    return [held.remote for held in tuple(broker.replicas.partitions.values()) if held.remote is not None]


def _counted(name: str, help: str, read: Callable[[TierCounters], int]) -> None:
    def samples(broker: Broker) -> Samples:
        topics: defaultdict[str, int] = defaultdict(int)
        for remote in _tiered(broker):
            topics[remote.topic_id_partition.topic] += read(remote.counters)
        yield (), sum(topics.values()) + (0 if broker.tier.manager is None else read(broker.tier.manager.retired))
        for topic, value in topics.items():
            yield (topic,), value

    of_broker(COUNTER, _NAME(f"{name}_total"), f"{help} {_ALL_TIME}", "topic")(samples)


def _gauged(name: str, help: str, read: Callable[[RemotePartition], int]) -> None:
    def samples(broker: Broker) -> Samples:
        topics: defaultdict[str, int] = defaultdict(int)
        for remote in _tiered(broker):
            topics[remote.topic_id_partition.topic] += max(read(remote), 0)
        yield (), sum(topics.values())
        for topic, value in topics.items():
            yield (topic,), value

    of_broker(GAUGE, _NAME(name), f"{help} {_ALL}", "topic")(samples)


_counted("remotecopybytes", "Bytes that were copied to the tier.", lambda found: found.copy_bytes)
_counted("remotecopyrequests", "Segments that were to be copied to the tier.", lambda found: found.copy_requests)
_counted("remotecopyerrors", "Copies that failed.", lambda found: found.copy_errors)
_counted("remotefetchbytes", "Bytes that were read from the tier for clients.", lambda found: found.fetch_bytes)
_counted("remotefetchrequests", "Reads of the tier for clients.", lambda found: found.fetch_requests)
_counted("remotefetcherrors", "Such reads that failed.", lambda found: found.fetch_errors)
_counted("remotedeleterequests", "Segments that were to be deleted from the tier.", lambda found: found.delete_requests)
_counted("remotedeleteerrors", "Deletions that failed.", lambda found: found.delete_errors)
_gauged(
    "remotecopylagbytes",
    "Bytes of closed segments that are not in the tier yet.",
    lambda remote: remote.copy_lag_bytes,
)
_gauged("remotecopylagsegments", "Such segments.", lambda remote: remote.copy_lag_segments)
_gauged(
    "remotedeletelagbytes",
    "Bytes in the tier that are due to be deleted and still there.",
    lambda remote: remote.delete_lag_bytes,
)
_gauged("remotedeletelagsegments", "Such segments.", lambda remote: remote.delete_lag_segments)
_gauged(
    "remotelogsizebytes",
    "Bytes of segments in the tier, deletions under way included.",
    lambda remote: remote.remote_size_bytes,
)
_gauged("remotelogmetadatacount", "Such segments.", lambda remote: remote.remote_segments)


@of_broker(
    GAUGE,
    "kbroker_tier_highest_offset",
    "The last offset of a partition that is in the tier, -1 for none; not there before the metadata are read.",
    "topic",
    "partition",
)
def _highest_offset(broker: Broker) -> Samples:
    for remote in _tiered(broker):
        if remote.highest_offset_in_remote_storage is not None:
            _, topic, index = remote.topic_id_partition
            yield (topic, str(index)), remote.highest_offset_in_remote_storage


# What the tier is busy with


@of_broker(
    GAUGE,
    "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent",
    "How much of what may be copied at once is not taken just now, from 0 to 1.",
)
def _idle(broker: Broker) -> Samples:
    manager = broker.tier.manager
    return one(1 if manager is None else manager.copiers.available_tokens / manager.copiers.total_tokens)


@of_broker(
    GAUGE, "kbroker_tier_tasks", "Partitions that copy or expire segments now, or wait for their turn.", "task", "state"
)
def _tasks(broker: Broker) -> Samples:
    manager = broker.tier.manager
    if manager is not None:
        for task, limiter in (("copy", manager.copiers), ("expire", manager.expirers)):
            statistics = limiter.statistics()
            yield (task, "running"), statistics.borrowed_tokens
            yield (task, "waiting"), statistics.tasks_waiting


@of_broker(
    GAUGE,
    "org_apache_kafka_storage_internals_log_remotestoragethreadpool_remotelogreadertaskqueuesize",
    "Reads of the tier that wait for memory.",
)
def _reader_queue(broker: Broker) -> Samples:
    reader = broker.tier.reader
    return one(0 if reader is None else reader.cache.waiting)


@of_broker(GAUGE, "kbroker_tier_chunk_cache_bytes", "Bytes of segments in memory, or being read into it.")
def _chunk_bytes(broker: Broker) -> Samples:
    reader = broker.tier.reader
    return one(0 if reader is None else reader.cache.used_bytes)


@of_broker(
    COUNTER,
    "kbroker_tier_chunks_total",
    "Pieces of segments that were wanted and in memory (hit), or not (miss), and those that were read ahead.",
    "sort",
)
def _chunks(broker: Broker) -> Samples:
    if broker.tier.reader is not None:
        cache = broker.tier.reader.cache
        yield ("hit",), cache.hits
        yield ("miss",), cache.misses
        yield ("ahead",), cache.read_ahead


@of_broker(
    COUNTER,
    "kbroker_tier_damage_total",
    "What reads of the tier met: batches that are damaged, segments that are missing, pieces that were read again.",
    "sort",
)
def _damage(broker: Broker) -> Samples:
    if broker.tier.reader is not None:
        counters = broker.tier.reader.counters
        yield ("batch",), counters.damaged_batches
        yield ("segment",), counters.missing_segments
        yield ("reread",), counters.reread_chunks
