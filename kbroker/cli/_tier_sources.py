"""Where the commands of the tier look: at a broker, by Kafka's protocol alone, or into a data directory, read only.

Both tell the same: which topics there are, what `__remote_log_metadata` says, and where the partitions begin and end. A
directory can be read while a broker runs on it: what is being written at that moment is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kbroker.cli import CommandFailed
from kbroker.cli._admin import admin_client, client_errors, client_settings
from kbroker.tiered.catalogue import FINISHED, METADATA_TOPIC, Catalogue, Partition

if TYPE_CHECKING:
    from kafka import KafkaConsumer
    from kafka.admin import KafkaAdminClient

    from kbroker.cli._positions import TopicPartitions

STALLED_MS: Final = 30_000
POLL_MS: Final = 500
EARLIEST: Final = -2
LATEST: Final = -1
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5


class Offsets(NamedTuple):
    """Where a partition lies, -1 or None for what is not there or not known.

    Shape  latest_tiered is the highest offset in the tier, inclusive; log_end_offset the high watermark where a broker
           was asked
    """

    log_start_offset: int | None
    local_log_start_offset: int | None
    latest_tiered: int | None
    log_end_offset: int | None


class Source(Protocol):
    """What can be asked of either."""

    def partitions(self) -> Mapping[str, Sequence[int]]:
        """Every topic with the numbers of its partitions."""
        ...

    def catalogue(self) -> Catalogue:
        """All of `__remote_log_metadata` as it is now."""
        ...

    def offsets(self, partitions: Sequence[Partition], catalogue: Catalogue) -> dict[Partition, Offsets]: ...


@contextmanager
def open_source(options: argparse.Namespace) -> Iterator[Source]:
    """The source that the flags name. Raises CommandFailed in the place of what goes wrong with it."""
    if options.data_dir is not None and options.bootstrap_servers is None:
        from kbroker.cli._tier_directory import DirectorySource  # noqa: PLC0415

        yield DirectorySource(str(options.data_dir))
        return
    with admin_client(options) as client:
        yield BrokerSource(client, client_settings(options))


class BrokerSource:
    """A broker, kbroker or another with Kafka's metadata topic."""

    def __init__(self, client: KafkaAdminClient, settings: Mapping[str, Any]) -> None:
        self.client = client
        self._settings = settings
        self._found = Catalogue()
        self._next: dict[Any, int] = {}
        self._topic_id: object = None

    def partitions(self) -> dict[str, list[int]]:
        """Every topic with the numbers of its partitions."""
        return {
            topic["name"]: sorted(each["partition_index"] for each in topic["partitions"])
            for topic in self.client.describe_topics()
        }

    def catalogue(self) -> Catalogue:
        """The metadata topic to where it ends now; after the first time it is read on from where that was."""
        from kafka import KafkaConsumer  # noqa: PLC0415
        from kafka.structs import TopicPartition  # noqa: PLC0415

        with client_errors(self._settings):
            topic = next((each for each in self.client.describe_topics() if each["name"] == METADATA_TOPIC), None)
        topic_id = None if topic is None else topic.get("topic_id")
        if self._next and (topic is None or topic_id != self._topic_id):
            raise CommandFailed(f"{METADATA_TOPIC} was deleted meanwhile")
        self._topic_id = topic_id
        if topic is None:
            return Catalogue()
        indexes = sorted(each["partition_index"] for each in topic["partitions"])
        settings = {
            **self._settings,
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "auto_offset_reset": "none",
        }
        with client_errors(settings):
            consumer = KafkaConsumer(**settings)
            try:
                _read(consumer, [TopicPartition(METADATA_TOPIC, index) for index in indexes], self._found, self._next)
            finally:
                consumer.close(autocommit=False)
        return self._found.copy()

    def offsets(self, partitions: Sequence[Partition], catalogue: Catalogue) -> dict[Partition, Offsets]:
        """By ListOffsets."""
        from kbroker.cli._groups import log_offsets  # noqa: PLC0415

        del catalogue
        starts, locals_, tiered, ends = (
            log_offsets(self.client, partitions, spec) for spec in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST)
        )
        return {
            each: Offsets(starts.get(each), locals_.get(each), tiered.get(each), ends.get(each)) for each in partitions
        }


def _read(consumer: KafkaConsumer, partitions: list[Any], found: Catalogue, positions: dict[Any, int]) -> None:
    """Replay each partition from its position to its end, and move the positions on."""
    consumer.assign(partitions)
    starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    for each in partitions:
        position = positions.get(each, 0)
        found.is_whole &= starts[each] <= position
        positions[each] = max(position, starts[each])
        consumer.seek(each, positions[each])
    missing = {each for each in partitions if positions[each] < ends[each]}
    idle_ms = 0
    while missing:
        # A partition that has been read would keep the others waiting for records that nobody asked for.
        consumer.pause(*[each for each in partitions if each not in missing])
        polled = consumer.poll(timeout_ms=POLL_MS)
        idle_ms = 0 if polled else idle_ms + POLL_MS
        if idle_ms >= STALLED_MS:
            raise CommandFailed(f"the broker gave no records of {METADATA_TOPIC} for {STALLED_MS} ms")
        for records in polled.values():
            for record in records:
                found.replay(record.value)
        positions.update({each: consumer.position(each) for each in missing})
        missing = {each for each in missing if positions[each] < ends[each]}


def choose(
    source: Source, wanted: Sequence[TopicPartitions] | None, *, also: Iterable[Partition] = ()
) -> list[Partition] | None:
    """The partitions that words like `orders:0,1` mean, or None for all.

    `also` are partitions that exist no more but are in the tier. Raises CommandFailed for what there is not.
    """
    if not wanted:
        return None
    existing = {name: set(indexes) for name, indexes in source.partitions().items()}
    for topic, index in also:
        existing.setdefault(topic, set()).add(index)
    found: set[Partition] = set()
    for topic, indexes in wanted:
        if topic not in existing:
            raise CommandFailed(f"topic {topic!r} does not exist")
        if missing := sorted(set(indexes or ()) - existing[topic]):
            raise CommandFailed(f"topic {topic!r} has no partition {', '.join(map(str, missing))}")
        found |= {(topic, index) for index in (existing[topic] if indexes is None else indexes)}
    return sorted(found)


def highest_tiered(catalogue: Catalogue, partition: Partition) -> int:
    """The highest offset in finished segments; -1 without one."""
    return max((each.end_offset for each in catalogue.of([partition]) if each.state is FINISHED), default=-1)
