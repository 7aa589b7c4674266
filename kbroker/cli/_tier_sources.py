"""Where the commands of the tier look: at a broker, by Kafka's protocol alone, or into a data directory, read only.

Both tell the same: which topics there are, what `__remote_log_metadata` says, and where the partitions begin and end. A
directory can be read while a broker runs on it: what is being written at that moment is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kbroker.cli import CommandFailed
from kbroker.cli._admin import admin_client, client_settings
from kbroker.tiered.catalogue import FINISHED, Catalogue, Partition

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

    from kbroker.cli._positions import TopicPartitions
    from kbroker.spark.catalogue_following import CatalogueFollower
    from kbroker.spark.client import BrokerClient

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
    with admin_client(options) as client, closing(BrokerSource(client, client_settings(options))) as source:
        yield source


class BrokerSource:
    """A broker, kbroker or another with Kafka's metadata topic."""

    def __init__(self, client: KafkaAdminClient, settings: Mapping[str, Any]) -> None:
        self.client = client
        self._settings = settings
        self._reader: BrokerClient | None = None
        self._follower: CatalogueFollower | None = None

    def partitions(self) -> dict[str, list[int]]:
        """Every topic with the numbers of its partitions."""
        return {
            topic["name"]: sorted(each["partition_index"] for each in topic["partitions"])
            for topic in self.client.describe_topics()
        }

    def catalogue(self) -> Catalogue:
        """The metadata topic to where it ends now, as Spark's jobs read it, since the client's consumer cannot pass a
        batch that is damaged; after the first time it is read on from where that was.
        """
        from kbroker.spark.catalogue_following import CatalogueFollower  # noqa: PLC0415
        from kbroker.spark.client import BrokerClient  # noqa: PLC0415
        from kbroker.spark.errors import KbrokerSourceError  # noqa: PLC0415

        try:
            if self._follower is None:
                self._reader = BrokerClient(self._settings)
                self._follower = CatalogueFollower(self._reader, is_quiet=True)
            return self._follower.read_on()
        except KbrokerSourceError as error:
            raise CommandFailed(str(error)) from error

    def close(self) -> None:
        """Let go of connections."""
        if self._reader is not None:
            self._reader.close()

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
