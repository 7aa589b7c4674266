"""Tiered storage: offsets in the tier, reads below the local start, deletion, settings that are refused.

A broker offers it if it makes a topic with remote.storage.enable=true. Segments roll by the records' times, and local
retention deletes them when they are copied; the broker decides when it looks, so these rows wait.
"""

from __future__ import annotations

import functools
import time

from compat.card.client import Client
from compat.card.codec import Message
from compat.card.connection import Deadline
from compat.card.outcome import code_name
from compat.card.registry import Area, NotOffered
from compat.card.rows.fetch import fetch, fetched
from compat.card.session import Failed, Topic
from compat.oracle.batches import Batch, Item
from compat.oracle.test_fetch import parts, wanted
from compat.oracle.test_offsets import delete, listing
from compat.oracle.test_produce import produce
from compat.oracle.test_topics_and_configs import SET, TOPIC, alter

AREA = Area("tier")
HOUR_MS = 3_600_000
SEGMENTS, EACH = 4, 3
TIERED = {
    "remote.storage.enable": "true", "segment.ms": str(HOUR_MS), "local.retention.bytes": "1", "retention.ms": "-1",
}  # fmt: skip
LOCAL_LIMIT_S, MOVED_S = 60.0, 40.0
EARLIEST_LOCAL, LATEST_TIERED = -4, -5
BEGAN_MS = int(time.time() * 1000) - 24 * HOUR_MS


def tiered(client: Client) -> Topic:
    """A topic of four segments, of which all but the active one are only in the tier."""

    def make() -> Topic:
        _require(client)
        topic = client.topic("tiered", configs=TIERED)
        for number in range(SEGMENTS):
            items = [Item(b"%d-%d" % (number, place)) for place in range(EACH)]
            batch = Batch(items, base_timestamp=BEGAN_MS + 2 * number * HOUR_MS).encode()
            client.call("Produce", 9, produce(topic.name, batch))

        _await_local_start(client, topic, (SEGMENTS - 1) * EACH)
        return topic

    return client.shared_topic("tiered", make)


def _await_local_start(client: Client, topic: Topic, offset: int) -> None:
    """Wait until all but the active segment are only in the tier. Errors: NotOffered."""
    deadline = Deadline.after(min(MOVED_S, client.deadline.left_s()))
    while _offset(client, topic, EARLIEST_LOCAL)[0] != offset:
        if deadline.is_over:
            raise NotOffered(
                f"the broker has not moved segments to the tier within {MOVED_S:.0f} s; it does so in the intervals "
                "remote.log.manager.task.interval.ms and log.retention.check.interval.ms"
            )
        time.sleep(0.05)


def _require(client: Client) -> None:
    """Errors: NotOffered if a topic with remote storage cannot be made."""

    def make() -> Topic:
        return client.topic("probe", configs={"remote.storage.enable": "true"})

    try:
        client.shared_topic("tier probe", make)
    except Failed as failure:
        raise NotOffered(f"tiered storage: {failure}") from None


def _offset(client: Client, topic: Topic, timestamp: int, *, version: int = 9) -> tuple[int, str]:
    part = client.call("ListOffsets", version, listing(topic.name, timestamp, 0))["Topics"][0]["Partitions"][0]
    return part["Offset"], code_name(part["ErrorCode"])


@AREA.row("local and tiered offsets are listed", limit_s=LOCAL_LIMIT_S)
def _(client: Client) -> None:
    topic = tiered(client)
    names = {"earliest": -2, "earliest local": EARLIEST_LOCAL, "latest tiered": LATEST_TIERED, "latest": -1}
    for label, timestamp in names.items():
        client.note(label, list(_offset(client, topic, timestamp)))


@AREA.row("timestamps are found in the tier", limit_s=LOCAL_LIMIT_S)
def _(client: Client) -> None:
    topic = tiered(client)
    for hours in (-1, 0, 1, 2, 3, 4, 6, 7):
        client.note(f"{hours} hours after the first", list(_offset(client, topic, BEGAN_MS + hours * HOUR_MS)))
    client.note("the greatest timestamp", list(_offset(client, topic, -3)))


def _read(version: int, client: Client) -> None:
    topic = tiered(client)
    for offset in range(SEGMENTS * EACH + 1):
        part = _first_batch(client, topic, version, offset)
        data = bytes(part.pop("Records"))
        part["base offset"] = int.from_bytes(data[:8], "big") if data else "no batch"
        client.note(f"from offset {offset}", part)


def _first_batch(client: Client, topic: Topic, version: int, offset: int) -> Message:
    """A partition's answer. Kafka answers without records if the tier is slow, so ask until there are some."""
    found: list[Message] = []

    def has_records() -> bool:
        message = fetch(topic, version, wanted(0, offset, limit=1), MaxWaitMs=500, MaxBytes=1)
        found[:] = [parts(fetched(client, version, message))[0]]
        return bool(found[0]["Records"]) or found[0]["ErrorCode"] != 0 or offset == SEGMENTS * EACH

    client.until(has_records, f"a fetch from offset {offset} returns no records")
    return found[0]


for _number in (12, 17):
    AREA.add(
        f"Fetch version {_number} reads below the local start", functools.partial(_read, _number), limit_s=LOCAL_LIMIT_S
    )


@AREA.row("below the start of the log is out of range", limit_s=LOCAL_LIMIT_S)
def _(client: Client) -> None:
    topic = tiered(client)
    for offset in (-1, 13):
        client.note(f"offset {offset}", parts(fetched(client, 12, fetch(topic, 12, wanted(0, offset))))[0])


@AREA.row("records in the tier are deleted up to an offset", limit_s=LOCAL_LIMIT_S)
def _(client: Client) -> None:
    _require(client)
    topic = client.topic("tier-deleted", configs=TIERED)
    for number in range(3):
        batch = Batch([Item(), Item()], base_timestamp=BEGAN_MS + 2 * number * HOUR_MS).encode()
        client.call("Produce", 9, produce(topic.name, batch))
    _await_local_start(client, topic, 4)
    client.note("up to 3", client.call("DeleteRecords", 2, delete(topic.name, 0, 3))["Topics"])
    client.note("earliest", list(_offset(client, topic, -2)))
    client.note_code("offset 2", parts(fetched(client, 12, fetch(topic, 12, wanted(0, 2))))[0]["ErrorCode"])


REFUSED = {
    "a compacted topic": {"cleanup.policy": "compact"},
    "a local retention time above the whole": {"retention.ms": "1000", "local.retention.ms": "2000"},
    "a local retention size above the whole": {"retention.bytes": "1000", "local.retention.bytes": "2000"},
}


def _refused(configs: dict[str, str], client: Client) -> None:
    _require(client)
    settings = {"remote.storage.enable": "true", **configs}
    listed = [{"Name": key, "Value": value} for key, value in settings.items()]
    topic = {"Name": client.new_name("refused"), "NumPartitions": 1, "ReplicationFactor": 1, "Configs": listed}
    answer = client.call("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 10_000})
    client.note_code("answer", answer["Topics"][0]["ErrorCode"])


for _label, _configs in REFUSED.items():
    AREA.add(f"tiered storage is refused to {_label}", functools.partial(_refused, _configs))


@AREA.row("tiered storage is enabled later, and not disabled without a decision")
def _(client: Client) -> None:
    _require(client)
    topic = client.topic("later")

    def altered(*changes: tuple[str, int, str | None]) -> Message:
        return client.call("IncrementalAlterConfigs", 1, alter(TOPIC, topic.name, *changes))

    client.note("enabled", altered(("remote.storage.enable", SET, "true")))
    client.note("disabled", altered(("remote.storage.enable", SET, "false")))
    client.note("compacted", altered(("cleanup.policy", SET, "compact")))
    client.note("copying is stopped", altered(("remote.log.copy.disable", SET, "true")))
