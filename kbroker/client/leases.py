"""Takes, renews, lists and releases leases, which hold records of a topic against retention (`kbroker.config.leases`).

An entry is added and removed by APPEND and SUBTRACT of IncrementalAlterConfigs, so jobs do not disturb each other. A
renewal adds the new entry before it removes the old one. Taking a lease also removes the expired ones of the topic.

Errors  KafkaError; INVALID_CONFIG from brokers that know no leases
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kbroker.client.cluster import Cluster
from kbroker.client.operations import describe_configs
from kbroker.config.leases import Lease
from wire.errors import check
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

KEY: Final = "kbroker.retention.leases"
TOPIC_RESOURCE: Final = 2
APPEND: Final = 2
SUBTRACT: Final = 3


def leases(cluster: Cluster, topic: str) -> list[Lease]:
    """The leases of a topic, expired ones included."""
    (answer,) = describe_configs(cluster, TOPIC_RESOURCE, [topic])
    check(answer.error_code, answer.error_message)
    text = next((each.value for each in answer.configs if each.name == KEY), None) or ""
    return [Lease.parse(each) for each in text.split(",") if each]


def take(cluster: Cluster, topic: str, lease_id: str, offsets: Mapping[int, int], *, ttl_ms: int) -> Lease:
    """Hold the records of partitions from these offsets on, for `ttl_ms`."""
    now_ms = cluster.env.timestamp_ms()
    lease = Lease(lease_id, now_ms, now_ms + ttl_ms, offsets)
    expired = [one for one in leases(cluster, topic) if one.expires_ms <= now_ms]
    _alter(cluster, topic, APPEND, [lease])
    _alter(cluster, topic, SUBTRACT, expired)
    return lease


def renew(
    cluster: Cluster, topic: str, lease: Lease, *, ttl_ms: int, offsets: Mapping[int, int] | None = None
) -> Lease:
    """Extend a lease, optionally with other offsets; it keeps its time of creation. It may have expired."""
    longer = lease._replace(
        expires_ms=cluster.env.timestamp_ms() + ttl_ms, offsets=lease.offsets if offsets is None else offsets
    )
    if str(longer) != str(lease):
        _alter(cluster, topic, APPEND, [longer])
        _alter(cluster, topic, SUBTRACT, [lease])
    return longer


def release(cluster: Cluster, topic: str, found: Iterable[Lease]) -> None:
    """End leases."""
    _alter(cluster, topic, SUBTRACT, found)


def _alter(cluster: Cluster, topic: str, operation: int, changed: Iterable[Lease]) -> None:
    value = ",".join(map(str, changed))
    if not value:
        return
    config = AlterableConfig(name=KEY, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[config])
    (answer,) = cluster.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)).responses
    check(answer.error_code, answer.error_message)
