"""A group member in its own process: `python -m compat.group_member '{"servers": ..., "group": ...}'`.

It reads with kafka-python and immediately writes one line of JSON for each of its actions, so that all of them are
known when it is killed:

    {"assigned": [0, 2]}                        it owns these partitions now
    {"processed": 2, "first": 40, "last": 79, "digest": ...}   it has processed these offsets of partition 2
    {"committed": {"2": 80}}                    the broker has acknowledged these offsets: all that was processed

A digest is the SHA-256 of keys, values and their sizes, in order. At the end of its input the member commits and
leaves.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.structs import OffsetAndMetadata

COMMIT_EACH = 4  # polls


def tell(**event: Any) -> None:
    """Write one line for the parent process."""
    print(json.dumps(event), flush=True)


def digest(records: Iterable[tuple[bytes, bytes]]) -> str:
    """A digest of the records, in order."""
    state = hashlib.sha256()
    for key, value in records:
        state.update(b"%d:%d:" % (len(key), len(value)) + key + value)
    return state.hexdigest()


class Worker(ConsumerRebalanceListener):  # type: ignore[misc]
    """Processes immediately and commits now and then. Other members process again what it loses before a commit."""

    def __init__(self, consumer: KafkaConsumer, leaving: threading.Event) -> None:
        self._consumer, self._leaving = consumer, leaving
        self._ends: dict[TopicPartition, int] = {}  # processed and not committed

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Report the revoked partitions. A listener of kafka-python cannot wait for a commit, so it does not commit."""
        tell(revoked=sorted(each.partition for each in revoked))

    def on_partitions_lost(self, lost: Any) -> None:
        """The group has removed this member; others already own all of its partitions."""
        self._ends.clear()
        tell(lost=sorted(each.partition for each in lost))

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Report the owned partitions. The member continues in those that it kept; others process the rest."""
        self._ends = {place: end for place, end in self._ends.items() if place in assigned}
        tell(assigned=sorted(each.partition for each in assigned))

    def work(self) -> None:
        """Process until asked to leave, then commit."""
        polls = 0
        while not self._leaving.is_set():
            found = self._poll()
            for place, records in found.items():
                self._process(place, records)
            polls += 1
            if self._ends and (not found or polls % COMMIT_EACH == 0):
                self._commit()
        while self._ends and not self._commit():
            self._leaving.wait(0.1)

    def _poll(self) -> Mapping[TopicPartition, Sequence[Any]]:
        try:
            # A poll that ends while the client joins may make kafka-python 3.0.12 hang, so the poll is long.
            found: Mapping[TopicPartition, Sequence[Any]] = self._consumer.poll(timeout_ms=2_000)
        except KafkaConnectionError:
            # The broker is down. Retry until it is back.
            self._leaving.wait(0.1)
            return {}
        return found

    def _process(self, place: TopicPartition, records: Sequence[Any]) -> None:
        first, last = records[0].offset, records[-1].offset
        assert [record.offset for record in records] == list(range(first, last + 1))
        read = digest((record.key, record.value) for record in records)
        tell(processed=place.partition, first=first, last=last, digest=read)
        self._ends[place] = last + 1

    def _commit(self) -> bool:
        """Commit; False if the broker is down, or the group has removed this member."""
        reported = {place: OffsetAndMetadata(offset, "", -1) for place, offset in self._ends.items()}
        try:
            self._consumer.commit(reported, timeout_ms=5_000)
        except KafkaError:
            return False
        tell(committed={place.partition: offset for place, offset in self._ends.items()})
        self._ends.clear()
        return True


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
    # kafka-python 3.0.12 may hang forever if it joins before it knows the topic.
    while consumer.partitions_for_topic(job["topic"]) is None:
        pass
    worker = Worker(consumer, leaving)
    consumer.subscribe([job["topic"]], listener=worker)
    worker.work()
    consumer.close()
    tell(left=True)


if __name__ == "__main__":
    main()
