"""Topics created and filled by one request each, for tests of reading rather than writing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from compat.oracle.batches import Batch, Item
from compat.oracle.conftest import await_leaders
from compat.oracle.raw import connected


def create(servers: str, name: str, partitions: int = 1, *, replicas: int = 1, **configs: str) -> str:
    """Create a topic, and wait until each partition has a leader; returns its name. Underscores stand for dots."""
    settings = [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()]
    topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": replicas, "Configs": settings}
    with connected(servers) as connection:
        answer = connection.call("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 30_000})
    assert answer["Topics"][0]["ErrorCode"] == 0, answer
    await_leaders(servers, name, partitions)
    return name


def fill(servers: str, topic: str, values: Mapping[int, Sequence[bytes]], *, start_ms: int | None = None) -> None:
    """Write values to partitions, a millisecond apart; by default starting now, so that retention keeps them."""
    first = int(time.time() * 1000) if start_ms is None else start_ms
    parts = []
    for partition, part in values.items():
        items = [Item(value, timestamp_delta=number) for number, value in enumerate(part)]
        parts.append({"Index": partition, "Records": Batch(items, base_timestamp=first).encode()})
    message = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{"Name": topic, "PartitionData": parts}]}
    with connected(servers) as connection:
        answer = connection.call("Produce", 7, message)
    codes = {part["ErrorCode"] for part in answer["Responses"][0]["PartitionResponses"]}
    assert codes == {0}, answer
