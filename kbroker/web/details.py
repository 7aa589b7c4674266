"""`/state/partition` and `/state/group`: the details that the page at / shows of one row, as JSON.

/state/partition?topic=orders&partition=3    its offsets, what its leader knows about each replica, and why the
                                             oldest local segments are still here
/state/group?group=billing                   its members, and the partitions with the largest lag
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

from kbroker.broker import Broker
from kbroker.coordinator.context import AnyGroup
from kbroker.coordinator.shard import GroupShard
from kbroker.replication.leader import NEVER, UNKNOWN_OFFSET
from kbroker.replication.partition import Partition
from kbroker.web import health, state
from kbroker.web.groups import committed, shards
from kbroker.web.http import Reply
from kbroker.web.partition_tables import offsets
from kbroker.web.ports import Observed
from kbroker.web.sorting import STEP, Order, Sorted

MAX_SEGMENTS: Final = 100
MAX_MEMBERS: Final = 100
MAX_OFFSETS: Final = 100
_NOT_FOUND: Final = 404


def partition_reply(node: Observed, query: str) -> Reply:
    """The details of a replica on this node. Errors: ValueError for a malformed query."""
    given = dict(parse_qsl(query, max_num_fields=2))
    index = given.get("partition", "")
    held = None
    if node.broker is not None and index.isascii() and index.isdigit() and len(index) < 10:
        held = node.broker.replicas.partitions.get((given.get("topic", ""), int(index)))
    return _absent("this node has no such replica") if held is None else _found(_partition(held, node))


def group_reply(node: Observed, query: str) -> Reply:
    """The details of a group that this node coordinates. Errors: ValueError for a malformed query."""
    group_id = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=1)).get("group")
    if node.broker is not None and group_id is not None:
        for shard in shards(node.broker):
            if (group := shard.group(group_id)) is not None:
                return _found(_group(shard, group, node.broker))
    return _absent("this node coordinates no such group")


def _found(pieces: Iterator[bytes]) -> Reply:
    return Reply(200, health.JSON, pieces)


def _absent(why: str) -> Reply:
    return Reply(_NOT_FOUND, health.JSON, (json.dumps({"error": why}).encode(),))


def _partition(held: Partition, node: Observed) -> Iterator[bytes]:
    segments = tuple(held.log.segments)
    kept = state.kept_segments(held, segments, node.env.timestamp_ms(), MAX_SEGMENTS)
    yield b""
    rows = [
        {
            **state.segment_facts(segment),
            "end_offset": one.verdict.end_offset,
            "is_copied": one.verdict.is_copied,
            "why": one.why.value,
            "text": one.text,
        }
        for segment, one in zip(segments, kept, strict=False)
    ]
    found = offsets(held) | {"segment_count": len(segments), "segments": rows}
    yield json.dumps(found | {"replicas": _replicas(held, node.env.now_ms())}).encode()


def _replicas(held: Partition, now_ms: int) -> list[dict[str, Any]]:
    """Each replica; offsets are null on brokers that do not lead the partition, and before a follower's first fetch."""
    progress = held.progress
    rows: list[dict[str, Any]] = []
    for broker_id in held.replicas:
        end = fetched_ms = None
        if broker_id == held.broker_id:
            end = held.log.log_end_offset
        elif progress is not None and (follower := progress.followers.get(broker_id)) is not None:
            end = None if follower.fetch_offset == UNKNOWN_OFFSET else follower.fetch_offset
            fetched_ms = None if follower.fetched_ms == NEVER else now_ms - follower.fetched_ms
        rows.append(
            {
                "id": broker_id,
                "is_leader": broker_id == held.leader,
                "in_sync": broker_id in held.isr,
                "log_end": end,
                "fetched_ms_ago": fetched_ms,
            }
        )
    return rows


def _group(shard: GroupShard, group: AnyGroup, broker: Broker) -> Iterator[bytes]:
    facts = state.group_facts(group, MAX_MEMBERS) | {"member_count": len(group.members)}
    yield b""
    table = Sorted(Order("lag"), MAX_OFFSETS)
    for number, one in enumerate(committed(shard, group, broker)):
        table.add((1 if one.lag is None else -one.lag, one.topic, one.partition, one))
        if number % STEP == 0:
            yield b""
    page = yield from table.page()
    rows = [
        {"topic": one.topic, "partition": one.partition, "committed": one.offset, "lag": one.lag}
        for *_, one in page.keys
    ]
    yield json.dumps(facts | {"offset_count": page.total, "offsets": rows}).encode()
