"""Profiles: default settings, weaker than the user's settings and stronger than Kafka's defaults.

    embedded   for a cluster of one broker: one replica of each internal topic, no delay before a first rebalance, the
               socket buffer sizes that measured best (see `kbroker.runtime.net_ports`), and the tier on in a local
               directory, which costs nothing until a topic is tiered. With a settings file, which may be written for
               Kafka, the tier is off unless the file enables it. A node with process.roles=broker belongs to a cluster
               of several: its internal topics and rebalances have Kafka's defaults
    test       the same, with one partition in each internal topic
    hardened   for a broker that others can reach: limits for connections, groups and memory where Kafka has none. The
               tier is off unless the settings enable it
    kafka      Kafka's defaults; for comparisons

One broker can never satisfy Kafka's default of three replicas: its groups and transactions would wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ONE_BROKER: Final = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}

_EMBEDDED: Final = {
    **_ONE_BROKER,
    "remote.log.storage.system.enable": "true",
    "queued.max.request.bytes": "67108864",
    "socket.send.buffer.bytes": "262144",
    "socket.receive.buffer.bytes": "-1",
}

_UNLIMITED: Final = "2147483647"

_HARDENED: Final = {
    **_ONE_BROKER,
    "max.connections": "2000",
    "max.connections.per.ip": "500",
    "max.connections.per.ip.overrides": f"127.0.0.1:{_UNLIMITED},[::1]:{_UNLIMITED}",
    "max.connection.creation.rate": "200",
    "queued.max.request.bytes": "268435456",
    "socket.listen.backlog.size": "128",
    "socket.send.buffer.bytes": "262144",
    "socket.receive.buffer.bytes": "-1",
    "group.max.size": "5000",
    "group.consumer.max.size": "5000",
    "remote.log.reader.threads": "4",
    "kbroker.sasl.plain.without.tls": "false",
}

NOT_BESIDE_A_FILE: Final = ("remote.log.storage.system.enable",)

ONLY_FOR_ONE_BROKER: Final = tuple(_ONE_BROKER)

PROFILES: Final[Mapping[str, Mapping[str, str]]] = {
    "embedded": _EMBEDDED,
    "test": {
        **_EMBEDDED,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    },
    "hardened": _HARDENED,
    "kafka": {},
}
