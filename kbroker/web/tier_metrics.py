"""Metrics of the tier: those of Kafka's BrokerTopicMetrics by topic, counters also over all topics, and our own.

Lags and sizes are those that the partition's tasks last found; they look for them even if copies fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from kbroker.broker import Broker
from kbroker.runtime.metrics import Histogram
from kbroker.tiered.partition import RemotePartition, TierCounters
from kbroker.web.metrics import COUNTER, GAUGE, HISTOGRAM, Samples, by_topic, of_broker

_NAME: Final = "kafka_server_brokertopicmetrics_{}".format
_MANAGER: Final = "kafka_log_remote_remotelogmanager"
_READERS: Final = "kafka_log_remote_remotestoragethreadpool"
"""Kafka also has these metrics under the deprecated name org.apache.kafka.storage.internals.log."""


def _tiered(broker: Broker) -> list[RemotePartition]:
    return [held.remote for held in tuple(broker.replicas.partitions.values()) if held.remote is not None]


def _counted(name: str, help: str, read: Callable[[TierCounters], int]) -> None:
    def samples(broker: Broker) -> Samples:
        return by_topic((remote.topic_id_partition.topic, read(remote.counters)) for remote in _tiered(broker))

    def total(broker: Broker) -> float:
        retired = 0 if broker.tier.manager is None else read(broker.tier.manager.retired)
        return sum(read(remote.counters) for remote in _tiered(broker)) + retired

    of_broker(COUNTER, _NAME(f"{name}_total"), "topic", help=help)(samples)
    of_broker(COUNTER, f"kbroker_all_topics_{name}_total", help=f"{help} All topics, including deleted ones.")(total)


def _gauged(name: str, help: str, read: Callable[[RemotePartition], int]) -> None:
    def samples(broker: Broker) -> Samples:
        return by_topic((remote.topic_id_partition.topic, max(read(remote), 0)) for remote in _tiered(broker))

    of_broker(GAUGE, _NAME(name), "topic", help=help)(samples)


_counted("remotecopybytes", "Bytes copied to the tier.", lambda found: found.copy_bytes)
_counted("remotecopyrequests", "Copies of segments to the tier that were started.", lambda found: found.copy_requests)
_counted(
    "remotecopyerrors",
    "Failed attempts to copy a segment to the tier, also those that fail before the copy starts: the store does not "
    "answer or has no room, or the segment is damaged.",
    lambda found: found.copy_errors,
)
_counted("remotefetchbytes", "Bytes read from the tier for clients.", lambda found: found.fetch_bytes)
_counted("remotefetchrequests", "Reads of the tier for clients.", lambda found: found.fetch_requests)
_counted("remotefetcherrors", "Failed reads of the tier for clients.", lambda found: found.fetch_errors)
_counted("remotedeleterequests", "Attempts to delete a segment from the tier.", lambda found: found.delete_requests)
_counted("remotedeleteerrors", "Failed deletions of segments in the tier.", lambda found: found.delete_errors)
_counted(
    "buildremotelogauxstaterequests",
    "Attempts to build a follower from the tier.",
    lambda found: found.build_requests,
)
_counted(
    "buildremotelogauxstateerrors",
    "Failed attempts to build a follower from the tier.",
    lambda found: found.build_errors,
)
_gauged(
    "remotecopylagbytes",
    "Bytes of closed segments that are not in the tier yet.",
    lambda remote: remote.copy_lag_bytes,
)
_gauged(
    "remotecopylagsegments", "Closed segments that are not in the tier yet.", lambda remote: remote.copy_lag_segments
)
_gauged(
    "remotedeletelagbytes",
    "Bytes of segments in the tier that are due for deletion.",
    lambda remote: remote.delete_lag_bytes,
)
_gauged(
    "remotedeletelagsegments",
    "Segments in the tier that are due for deletion.",
    lambda remote: remote.delete_lag_segments,
)
_gauged(
    "remotelogsizebytes",
    "Bytes of segments in the tier, including those being deleted.",
    lambda remote: remote.remote_size_bytes,
)
_gauged(
    "remotelogmetadatacount",
    "Segments in the tier, including those being deleted.",
    lambda remote: remote.remote_segments,
)
_gauged(
    "remotelogsizecomputationtime",
    "Duration in milliseconds of the last computation of the tier's size and of the segments due for deletion.",
    lambda remote: remote.size_computation_ms,
)


def _in_percent(name: str, help: str, read: Callable[[RemotePartition], int | None]) -> None:
    def samples(broker: Broker) -> Samples:
        for held in tuple(broker.replicas.partitions.values()):
            if held.remote is not None and held.is_leader and (value := read(held.remote)) is not None:
                yield (held.topic, str(held.index)), value

    of_broker(GAUGE, f"{_MANAGER}_{name}", "topic", "partition", help=f"{help} 0 if there is no such limit.")(samples)


_in_percent(
    "retentionsizeinpercent",
    "Size of a partition in the tier and on the local disk, in percent of retention.bytes.",
    lambda remote: remote.retention_percent,
)
_in_percent(
    "localretentionsizeinpercent",
    "Size of a partition on the local disk, in percent of local.retention.bytes (or of retention.bytes).",
    lambda remote: remote.local_retention_percent,
)


@of_broker(GAUGE, "kbroker_tier_highest_offset", "topic", "partition")
def _highest_offset(broker: Broker) -> Samples:
    """The last offset of a partition in the tier, -1 for none; missing until the tier's metadata is loaded."""
    for remote in _tiered(broker):
        if remote.highest_offset_in_remote_storage is not None:
            _, topic, index = remote.topic_id_partition
            yield (topic, str(index)), remote.highest_offset_in_remote_storage


# Tasks of the tier


@of_broker(GAUGE, f"{_MANAGER}_remotelogmanagertasksavgidlepercent")
def _idle(broker: Broker) -> float:
    """Idle fraction of the copy slots (0 to 1)."""
    manager = broker.tier.manager
    return 1 if manager is None else manager.copiers.available_tokens / manager.copiers.total_tokens


@of_broker(GAUGE, "kbroker_tier_tasks", "task", "state")
def _tasks(broker: Broker) -> Samples:
    """Partitions that copy or expire segments now, or wait for a slot."""
    manager = broker.tier.manager
    if manager is not None:
        for task, limiter in (("copy", manager.copiers), ("expire", manager.expirers)):
            statistics = limiter.statistics()
            yield (task, "running"), statistics.borrowed_tokens
            yield (task, "waiting"), statistics.tasks_waiting


@of_broker(GAUGE, f"{_READERS}_remotelogreadertaskqueuesize")
def _reader_queue(broker: Broker) -> float:
    """Reads of the tier that wait for memory."""
    return 0 if broker.tier.reader is None else broker.tier.reader.cache.waiting


@of_broker(GAUGE, f"{_READERS}_remotelogreaderavgidlepercent")
def _reader_idle(broker: Broker) -> float:
    """Idle fraction of the slots for reads of the tier (0 to 1)."""
    if broker.tier.reader is None:
        return 1
    cache = broker.tier.reader.cache
    return max(0, 1 - cache.reading / cache.max_reads)


@of_broker(HISTOGRAM, f"{_MANAGER}_remotelogreaderfetchrateandtimems")
def _read_times(broker: Broker) -> Samples:
    """Duration in milliseconds of reads of the tier for clients, including failed and abandoned reads."""
    reader = broker.tier.reader
    yield (), Histogram() if reader is None else reader.counters.read_times_us


@of_broker(HISTOGRAM, "kafka_server_remotelogmanager_remote_copy_throttle_time")
def _copy_waits(broker: Broker) -> Samples:
    """Milliseconds that a segment waited for the copy quota; segments that did not wait are not counted."""
    yield (), Histogram() if broker.tier.manager is None else broker.tier.manager.copy_quota.throttled_us


@of_broker(HISTOGRAM, "kafka_server_remotelogmanager_remote_fetch_throttle_time")
def _fetch_waits(broker: Broker) -> Samples:
    """Milliseconds that a piece of a segment waited for the read quota; pieces that did not wait are not counted."""
    yield (), Histogram() if broker.tier.manager is None else broker.tier.manager.fetch_quota.throttled_us


# Timeouts


@of_broker(COUNTER, "kafka_server_delayedremotefetchmetrics_expires_total")
def _expired_fetches(broker: Broker) -> float:
    """Fetches that were answered because remote.fetch.max.wait.ms had passed."""
    return broker.tier.expired_fetches


@of_broker(COUNTER, "kbroker_all_topics_remotelistoffsetsexpires_total")
def _all_expired_lookups(broker: Broker) -> float:
    """Partitions of ListOffsets that the tier did not answer in time. All topics, including deleted ones."""
    return broker.tier.expired_lookups


@of_broker(COUNTER, "kafka_server_delayedremotelistoffsetsmetrics_expires_total", "topic", "partition")
def _expired_lookups(broker: Broker) -> Samples:
    """Times that the tier did not answer ListOffsets for a partition in time."""
    for remote in _tiered(broker):
        _, topic, index = remote.topic_id_partition
        yield (topic, str(index)), remote.counters.expired_lookups


@of_broker(GAUGE, "kbroker_tier_unknown_partitions")
def _unknown_partitions(broker: Broker) -> float:
    """Partitions with objects in the tier whose topics the metadata does not list; the objects are kept."""
    return 0 if broker.tier.manager is None else broker.tier.manager.unknown_partitions


# Caches and damage


@of_broker(GAUGE, "kbroker_tier_chunk_cache_bytes")
def _chunk_bytes(broker: Broker) -> float:
    """Bytes of tiered segments in memory, or being read into memory."""
    return 0 if broker.tier.reader is None else broker.tier.reader.cache.used_bytes


@of_broker(COUNTER, "kbroker_tier_chunks_total", "sort")
def _chunks(broker: Broker) -> Samples:
    """Pieces of tiered segments that were found in memory (hit), were not in memory (miss), or were read ahead
    (ahead).
    """
    if broker.tier.reader is not None:
        cache = broker.tier.reader.cache
        yield from ((("hit",), cache.hits), (("miss",), cache.misses), (("ahead",), cache.read_ahead))


@of_broker(COUNTER, "kbroker_tier_chunk_read_bytes_total")
def _chunk_read_bytes(broker: Broker) -> float:
    """Bytes read from the tier's store for such pieces."""
    return 0 if broker.tier.reader is None else broker.tier.reader.cache.read_bytes


@of_broker(GAUGE, "kbroker_tier_index_cache_bytes")
def _index_bytes(broker: Broker) -> float:
    """Bytes of the indexes of tiered segments in the cache on the local disk."""
    return 0 if broker.tier.indexes is None else broker.tier.indexes.size_bytes


@of_broker(COUNTER, "kbroker_tier_indexes_total", "sort")
def _indexes(broker: Broker) -> Samples:
    """Indexes of tiered segments: found in memory (resident), found on the local disk (disk), fetched from the tier,
    evicted, found damaged on the local disk, rebuilt from their segment; and failed writes to the local disk.
    """
    if broker.tier.indexes is not None:
        for sort, value in asdict(broker.tier.indexes.counters).items():
            yield (sort,), value


@of_broker(COUNTER, "kbroker_tier_damage_total", "sort")
def _damage(broker: Broker) -> Samples:
    """Damage found by reads of the tier: damaged batches, missing segments, pieces that were read again."""
    if broker.tier.reader is not None:
        found = broker.tier.reader.counters
        yield ("batch",), found.damaged_batches
        yield ("segment",), found.missing_segments
        yield ("reread",), found.reread_chunks


# The tier's metadata: 0 until a topic is tiered, and if a plug-in stores the metadata elsewhere


def _of_metadata(broker: Broker, counter: str) -> int:
    metadata = None if broker.tier.manager is None else broker.tier.manager.tools.metadata
    return getattr(getattr(metadata, "counters", None), counter, 0)


@of_broker(COUNTER, "kbroker_tier_metadata_events_read_total")
def _events_read(broker: Broker) -> float:
    """Events read from the log of the tier's metadata; events from a snapshot do not count."""
    return _of_metadata(broker, "events_read")


@of_broker(COUNTER, "kbroker_tier_metadata_skipped_records_total")
def _skipped_records(broker: Broker) -> float:
    """Records of the tier's metadata that could not be read (damaged, or from a foreign writer); each one is logged."""
    return _of_metadata(broker, "skipped_records")


@of_broker(COUNTER, "kbroker_tier_metadata_dropped_events_total")
def _dropped_events(broker: Broker) -> float:
    """Events of the tier's metadata that contradict earlier events, such as an impossible state change."""
    return _of_metadata(broker, "dropped_events")
