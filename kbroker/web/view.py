"""`/state/view`: what the page at / shows, as JSON: a summary of the cluster, and one page of each table.

Theory of operation: each refresh reads the metadata image and the live objects once, in steps of well below a
millisecond (see sorting.py). The JSON is then kept for a hundred times as long as it took to make, at least a second
and at most five, so pages that show the same cost no more than one. All views together may take 1% of the time, and
two seconds at once. When they have taken more, a view that was made before is shown again, for up to a
minute, and a request for another one gets status 503.

A broker knows the offsets of its own replicas only. For other partitions the offsets are null; what a leader knows
about its followers is in the details (details.py). A controller knows no offsets.

    search        part of the names of topics, groups and transactional ids; case is ignored
    partitions    the order of this table and its page, see sorting.Order; likewise topics, groups, transactions

Offsets count records, sizes are bytes, times are milliseconds, unknown values are null.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from kbroker.broker import Broker
from kbroker.coordinator.context import AnyGroup
from kbroker.coordinator.group import Group
from kbroker.coordinator.shard import GroupShard
from kbroker.coordinator.transactions.state import IDLE
from kbroker.metadata.image import Image
from kbroker.web import health, state
from kbroker.web.asked import ROWS, Asked
from kbroker.web.groups import committed, groups
from kbroker.web.health import JSON
from kbroker.web.http import TEXT, Reply
from kbroker.web.partition_tables import MAX_TEXT, Scan, topic_row
from kbroker.web.ports import Observed
from kbroker.web.sorting import STEP, Page, Sorted, Steps
from kbroker.web.transaction_metrics import describe, transactions

MIN_LIFE_NS: Final = 1_000_000_000
MAX_LIFE_NS: Final = 5_000_000_000
LIFE_FACTOR: Final = 100
"""Making views takes at most 1% of the time, so it hardly shows in the 99th percentile of requests."""
BURST_NS: Final = 2_000_000_000
MAX_AGE_NS: Final = 60_000_000_000
"""An older view is made again even if the views have taken too much time: at most MAX_KEPT of them in this time."""
STEP_NS: Final = 2_000_000
"""A step that seems to take longer was interrupted: on a busy machine the time includes that of other processes."""
BUSY: Final = "this node makes no more views at the moment: they have taken more than 1% of its time; try again soon"
MAX_KEPT: Final = 16
NAMED: Final = 5
"""Partitions of a transaction that are named."""
_STEADY = frozenset({"Stable", "Empty"})


class _Kept(NamedTuple):
    made_ns: int
    until_ns: int
    text: bytes


class Views:
    """Makes the data, and keeps it for a while."""

    def __init__(self, node: Observed) -> None:
        self._node = node
        self._kept: dict[Asked, _Kept] = {}
        self._paid_ns = 0
        """When the time that views have taken is paid for, at 1% of the time that passes."""

    def reply(self, asked: Asked) -> Reply:
        """The JSON, in pieces; or status 503."""
        now_ns, kept = self._node.env.now_ns(), self._kept.get(asked)
        is_affordable = self._paid_ns < now_ns + LIFE_FACTOR * BURST_NS
        if kept is not None:
            if now_ns < kept.until_ns or (not is_affordable and now_ns - kept.made_ns < MAX_AGE_NS):
                return Reply(200, JSON, (kept.text,))
        elif not is_affordable:
            return Reply(503, TEXT, (f"{BUSY}\n".encode(),), (("Retry-After", "5"),))
        return Reply(200, JSON, self._make(asked))

    def _make(self, asked: Asked) -> Iterator[bytes]:
        now_ns = self._node.env.now_ns
        pieces: list[bytes] = []
        spent_ns, began_ns = 0, now_ns()
        for piece in _view(self._node, asked):
            pieces.append(piece)
            took_ns = now_ns() - began_ns
            spent_ns += took_ns
            self._paid_ns = max(self._paid_ns, began_ns) + LIFE_FACTOR * min(took_ns, STEP_NS)
            yield piece
            began_ns = now_ns()
        last = b'"made_in_ms": %.1f}\n' % (spent_ns / 1_000_000)
        life_ns = min(max(MIN_LIFE_NS, LIFE_FACTOR * spent_ns), MAX_LIFE_NS)
        self._kept.pop(asked, None)
        self._kept[asked] = _Kept(now_ns(), now_ns() + life_ns, b"".join((*pieces, last)))
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]  # the oldest
        yield last


def _view(node: Observed, asked: Asked) -> Iterator[bytes]:
    broker, image = node.broker, node.image
    facts = {
        "at_ms": node.env.timestamp_ms(),
        "node": state.node_facts(node),
        "problems": health.problems(node),
        "warnings": [] if broker is None else [text[:MAX_TEXT] for text in health.warnings(broker)],
        "controllers": [] if image is None else _controllers(node, image),
    }
    yield b"{" + _members(facts)
    if image is not None:
        found = Scan(node, image, asked)
        yield from found.run()
        yield from _table("partitions", found.partitions, found.partition_row)
        yield from _table("topics", found.topics, topic_row)
        brokers = yield from _brokers(image, found)
        yield _members({"brokers": brokers, "totals": found.totals(), "tier": _tier(broker, found)})
        yield _members({"disk": _disk(node, found.size_bytes)})
    if broker is not None:
        yield from _groups(broker, asked)
        yield from _transactions(broker, asked)


def _members(values: dict[str, Any]) -> bytes:
    return json.dumps(values)[1:-1].encode() + b",\n"


def _table(name: str, table: Sorted, row: Any) -> Steps[None]:
    page: Page = yield from table.page()
    rows = []
    for key in page.keys:
        rows.append(row(key))
        if len(rows) % 10 == 0:
            yield b""
    yield _members({name: {"count": page.total, "page": page.number, "page_size": ROWS[name], "rows": rows}})


# The cluster and the node


def _brokers(image: Image, found: Scan) -> Steps[list[dict[str, Any]]]:
    replicas: Counter[int] = Counter()
    lagging: Counter[int] = Counter()
    for number, ((placed, in_sync), count) in enumerate(found.layouts.items(), 1):
        if number % STEP == 0:
            yield b""
        for broker_id in placed:
            replicas[broker_id] += count
            lagging[broker_id] += 0 if broker_id in in_sync else count
    rows = []
    for broker_id in sorted({*image.brokers, *replicas}):
        one = image.brokers.get(broker_id)
        if one is None:
            status = "not registered"
        elif one.fenced:
            status = "fenced"
        else:
            status = "shutting down" if one.in_controlled_shutdown else "running"
        rows.append(
            {
                "id": broker_id,
                "status": status,
                "rack": None if one is None else one.rack,
                "endpoints": [] if one is None else _endpoints(one.endpoints.values()),
                "leaders": found.leaders[broker_id],
                "replicas": replicas[broker_id],
                "out_of_sync": lagging[broker_id],
            }
        )
    return rows


def _controllers(node: Observed, image: Image) -> list[dict[str, Any]]:
    active = node.settings.node_id if node.broker is None else node.broker.controller.active_id
    rows = [
        {"id": one.id, "active": one.id == active, "endpoints": _endpoints(one.endpoints.values())}
        for _, one in sorted(image.controllers.items())
    ]
    if active >= 0 and active not in image.controllers:
        rows.append({"id": active, "active": True, "endpoints": []})
    return rows


def _endpoints(found: Any) -> list[str]:
    return [f"{one.name}://{one.host}:{one.port}" for one in found]


def _disk(node: Observed, logs_bytes: int) -> dict[str, Any]:
    known = None if node.directory is None else node.directory.state
    return {
        "path": node.settings.data_directory,
        "logs_bytes": logs_bytes,
        "free_bytes": None if known is None else known.free_bytes,
        "total_bytes": None if known is None else known.total_bytes,
        "floor_bytes": node.settings.limits.kbroker_min_free_bytes,
        "failure": None if known is None or known.failure is None else str(known.failure),
    }


def _tier(broker: Broker | None, found: Scan) -> dict[str, Any] | None:
    if broker is None or (broker.tier.manager is None and not broker.tier.failure):
        return None
    rows: dict[str, Any] = {
        "failure": broker.tier.failure[:MAX_TEXT],
        "partitions": found.tiered,
        "size_bytes": found.remote_bytes,
        "copy_lag_bytes": found.copy_lag_bytes,
        "copy_lag_segments": found.copy_lag_segments,
        "delete_lag_segments": found.delete_lag_segments,
        "waits_for_quota": found.waits_for_quota,
        "errors": [{"text": text, "partition": name, "count": count} for text, (name, count) in found.errors.items()],
    }
    if (manager := broker.tier.manager) is not None:
        for task, limiter in (("copy", manager.copiers), ("expire", manager.expirers)):
            now = limiter.statistics()
            rows |= {f"{task}_running": now.borrowed_tokens, f"{task}_waiting": now.tasks_waiting}
    if (reader := broker.tier.reader) is not None:
        rows |= {"reads_running": reader.cache.reading, "reads_waiting": reader.cache.waiting}
    return rows


# Groups and transactions


def lag_of(shard: GroupShard, group: AnyGroup, broker: Broker) -> Steps[tuple[int, int, int]]:
    """A group's lag, its committed offsets, and how many of these have no known lag: this broker does not lead the
    partition.
    """
    lag = count = unknown = 0
    for one in committed(shard, group, broker):
        unknown += one.lag is None
        lag += one.lag or 0
        count += 1
        if count % STEP == 0:
            yield b""
    return lag, count, unknown


def _groups(broker: Broker, asked: Asked) -> Steps[None]:
    by, table, steps = asked.order("groups").by, asked.table("groups"), 0
    for shard, group in groups(broker):
        steps += 1
        if steps % STEP == 0:
            yield b""
        if asked.search not in group.group_id.casefold():
            continue
        number = 0
        if by == "lag":
            number = -(yield from lag_of(shard, group, broker))[0]
        elif by != "name":
            number = -len(group.members) if by == "members" else group.state_name in _STEADY
        table.add((number, group.group_id, shard, group))
    page = yield from table.page()
    rows = []
    for _, group_id, shard, group in page.keys:
        lag, count, unknown = yield from lag_of(shard, group, broker)
        rows.append(
            {
                "group_id": group_id,
                "type": "classic" if isinstance(group, Group) else "consumer",
                "state": group.state_name,
                "is_steady": group.state_name in _STEADY,
                "members": len(group.members),
                "lag": lag,
                "offsets": count,
                "unknown": unknown,
            }
        )
    yield _members({"groups": {"count": page.total, "page": page.number, "page_size": ROWS["groups"], "rows": rows}})


def _transactions(broker: Broker, asked: Asked) -> Steps[None]:
    """The open transactions."""
    by, table = asked.order("transactions").by, asked.table("transactions")
    for number, known in enumerate(transactions(broker), 1):
        if number % STEP == 0:
            yield b""
        if known.state not in IDLE and asked.search in known.transactional_id.casefold():
            table.add((known.start_timestamp_ms if by == "age" else 0, known.transactional_id, known))
    yield from _table("transactions", table, _transaction_row)


def _transaction_row(key: Any) -> dict[str, Any]:
    found = describe(key[-1])
    topics = found.pop("partitions")
    named = [f"{topic}-{index}" for topic, indexes in islice(topics.items(), NAMED) for index in indexes[:NAMED]]
    return found | {"partitions": named[:NAMED], "partition_count": sum(map(len, topics.values()))}
