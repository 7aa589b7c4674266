"""The sources of the tier commands: a broker, through Kafka's protocol, or a data directory, which is only read.

Both provide the topics, the contents of `__remote_log_metadata` and the offsets of partitions. A directory can be read
while a broker runs on it; incomplete batches are ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.cli import CommandFailed
from kbroker.cli._admin import admin_client, client_settings
from kbroker.tiered.api import FINISHED
from kbroker.tiered.catalogue import Catalogue, Partition

if TYPE_CHECKING:
    from kbroker.cli._positions import TopicPartitions
    from kbroker.client.cluster import Cluster
    from kbroker.spark.client import BrokerClient
    from kbroker.spark.metadata_fetching import CatalogueFollower


class Offsets(NamedTuple):
    """The offsets of a partition; -1 or None if an offset does not exist or is unknown.

    Shape  latest_tiered is the highest offset in the tier, inclusive; log_end_offset is the high watermark if the
           source is a broker
    """

    log_start_offset: int | None
    local_log_start_offset: int | None
    latest_tiered: int | None
    log_end_offset: int | None


class Source(Protocol):
    """The interface of both sources."""

    def partitions(self) -> Mapping[str, Sequence[int]]:
        """Every topic with the numbers of its partitions."""
        ...

    def catalogue(self) -> Catalogue:
        """All of `__remote_log_metadata` as it is now."""
        ...

    def offsets(self, partitions: Sequence[Partition], catalogue: Catalogue) -> dict[Partition, Offsets]: ...


@contextmanager
def open_source(options: argparse.Namespace) -> Iterator[Source]:
    """The source that the flags name. Its errors become CommandFailed."""
    if options.data_dir is not None and options.bootstrap_servers is None:
        from kbroker.cli._tier_directory import DirectorySource  # noqa: PLC0415

        yield DirectorySource(str(options.data_dir))
        return
    with admin_client(options) as client, closing(BrokerSource(client, client_settings(options))) as source:
        yield source


class BrokerSource:
    """A broker, kbroker or another with Kafka's metadata topic."""

    def __init__(self, client: Cluster, settings: Mapping[str, Any]) -> None:
        self.client = client
        self._settings = settings
        self._reader: BrokerClient | None = None
        self._follower: CatalogueFollower | None = None

    def partitions(self) -> dict[str, list[int]]:
        """Every topic with the numbers of its partitions."""
        return {
            str(topic.name): sorted(each.partition_index for each in topic.partitions)
            for topic in self.client.metadata(None).topics
        }

    def catalogue(self) -> Catalogue:
        """The metadata topic up to its current end; later calls read only new records. It uses the reader of the Spark
        jobs, because the client's consumer cannot skip a damaged batch.
        """
        from kbroker.spark.client import BrokerClient  # noqa: PLC0415
        from kbroker.spark.errors import KbrokerSourceError  # noqa: PLC0415
        from kbroker.spark.metadata_fetching import CatalogueFollower  # noqa: PLC0415

        try:
            if self._follower is None:
                self._reader = BrokerClient(self._settings)
                self._follower = CatalogueFollower(self._reader, is_quiet=True)
            return self._follower.read_on()
        except KbrokerSourceError as error:
            raise CommandFailed(str(error)) from error

    def close(self) -> None:
        """Close connections."""
        if self._reader is not None:
            self._reader.close()

    def offsets(self, partitions: Sequence[Partition], catalogue: Catalogue) -> dict[Partition, Offsets]:
        """Offsets by ListOffsets."""
        from kbroker.cli._groups import log_offsets  # noqa: PLC0415
        from kbroker.client.operations import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED  # noqa: PLC0415

        del catalogue
        starts, locals_, tiered, ends = (
            log_offsets(self.client, partitions, spec) for spec in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST)
        )
        return {
            each: Offsets(starts.get(each), locals_.get(each), tiered.get(each), ends.get(each)) for each in partitions
        }


def choose(
    source: Source, wanted: Sequence[TopicPartitions] | None, *, also: Iterable[Partition] = ()
) -> list[Partition] | None:
    """The partitions of words such as `orders:0,1`, or None for all.

    `also` are deleted partitions that are still in the tier. Raises CommandFailed for a missing topic or partition.
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
    """The highest offset in finished segments; -1 if there is none."""
    return max((each.end_offset for each in catalogue.of([partition]) if each.state is FINISHED), default=-1)
