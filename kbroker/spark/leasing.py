"""Holds the offsets that a query reads against retention, with a lease for each topic (`kbroker.client.leases`).

The driver takes a lease before it plans the pieces. A stream replaces it with each batch and gives it back when it
stops. Spark does not tell a Python source when a batch query ends, so the lease of a batch query expires, as does that
of a driver that dies. A broker that knows no leases, or does not allow them, is read without one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kbroker.spark.errors import KbrokerSourceError
from kbroker.spark.options import SourceOptions
from kbroker.spark.positions import Offsets
from wire.errors import ErrorCode, KafkaError
from wire.types import uuid_to_text

if TYPE_CHECKING:
    from kbroker.config.leases import Lease

MOST_TOPICS: Final = 100
"""A query of more topics takes no leases: each one costs requests and records of the cluster's metadata."""

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

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._id = ""
        self._is_refused = False
        self._held: dict[str, Lease] = {}

    def hold(self, start: Offsets) -> None:
        """Hold these offsets and all later ones, instead of those that were held before."""
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, index), offset in start.items():
            by_topic.setdefault(topic, {})[index] = offset
        settings, ttl_ms = self._options.client, self._options.lease_ms
        if settings is None or not ttl_ms or len(by_topic) > MOST_TOPICS or self._is_refused:
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
