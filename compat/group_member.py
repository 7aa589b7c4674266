"""A member of a group in a process of its own: `python -m compat.group_member '{"servers": ..., "group": ...}'`.

It reads with kafka-python and writes one line of JSON for each thing that it does, at once, so that nothing it did is
unknown when it is killed:

    {"assigned": [0, 2]}                        it owns these partitions now
    {"processed": 2, "first": 40, "last": 79, "digest": ...}   it has processed these offsets of partition 2
    {"committed": {"2": 80}}                    the broker has acknowledged these offsets: all that was processed

A digest is the SHA-256 of keys, values and their sizes, in order. Input that ends is the sign to commit and to leave.
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
    """One line to whoever started this."""
    print(json.dumps(event), flush=True)


def digest(records: Iterable[tuple[bytes, bytes]]) -> str:
    """What was read, in order."""
    state = hashlib.sha256()
    for key, value in records:
        state.update(b"%d:%d:" % (len(key), len(value)) + key + value)
    return state.hexdigest()


class Worker(ConsumerRebalanceListener):  # type: ignore[misc]
    """Processes at once and commits now and then. What it loses before that is for somebody else to do again."""

    def __init__(self, consumer: KafkaConsumer, leaving: threading.Event) -> None:
        self._consumer, self._leaving = consumer, leaving
        self._ends: dict[TopicPartition, int] = {}  # what is processed and not committed

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Tell what it gives away. A listener of kafka-python cannot wait for a commit, so there is none here."""
        tell(revoked=sorted(each.partition for each in revoked))

    def on_partitions_lost(self, lost: Any) -> None:
        """This is no member any more: others have gone on with all of it since."""
        self._ends.clear()
        tell(lost=sorted(each.partition for each in lost))

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Tell what the member owns. What it kept it goes on with, where it was; the rest is somebody else's."""
        self._ends = {place: end for place, end in self._ends.items() if place in assigned}
        tell(assigned=sorted(each.partition for each in assigned))

    def work(self) -> None:
        """Process until told to leave, then commit."""
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
            # A poll that ends while the client joins may leave kafka-python 3.0.12 standing still: so it is long.
            found: Mapping[TopicPartition, Sequence[Any]] = self._consumer.poll(timeout_ms=2_000)
        except KafkaConnectionError:
            # There is no broker now. It is asked again until there is one.
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
        """Commit; False when the broker is away, or this is no member any more."""
        told = {place: OffsetAndMetadata(offset, "", -1) for place, offset in self._ends.items()}
        try:
            self._consumer.commit(told, timeout_ms=5_000)
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
    # kafka-python 3.0.12 may stand still for ever when it joins before it knows the topic.
    while consumer.partitions_for_topic(job["topic"]) is None:
        pass
    worker = Worker(consumer, leaving)
    consumer.subscribe([job["topic"]], listener=worker)
    worker.work()
    consumer.close()
    tell(left=True)


if __name__ == "__main__":
    main()
