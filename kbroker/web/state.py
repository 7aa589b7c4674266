"""`/state`: every partition, group and connection as JSON, for people and for tests.

The page is one JSON object, made in pieces of one or more partitions, groups or connections. Offsets count records,
sizes are bytes, times are milliseconds; unknown values are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from kbroker import __version__, build
from kbroker.broker import Broker
from kbroker.coordinator.consumer.group import CONSUMER, ConsumerGroup
from kbroker.coordinator.context import AnyGroup
from kbroker.coordinator.group import Group
from kbroker.replication.partition import Partition
from kbroker.server.tcp import Server
from kbroker.storage.retention import judge, local_limits
from kbroker.storage.segment import Segment
from kbroker.tiered.kept import KeptSegment, TierView, why_kept
from kbroker.tiered.partition import RemotePartition
from kbroker.web.groups import committed, groups
from kbroker.web.ports import Observed
from kbroker.web.transaction_metrics import describe, transactions
from wire.types import uuid_to_text

PIECE_BYTES = 8 * 1024
"""The size of a piece: about twenty partitions of one segment each, or one partition with many segments."""
SEGMENTS_SHOWN = 1_000
"""For each partition the newest segments are listed; `segment_count` counts all of them."""


def render(node: Observed) -> Iterator[bytes]:
    """The page, in pieces."""
    broker, server = node.broker, node.server
    yield b'{"node": ' + _json(node_facts(node)) + b",\n"
    timestamp_ms = node.env.timestamp_ms()
    yield from _array("partitions", (_partition(held, timestamp_ms) for held in _sorted_partitions(broker)))
    yield b",\n"
    yield from _array("groups", iter(()) if broker is None else _groups(broker))
    yield b",\n"
    yield from _array("transactions", iter(()) if broker is None else map(describe, transactions(broker)))
    yield b",\n"
    yield from _array("connections", iter(()) if server is None else _connections(server, node.env.now_ms()))
    yield b"}\n"


def _array(name: str, entries: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    yield b'"' + name.encode() + b'": ['
    ready, size, separator = [], 0, b"\n"
    for entry in entries:
        ready.append(separator + _json(entry))
        size += len(ready[-1])
        separator = b",\n"
        if size >= PIECE_BYTES:
            yield b"".join(ready)
            ready, size = [], 0
    yield b"".join(ready) + b"]"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def node_facts(node: Observed) -> dict[str, Any]:
    """The node, and the brokers of its metadata."""
    found: dict[str, Any] = {
        "node_id": node.settings.node_id,
        "version": __version__,
        "build": build(),
        "state": "stopping" if node.is_stopping else "running" if node.is_serving else "starting",
        "data_directory": node.settings.data_directory,
    }
    if (broker := node.broker) is not None:
        found |= {"cluster_id": broker.cluster_id, "controller": broker.controller.active_id}
    if (image := node.image) is not None:
        found |= {
            "metadata_offset": image.offset,
            "controller_epoch": image.epoch,
            "metadata_version": image.metadata_version,
            "brokers": [
                {"id": one.id, "epoch": one.epoch, "fenced": one.fenced} for _, one in sorted(image.brokers.items())
            ],
        }
    return found


def _sorted_partitions(broker: Broker | None) -> list[Partition]:
    return [] if broker is None else [held for _, held in sorted(broker.replicas.partitions.items())]


def _partition(held: Partition, timestamp_ms: int) -> dict[str, Any]:
    log, progress = held.log, held.progress
    segments = tuple(log.segments)
    shown = [segment_facts(segment) for segment in segments[-SEGMENTS_SHOWN:]]
    if held.remote is not None and len(segments) <= SEGMENTS_SHOWN:
        for entry, kept in zip(shown, kept_segments(held, segments, timestamp_ms), strict=True):
            entry |= {"is_copied": kept.verdict.is_copied, "kept": kept.why.value, "kept_because": kept.text}
    return {
        "topic": held.topic,
        "partition": held.index,
        "topic_id": uuid_to_text(held.topic_id),
        "leader": held.leader,
        "leader_epoch": held.leader_epoch,
        "partition_epoch": held.partition_epoch,
        "replicas": list(held.replicas),
        "isr": sorted(held.isr),
        "log_start_offset": log.log_start_offset,
        "local_log_start_offset": log.local_log_start_offset,
        "high_watermark": None if progress is None else progress.high_watermark,
        "last_stable_offset": held.last_stable_offset,
        "log_end_offset": log.log_end_offset,
        "recovery_point": log.recovery_point,
        "size_bytes": sum(segment.size for segment in segments),
        "segment_count": len(segments),
        "segments": shown,
        "remote": None if held.remote is None else _remote(held.remote),
    }


def _remote(remote: RemotePartition) -> dict[str, Any]:
    return {
        "copies": remote.copies,
        "highest_offset_in_remote_storage": remote.highest_offset_in_remote_storage,
        "size_bytes": remote.remote_size_bytes,
        "segment_count": remote.remote_segments,
        "copy_lag_bytes": remote.copy_lag_bytes,
        "copy_lag_segments": remote.copy_lag_segments,
        "delete_lag_bytes": remote.delete_lag_bytes,
        "delete_lag_segments": remote.delete_lag_segments,
        "last_error": remote.last_error or None,
        "waits_for_quota": remote.waits_for_quota,
        "counters": asdict(remote.counters),
    }


def kept_segments(
    held: Partition, segments: Sequence[Segment], timestamp_ms: int, limit: int | None = None
) -> list[KeptSegment]:
    """Why each of the first `limit` segments is still local, from data in memory: a segment with unknown timestamps
    counts as new.
    """
    log, remote = held.log, held.remote
    copies, tier = False, TierView(False)
    high_watermark = held.known_high_watermark
    stable = held.last_stable_offset
    if remote is not None:
        copies, highest = remote.copies, remote.highest_offset_in_remote_storage
        tier = TierView(True, copies, highest, remote.last_error, remote.waits_for_quota)
    verdicts = judge(
        segments,
        largest_timestamp=lambda at: segments[at].max_timestamp if segments[at].max_timestamp >= 0 else timestamp_ms,
        limits=local_limits(log.config, is_copied=copies),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=high_watermark,
        timestamp_ms=timestamp_ms,
        waits_for_copy=copies,
        highest_offset_in_remote_storage=tier.highest_offset_in_remote_storage,
        leased_from=log.config.held_from(log.partition, timestamp_ms),
    )
    return why_kept(
        islice(verdicts, limit),
        log.config,
        tier,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if stable is None else stable,
    )


def segment_facts(segment: Segment) -> dict[str, Any]:
    """A segment of a local log."""
    # A negative largest timestamp means that there is none, or that it was not looked up since the start.
    timestamp_ms = segment.max_timestamp if segment.max_timestamp >= 0 else None
    return {"base_offset": segment.base_offset, "size_bytes": segment.size, "max_timestamp_ms": timestamp_ms}


def _groups(broker: Broker) -> Iterator[dict[str, Any]]:
    for shard, group in groups(broker):
        yield {
            **group_facts(group),
            "offsets": [
                {"topic": held.topic, "partition": held.partition, "committed_offset": held.offset, "lag": held.lag}
                for held in committed(shard, group, broker)
            ],
        }


def group_facts(group: AnyGroup, max_members: int | None = None) -> dict[str, Any]:
    """A group without its offsets, and with at most so many members."""
    if isinstance(group, ConsumerGroup):
        facts = _consumer_group(group, max_members)
    else:
        facts = _classic_group(group, max_members)
    return {"group_id": group.group_id, "state": group.state_name, **facts}


def _classic_group(group: Group, max_members: int | None) -> dict[str, Any]:
    return {
        "type": "classic",
        "protocol_type": group.protocol_type,
        "protocol": group.protocol_name,
        "generation_id": group.generation_id,
        "leader": group.leader_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
            }
            for member in islice(group.members.values(), max_members)
        ],
    }


def _consumer_group(group: ConsumerGroup, max_members: int | None) -> dict[str, Any]:
    return {
        "type": CONSUMER,
        "protocol_type": CONSUMER,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_epoch": member.member_epoch,
                "state": member.state.name,
                "is_classic": member.classic is not None,
            }
            for member in islice(group.members.values(), max_members)
        ],
    }


def _connections(server: Server, now_ms: int) -> Iterator[dict[str, Any]]:
    for connection, observed in tuple(server.connections.items()):
        stream = connection.stream
        yield {
            "peer": f"{stream.peer_host}:{stream.peer_port}",
            "listener": connection.listener,
            "client_id": connection.client_id,
            "state": connection.state.name.lower(),
            "unchanged_ms": observed.unchanged_ms(now_ms),
            "requests": connection.requests,
            "received_bytes": stream.received_bytes,
            "sent_bytes": stream.sent_bytes,
        }
