"""A member of a group in a process of its own: `python -m compat.group_member '{"servers": ..., "group": ...}'`.

It reads with kafka-python and writes one line of JSON for each thing that it does, at once, so that nothing it did is
unknown when it is killed:

    {"assigned": [0, 2]}                        it owns these partitions now
    {"processed": 2, "first": 40, "last": 79, "digest": ...}   it has processed these offsets of partition 2
    {"committed": {"2": 80}}                    the broker has acknowledged these offsets

A digest is the SHA-256 of keys, values and their sizes, in order. Input that ends is the sign to commit and to leave.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata


def tell(**event: Any) -> None:
    """One line to whoever started this."""
    print(json.dumps(event), flush=True)


def digest(records: Iterable[tuple[bytes, bytes]]) -> str:
    """What was read, in order."""
    state = hashlib.sha256()
    for key, value in records:
        state.update(b"%d:%d:" % (len(key), len(value)) + key + value)
    return state.hexdigest()


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells what the member owns."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        tell(revoked=sorted(each.partition for each in revoked))

    def on_partitions_assigned(self, assigned: Any) -> None:
        tell(assigned=sorted(each.partition for each in assigned))


def work(consumer: KafkaConsumer, leaving: threading.Event) -> None:
    """Process, then commit, until told to leave."""
    while not leaving.is_set():
        # A poll that ends while the client joins may leave kafka-python 3.0.12 standing still: so it is long.
        found = consumer.poll(timeout_ms=2_000)
        ends = {}
        for place, records in found.items():
            read = digest((record.key, record.value) for record in records)
            tell(processed=place.partition, first=records[0].offset, last=records[-1].offset, digest=read)
            assert [record.offset for record in records] == list(range(records[0].offset, records[-1].offset + 1))
            ends[place] = records[-1].offset + 1
        if ends:
            commit(consumer, ends)


def commit(consumer: KafkaConsumer, ends: dict[TopicPartition, int]) -> None:
    """Commit what was processed. Who is no longer a member, or finds no broker, goes on: somebody reads it again."""
    try:
        consumer.commit({place: OffsetAndMetadata(offset, "", -1) for place, offset in ends.items()}, timeout_ms=5_000)
    except KafkaError as error:
        tell(failed=type(error).__name__)
    else:
        tell(committed={place.partition: offset for place, offset in ends.items()})


def main() -> None:
    """Join, work, leave."""
    job = json.loads(sys.argv[1])
    leaving = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), leaving.set()), daemon=True).start()
    consumer = KafkaConsumer(
        bootstrap_servers=job["servers"],
        group_id=job["group"],
        client_id=job["name"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=job["session_ms"],
        heartbeat_interval_ms=500,
        max_poll_records=500,
        reconnect_backoff_max_ms=500,
    )
    # kafka-python 3.0.12 may stand still for ever when it joins before it knows the topic.
    while consumer.partitions_for_topic(job["topic"]) is None:
        pass
    consumer.subscribe([job["topic"]], listener=Listener())
    work(consumer, leaving)
    consumer.close()
    tell(left=True)


if __name__ == "__main__":
    main()
