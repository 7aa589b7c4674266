"""The quotas that a broker enforces: bytes produced and fetched, time on the event loop, new connections.

Each request is charged to its user and client id once its response is known. If a rate is then above its limit, the
response has the time until it is within the limit, and the connection is muted for that time (`server.connection`). A
Produce is charged with its size and a Fetch with the size of its records, 40 bytes for each partition added. A Fetch
above its limit gets an empty response and is charged nothing; its limit of bytes is lowered, so that it can be answered
within the quota of the windows. A batch that is larger than that is sent when nothing else was, because otherwise its
consumer would never proceed; in Kafka it never does.

request_percentage limits the time that requests keep the event loop busy: 100 is all of it, because one thread serves
all requests. Time in other threads, such as the decompression of large batches, does not count. It is throttled for one
window at most, as in Kafka. The fetches of followers have neither quota.

A connection from an address above its connection_creation_rate is served later, and nothing is read from it before.
Connections take tokens from a bucket, so that those that wait keep to the rate too. One that would wait longer than all
windows is closed after one window and takes no token, as in Kafka.

With no quota the broker pays two tests of a flag for each request.

Source: KIP-13, KIP-55, KIP-124, KIP-219, KIP-612; ClientQuotaManager and ConnectionQuotas of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from kbroker.config.listeners import counted_address
from kbroker.config.quotas import QuotaSettings
from kbroker.metadata.image import Image
from kbroker.metadata.principal import Principal
from kbroker.quotas.limits import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaLimits,
    canonical_address,
)
from kbroker.quotas.rates import MAX_INT32, Bucket, SampledRate, Windows
from kbroker.quotas.tracking import ClientUsage, UsageTable
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.turns import Turns

PERCENT_SECONDS: Final = 100 / 1e9
"""A nanosecond, in the unit of request_percentage."""
PARTITION_BYTES: Final = 40
_ENTITIES_AT_ONCE: Final = 50

logger = get_logger(__name__)


class Client(Protocol):
    """Whom a request is charged to."""

    @property
    def principal(self) -> Principal: ...
    @property
    def client_id(self) -> str: ...


class Admission(NamedTuple):
    """When a new connection is served: after delay_ms. If it is refused, it is closed then."""

    delay_ms: int = 0
    is_refused: bool = False


AT_ONCE: Final = Admission()


class ClientQuotas:
    """The limits in force, and what clients have used.

    is_active  whether any user or client id has a quota that this class enforces: test it before anything else
    """

    def __init__(self, settings: QuotaSettings) -> None:
        self.windows = windows = Windows(settings.quota_window_num, 1_000 * settings.quota_window_size_seconds)
        self.limits = limits = QuotaLimits()
        self.is_active = False
        most = settings.kbroker_max_quota_clients
        self.producers, self.consumers, self.requests = (
            ClientUsage(key, limits, SampledRate, windows, max_tags=most)
            for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
        )
        self.addresses: UsageTable[str, Bucket] = UsageTable(Bucket, windows, max_tags=most)

    async def follow(self, image: Image, turns: Turns) -> None:
        """Use the quotas of a newer image."""
        changes = 0
        for step, entity in enumerate(self.limits.update_in_steps(image.client_quotas)):
            changes += entity is not None
            if step % _ENTITIES_AT_ONCE == 0 and turns.due():
                await turns.next()
        if changes:
            logger.info("client quotas have changed", entities=changes)
        usages = (self.producers, self.consumers, self.requests)
        for usage in usages:
            if not usage.is_limited:
                usage.clear()
        self.is_active = any(usage.is_limited for usage in usages)

    def charge_produce(self, client: Client, size: int, now_ms: int) -> int:
        """Charge a Produce; returns the throttle time in milliseconds."""
        return self._charge(self.producers, client, size, now_ms, longest_ms=MAX_INT32)

    def charge_request(self, client: Client, loop_ns: int, now_ms: int) -> int:
        """Charge any request with its time on the event loop; returns the throttle time in milliseconds."""
        value = loop_ns * PERCENT_SECONDS
        return self._charge(self.requests, client, value, now_ms, longest_ms=self.windows.size_ms)

    def charge_fetch(self, client: Client, size: int, loop_ns: int, now_ms: int) -> tuple[int, bool]:
        """Charge a consumer's Fetch; returns the throttle time and whether the response must be empty."""
        throttle_ms = self.charge_request(client, loop_ns, now_ms)
        used = self.consumers.of(client.principal.name, client.client_id, now_ms)
        if used is None:
            return throttle_ms, throttle_ms > 0
        rate = used.measure
        is_first = not rate.rate(now_ms) > 0
        rate.record(size, now_ms)
        wait_ms = rate.wait_ms(used.limit, now_ms)
        if wait_ms:
            used.note_throttled(wait_ms, now_ms, self.windows)
        is_empty = throttle_ms > 0 or (wait_ms > 0 and not is_first)
        if is_empty:
            rate.record(-size, now_ms)
        return max(throttle_ms, wait_ms), is_empty

    def max_fetch_bytes(self, client: Client, now_ms: int) -> int:
        """The bytes that a consumer may fetch at once without being throttled if it has fetched nothing before."""
        used = self.consumers.of(client.principal.name, client.client_id, now_ms)
        if used is None:
            return MAX_INT32
        return int(min(used.limit * self.windows.longest_burst_ms / 1000, MAX_INT32))

    def admit(self, host: str, now_ms: int) -> Admission:
        """Count a new connection from an address."""
        address = canonical_address(host) or host
        limit = self.limits.of_address(address)
        if limit is None:
            return AT_ONCE
        counted = address if self.limits.names_address(address) else counted_address(address)
        used = self.addresses.use(counted, limit, now_ms)
        used.measure.record(1, limit, now_ms)
        delay_ms = used.measure.wait_ms(limit, now_ms)
        if delay_ms:
            used.note_throttled(delay_ms, now_ms, self.windows)
        if delay_ms <= self.windows.number * self.windows.size_ms:
            return Admission(delay_ms)
        used.measure.record(-1, limit, now_ms)
        return Admission(self.windows.size_ms, is_refused=True)

    def _charge(
        self, usage: ClientUsage[SampledRate], client: Client, value: float, now_ms: int, *, longest_ms: int
    ) -> int:
        used = usage.of(client.principal.name, client.client_id, now_ms)
        if used is None:
            return 0
        used.measure.record(value, now_ms)
        wait_ms = min(used.measure.wait_ms(used.limit, now_ms), longest_ms)
        if wait_ms:
            used.note_throttled(wait_ms, now_ms, self.windows)
        return wait_ms
