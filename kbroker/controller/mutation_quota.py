"""The quota of partitions that a client creates and deletes (controller_mutation_rate).

Newer versions of CreateTopics, CreatePartitions and DeleteTopics are refused with THROTTLING_QUOTA_EXCEEDED while the
client's tokens are used up. A change that begins before is made whole, so the tokens may become negative. Older
versions are never refused. Either way the answer has the time until the tokens are refilled, for which the broker mutes
the client's connection.

The tokens are not in the log: a new controller begins with full buckets, as in Kafka. Changes that a broker makes for
itself have no quota.

Source: KIP-599; ControllerMutationQuotaManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.controller.port import Sender
from kbroker.quotas.limits import CONTROLLER_MUTATION_RATE, QuotaLimits, Quotas
from kbroker.quotas.rates import Bucket, Windows
from kbroker.quotas.tracking import ClientUsage, Used
from wire.errors import ErrorCode, KafkaError


class Mutations:
    """The changes of one request. Its quota is found at the first change, because most requests have none."""

    __slots__ = ("_find", "_now_ms", "_used", "_windows", "throttle_time_ms")

    def __init__(self, find: Callable[[], Used[Bucket] | None], windows: Windows, now_ms: int) -> None:
        self._find = find
        self._used: Used[Bucket] | None = None
        self._windows = windows
        self._now_ms = now_ms
        self.throttle_time_ms = 0

    def take(self, partitions: int, *, strict: bool) -> None:
        """Note the change of some partitions.

        Errors  THROTTLING_QUOTA_EXCEEDED if `strict` and the tokens were used up before
        """
        used = self._used = self._used or self._find()
        if used is None:
            return
        bucket, limit, now_ms = used.measure, used.limit, self._now_ms
        if strict and (wait_ms := bucket.wait_ms(limit, now_ms)):
            self._throttle(used, wait_ms)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        bucket.record(partitions, limit, now_ms)
        if not strict and (wait_ms := bucket.wait_ms(limit, now_ms)):
            self._throttle(used, wait_ms)

    def _throttle(self, used: Used[Bucket], wait_ms: int) -> None:
        if not self.throttle_time_ms:
            used.note_throttled(wait_ms, self._now_ms, self._windows)
        self.throttle_time_ms = wait_ms


class MutationQuota:
    """What clients have used of this quota."""

    def __init__(self, windows: Windows, *, max_clients: int) -> None:
        self._limits = QuotaLimits()
        self.usage: ClientUsage[Bucket] = ClientUsage(
            CONTROLLER_MUTATION_RATE, self._limits, Bucket, windows, max_tags=max_clients
        )

    def of(self, sender: Sender | None, quotas: Quotas, now_ms: int) -> Mutations:
        """What one request may use, by the quotas of the controller's image."""

        def find() -> Used[Bucket] | None:
            if sender is None:
                return None
            self._limits.update(quotas)
            return self.usage.of(sender.principal.name, sender.client_id, now_ms)

        return Mutations(find, self.usage.windows, now_ms)
