"""Metrics of the tier: those of Kafka's BrokerTopicMetrics by topic and over all topics, and our own.

Lags and sizes are those that the partition's tasks last found; they look for them even if copies fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kbroker.broker import Broker
from kbroker.runtime.metrics import Histogram
from kbroker.tiered.partition import RemotePartition, TierCounters
from kbroker.web.metrics import COUNTER, GAUGE, HISTOGRAM, Samples, by_topic, of_broker

if TYPE_CHECKING:
    from kbroker.tiered.chunk_cache import ChunkCache
    from kbroker.tiered.index_cache import RemoteIndexCache
    from kbroker.tiered.manager import RemoteLogManager
    from kbroker.tiered.quota import ByteQuota
    from kbroker.tiered.remote_read import RemoteReader

_NAME: Final = "kafka_server_brokertopicmetrics_{}".format
_MANAGER: Final = "kafka_log_remote_remotelogmanager"
_ALL_TIME: Final = "Without a label: all topics, including deleted ones."
_ALL: Final = "Without a label: all topics."


def _tiered(broker: Broker) -> list[RemotePartition]:
    return [held.remote for held in tuple(broker.replicas.partitions.values()) if held.remote is not None]


def _counted(name: str, help: str, read: Callable[[TierCounters], int]) -> None:
    def samples(broker: Broker) -> Samples:
        retired = 0 if broker.tier.manager is None else read(broker.tier.manager.retired)
        values = ((remote.topic_id_partition.topic, read(remote.counters)) for remote in _tiered(broker))
        return by_topic(values, without_topic=retired)

    of_broker(COUNTER, _NAME(f"{name}_total"), "topic", help=f"{help} {_ALL_TIME}")(samples)


def _gauged(name: str, help: str, read: Callable[[RemotePartition], int]) -> None:
    def samples(broker: Broker) -> Samples:
        return by_topic((remote.topic_id_partition.topic, max(read(remote), 0)) for remote in _tiered(broker))

    of_broker(GAUGE, _NAME(name), "topic", help=f"{help} {_ALL}")(samples)


_counted("remotecopybytes", "Bytes copied to the tier.", lambda found: found.copy_bytes)
_counted("remotecopyrequests", "Attempts to copy a segment to the tier.", lambda found: found.copy_requests)
_counted("remotecopyerrors", "Failed copies of segments to the tier.", lambda found: found.copy_errors)
_counted("remotefetchbytes", "Bytes read from the tier for clients.", lambda found: found.fetch_bytes)
_counted("remotefetchrequests", "Reads of the tier for clients.", lambda found: found.fetch_requests)
_counted("remotefetcherrors", "Failed reads of the tier for clients.", lambda found: found.fetch_errors)
_counted("remotedeleterequests", "Attempts to delete a segment from the tier.", lambda found: found.delete_requests)
_counted("remotedeleteerrors", "Failed deletions of segments in the tier.", lambda found: found.delete_errors)
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


def _of_cache(kind: str, name: str, help: str, read: Callable[[ChunkCache], int]) -> None:
    def value(broker: Broker) -> float:
        reader = broker.tier.reader
        return 0 if reader is None else read(reader.cache)

    of_broker(kind, name, help=help)(value)


def _reader_idle(broker: Broker) -> float:
    """Idle fraction of the slots for reads of the tier (0 to 1)."""
    if broker.tier.reader is None:
        return 1
    cache = broker.tier.reader.cache
    return max(0, 1 - cache.reading / cache.max_reads)


for _group in ("org_apache_kafka_storage_internals_log", "kafka_log_remote"):
    # Kafka has both; the first one is deprecated.
    _pool = f"{_group}_remotestoragethreadpool"
    _of_cache(
        GAUGE,
        f"{_pool}_remotelogreadertaskqueuesize",
        "Reads of the tier that wait for memory.",
        lambda cache: cache.waiting,
    )
    of_broker(GAUGE, f"{_pool}_remotelogreaderavgidlepercent")(_reader_idle)


@of_broker(HISTOGRAM, f"{_MANAGER}_remotelogreaderfetchrateandtimems")
def _read_times(broker: Broker) -> Samples:
    """Duration in milliseconds of reads of the tier for clients, including failed and abandoned reads."""
    reader = broker.tier.reader
    yield (), Histogram() if reader is None else reader.counters.read_times_us


def _throttled(what: str, help: str, read: Callable[[RemoteLogManager], ByteQuota]) -> None:
    def samples(broker: Broker) -> Samples:
        manager = broker.tier.manager
        yield (), Histogram() if manager is None else read(manager).throttled_us

    of_broker(HISTOGRAM, f"kafka_server_remotelogmanager_remote_{what}_throttle_time", help=help)(samples)


_throttled(
    "copy",
    "Milliseconds that a segment waited for the copy quota; segments that did not wait are not counted.",
    lambda manager: manager.copy_quota,
)
_throttled(
    "fetch",
    "Milliseconds that a piece of a segment waited for the read quota; pieces that did not wait are not counted.",
    lambda manager: manager.fetch_quota,
)


# Timeouts


@of_broker(COUNTER, "kafka_server_delayedremotefetchmetrics_expires_total")
def _expired_fetches(broker: Broker) -> float:
    """Fetches that were answered because remote.fetch.max.wait.ms had passed."""
    return broker.tier.expired_fetches


@of_broker(COUNTER, "kafka_server_delayedremotelistoffsetsmetrics_expires_total", "topic", "partition")
def _expired_lookups(broker: Broker) -> Samples:
    """Partitions of ListOffsets that the tier did not answer in time. Without labels: all, including deleted ones."""
    yield (), broker.tier.expired_lookups
    for remote in _tiered(broker):
        _, topic, index = remote.topic_id_partition
        yield (topic, str(index)), remote.counters.expired_lookups


@of_broker(GAUGE, "kbroker_tier_unknown_partitions")
def _unknown_partitions(broker: Broker) -> float:
    """Partitions with objects in the tier whose topics the metadata does not list; the objects are kept."""
    return 0 if broker.tier.manager is None else broker.tier.manager.unknown_partitions


# Caches and damage


def _by_sort(name: str, help: str, read: Callable[[RemoteReader, RemoteIndexCache], dict[str, int]]) -> None:
    def samples(broker: Broker) -> Samples:
        reader, indexes = broker.tier.reader, broker.tier.indexes
        if reader is not None and indexes is not None:
            for sort, value in read(reader, indexes).items():
                yield (sort,), value

    of_broker(COUNTER, name, "sort", help=help)(samples)


_of_cache(
    GAUGE,
    "kbroker_tier_chunk_cache_bytes",
    "Bytes of tiered segments in memory, or being read into memory.",
    lambda cache: cache.used_bytes,
)
_by_sort(
    "kbroker_tier_chunks_total",
    "Pieces of tiered segments that were found in memory (hit), were not in memory (miss), or were read ahead (ahead).",
    lambda reader, _: {"hit": reader.cache.hits, "miss": reader.cache.misses, "ahead": reader.cache.read_ahead},
)
_of_cache(
    COUNTER,
    "kbroker_tier_chunk_read_bytes_total",
    "Bytes read from the tier's store for such pieces.",
    lambda cache: cache.read_bytes,
)


@of_broker(GAUGE, "kbroker_tier_index_cache_bytes")
def _index_bytes(broker: Broker) -> float:
    """Bytes of the indexes of tiered segments in the cache on the local disk."""
    indexes = broker.tier.indexes
    return 0 if indexes is None else indexes.size_bytes


_by_sort(
    "kbroker_tier_indexes_total",
    "Indexes of tiered segments: found in memory (resident), found on the local disk (disk), fetched from the tier, "
    "evicted, found damaged on the local disk, rebuilt from their segment; and failed writes to the local disk.",
    lambda _, indexes: {
        "resident": indexes.counters.resident_hits,
        "disk": indexes.counters.disk_hits,
        "fetched": indexes.counters.fetches,
        "evicted": indexes.counters.evictions,
        "damaged": indexes.counters.damaged_files,
        "rebuilt": indexes.counters.rebuilds,
        "write_error": indexes.counters.write_errors,
    },
)
_by_sort(
    "kbroker_tier_damage_total",
    "Damage found by reads of the tier: damaged batches, missing segments, pieces that were read again.",
    lambda reader, _: {
        "batch": reader.counters.damaged_batches,
        "segment": reader.counters.missing_segments,
        "reread": reader.counters.reread_chunks,
    },
)
