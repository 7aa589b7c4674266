"""The tables of partitions and of topics in `/state/view`, and what one pass over all partitions adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kbroker.metadata.image import NO_LEADER, Image, PartitionImage
from kbroker.replication.partition import Partition
from kbroker.web.asked import Asked
from kbroker.web.ports import Observed
from kbroker.web.sorting import STEP, Sorted, Steps

MAX_ERRORS: Final = 10
MAX_TEXT: Final = 1_000
"""Longer error texts are cut."""

OK, REASSIGNING, TIER_ERROR, UNDER_REPLICATED, UNDER_MIN_ISR, LOG_FAILED, OFFLINE = range(7)
TROUBLES: Final = (
    None, "reassigning", "tier error", "under-replicated", "under min ISR", "log failed", "offline"
)  # fmt: skip


def trouble_of(partition: PartitionImage, held: Partition | None, min_isr: int, *, has_failed: bool) -> int:
    """The worst trouble of a partition. `min_isr` is what the metadata say; a replica here knows it better."""
    if partition.leader == NO_LEADER:
        return OFFLINE
    if has_failed:
        return LOG_FAILED
    in_sync, replicas = len(partition.isr), len(partition.replicas)
    if in_sync < replicas:
        if held is not None:
            min_isr = held.log.config.min_insync_replicas
        return UNDER_MIN_ISR if in_sync < min(min_isr, replicas) else UNDER_REPLICATED
    if held is not None and held.remote is not None and held.remote.last_error:
        return TIER_ERROR
    return REASSIGNING if partition.adding_replicas or partition.removing_replicas else OK


class TopicRow(NamedTuple):
    """A topic in its table. Sizes are bytes."""

    name: str
    partitions: int
    trouble: int
    troubled: int
    size: int
    remote_size: int
    is_tiered: bool


@dataclass(slots=True)
class Scan:
    """One pass over all partitions."""

    node: Observed
    image: Image
    asked: Asked
    partitions: Sorted = field(init=False)
    topics: Sorted = field(init=False)
    leaders: Counter[int] = field(default_factory=Counter)
    layouts: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=Counter)
    troubles: Counter[int] = field(default_factory=Counter)
    errors: dict[str, list[Any]] = field(default_factory=dict)
    size_bytes: int = 0
    tiered: int = 0
    remote_bytes: int = 0
    copy_lag_bytes: int = 0
    copy_lag_segments: int = 0
    delete_lag_segments: int = 0
    waits_for_quota: int = 0

    def __post_init__(self) -> None:
        self.partitions, self.topics = self.asked.table("partitions"), self.asked.table("topics")

    def min_isr(self, topic: str) -> int:
        """The min.insync.replicas of a topic, as the metadata say."""
        text = self.image.topic_configs(topic).get("min.insync.replicas")
        return self.node.settings.log.min_insync_replicas if text is None else int(text)

    def run(self) -> Steps[None]:
        """Fill both tables, and count."""
        broker, steps = self.node.broker, 0
        held_partitions = {} if broker is None else broker.replicas.partitions
        failed = {} if broker is None else broker.replicas.failed
        by_partition, by_topic = self.asked.order("partitions").by, self.asked.order("topics").by
        for topic in self.image.topics_by_id.values():
            name, is_internal = topic.name, topic.name.startswith("__")
            matches, min_isr = self.asked.search in name.casefold(), self.min_isr(topic.name)
            worst = troubled = topic_size = topic_remote = 0
            is_tiered = False
            for index, partition in topic.partitions.items():
                key = name, index
                held = held_partitions.get(key)
                trouble = trouble_of(partition, held, min_isr, has_failed=key in failed)
                self.leaders[partition.leader] += 1
                self.layouts[partition.replicas, partition.isr] += 1
                if trouble:
                    self.troubles[trouble] += 1
                    worst, troubled = max(worst, trouble), troubled + 1
                size = copy_lag = 0
                if held is not None:
                    size = held.log.segments.size
                    topic_size += size
                    if held.remote is not None:
                        is_tiered = True
                        topic_remote += self._note_tier(held)
                        copy_lag = held.remote.copy_lag_bytes
                if matches:
                    if by_partition == "health":
                        self.partitions.add((-trouble, is_internal, name, index))
                    else:
                        number = {"name": 0, "size": -size, "copylag": -copy_lag}[by_partition]
                        self.partitions.add((number, name, index))
                steps += 1
                if steps % STEP == 0:
                    yield b""
            self.size_bytes += topic_size
            if matches:
                found = TopicRow(name, len(topic.partitions), worst, troubled, topic_size, topic_remote, is_tiered)
                number = {"health": -worst, "name": 0, "partitions": -found.partitions, "size": -topic_size}[by_topic]
                self.topics.add((number, by_topic == "health" and is_internal, name, found))
            steps += 1
            if steps % STEP == 0:
                yield b""

    def _note_tier(self, held: Partition) -> int:
        """Add up a tiered partition; returns its size in the tier."""
        remote = held.remote
        assert remote is not None
        self.tiered += 1
        self.remote_bytes += remote.remote_size_bytes
        self.copy_lag_bytes += remote.copy_lag_bytes
        self.copy_lag_segments += remote.copy_lag_segments
        self.delete_lag_segments += remote.delete_lag_segments
        self.waits_for_quota += remote.waits_for_quota
        if text := remote.last_error[:MAX_TEXT]:
            if text in self.errors:
                self.errors[text][1] += 1
            elif len(self.errors) < MAX_ERRORS:
                self.errors[text] = [held.name, 1]
        return remote.remote_size_bytes

    def totals(self) -> dict[str, int]:
        """The number of topics and of partitions, and of those with each kind of trouble."""
        found = {"topics": len(self.image.topics_by_id), "partitions": self.leaders.total()}
        return found | {text: self.troubles[number] for number, text in enumerate(TROUBLES) if text is not None}

    def partition_row(self, key: Any) -> dict[str, Any]:
        """The row of a partition, whose key ends with its topic and its index."""
        topic, index = key[-2:]
        partition, broker = self.image.partition(topic, index), self.node.broker
        assert partition is not None
        held = None if broker is None else broker.replicas.partitions.get((topic, index))
        has_failed = broker is not None and (topic, index) in broker.replicas.failed
        trouble = trouble_of(partition, held, self.min_isr(topic), has_failed=has_failed)
        return {
            "topic": topic,
            "partition": index,
            "trouble": TROUBLES[trouble],
            "severity": trouble,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replicas,
            "isr": partition.isr,
            "offsets": None if held is None else offsets(held),
            "error": "" if held is None or held.remote is None else held.remote.last_error[:MAX_TEXT],
        }


def offsets(held: Partition) -> dict[str, Any]:
    """What this broker knows about its replica's offsets and sizes. Only a leader knows the last stable offset."""
    log, remote = held.log, held.remote
    found = {
        "role": held.role.value,
        "log_start": log.log_start_offset,
        "local_start": log.local_log_start_offset,
        "high_watermark": held.known_high_watermark,
        "last_stable": held.last_stable_offset,
        "log_end": log.log_end_offset,
        "size_bytes": log.segments.size,
        "is_tiered": remote is not None,
    }
    if remote is not None:
        found |= {
            "remote_end": remote.highest_offset_in_remote_storage,
            "remote_size_bytes": remote.remote_size_bytes,
            "copy_lag_segments": remote.copy_lag_segments,
            "copy_lag_bytes": remote.copy_lag_bytes,
            "waits_for_quota": remote.waits_for_quota,
        }
    return found


def topic_row(key: Any) -> dict[str, Any]:
    """The row of a topic, whose key ends with it."""
    found: TopicRow = key[-1]
    return found._asdict() | {"trouble": TROUBLES[found.trouble], "severity": found.trouble}
