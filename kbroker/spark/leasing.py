"""Holds the offsets that a query reads against retention, with a lease for each topic (`kbroker.client.leases`).

The driver takes a lease before it plans the pieces. A stream replaces its lease at most once a minute, because every
change is a record of the cluster's metadata; until then the lease holds a little more than the stream still reads. The
stream gives the lease back when it stops. Spark does not tell a Python source when a batch query ends, so the lease of
a batch query expires, as does that of a driver that dies. A broker that knows no leases, or does not allow them, is
read without one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kbroker.runtime.clocks import RealClocks
from kbroker.spark.errors import KbrokerSourceError
from kbroker.spark.options import SourceOptions
from kbroker.spark.positions import Offsets
from wire.errors import ErrorCode, KafkaError
from wire.types import uuid_to_text

if TYPE_CHECKING:
    from kbroker.config.leases import Lease

MOST_TOPICS: Final = 100
"""A query of more topics takes no leases: each one costs requests and records of the cluster's metadata."""

REPLACED_AFTER_MS: Final = 60_000

REFUSALS: Final = frozenset(
    {
        ErrorCode.INVALID_CONFIG,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Answers that would be the same for the next batch of a stream."""

logger = logging.getLogger("kbroker.spark")


class HeldOffsets:
    """The leases of one query."""

    def __init__(self, options: SourceOptions, *, clocks: RealClocks | None = None) -> None:
        self._options = options
        self._clocks = clocks or RealClocks()
        self._id = ""
        self._is_refused = False
        self._held: dict[str, Lease] = {}

    def hold(self, start: Offsets) -> None:
        """Hold these offsets and all later ones. What was held before may stay held for a minute."""
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, index), offset in start.items():
            by_topic.setdefault(topic, {})[index] = offset
        settings, ttl_ms = self._options.client, self._options.lease_ms
        if settings is None or not ttl_ms or len(by_topic) > MOST_TOPICS or self._is_refused:
            return
        by_topic = {topic: offsets for topic, offsets in by_topic.items() if not self._is_held(topic, offsets)}
        if not by_topic:
            return
        # A client is only imported if it is needed.
        from kbroker.client.leases import release, take  # noqa: PLC0415
        from kbroker.spark.client import BrokerClient  # noqa: PLC0415

        try:
            with BrokerClient(settings) as client:
                self._id = self._id or f"spark-{uuid_to_text(client.cluster.env.new_uuid())}"
                for topic, offsets in by_topic.items():
                    before = self._held.get(topic)
                    self._held[topic] = take(client.cluster, topic, self._id, offsets, ttl_ms=ttl_ms)
                    if before is not None and str(before) != str(self._held[topic]):
                        release(client.cluster, topic, [before])
        except (KafkaError, KbrokerSourceError, OSError) as error:
            self._held.clear()
            self._is_refused = isinstance(error, KafkaError) and error.code in REFUSALS
            logger.info("reading without a lease: %s", error)

    def _is_held(self, topic: str, offsets: Mapping[int, int]) -> bool:
        """Whether the lease of a topic holds these offsets and need not be replaced yet."""
        lease = self._held.get(topic)
        if lease is None:
            return False
        age_ms = self._clocks.timestamp_ms() - lease.created_ms
        is_covered = all(lease.offsets.get(index, offset + 1) <= offset for index, offset in offsets.items())
        return is_covered and 0 <= age_ms < min(REPLACED_AFTER_MS, self._options.lease_ms // 2)

    def give_back(self) -> None:
        """End the leases."""
        if self._options.client is None or not self._held:
            return
        from kbroker.client.leases import leases, release  # noqa: PLC0415
        from kbroker.spark.client import BrokerClient  # noqa: PLC0415

        try:
            with BrokerClient(self._options.client) as client:
                for topic in self._held:
                    mine = [one for one in leases(client.cluster, topic) if one.id == self._id]
                    release(client.cluster, topic, mine)
        except (KafkaError, KbrokerSourceError, OSError) as error:
            logger.info("a lease could not be given back and will expire: %s", error)
        self._held.clear()
