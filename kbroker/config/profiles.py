"""What a broker is told by nobody: the layer between Kafka's defaults and the user's settings.

    embedded   a single broker, which is its own cluster: one replica of each internal topic, no wait before a first
               rebalance, socket buffers as they were measured to be best (see `kbroker.runtime.net_ports`), and
               the tier on a local directory, which costs nothing until a topic is tiered. A file of settings was
               written for Kafka: beside one the tier is off unless it says otherwise
    test       the same, and one partition of each internal topic
    kafka      nothing differs; for comparisons

Kafka's defaults of three replicas can never be met by one broker, whose groups and transactions would wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_EMBEDDED: Final = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "remote.log.storage.system.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "queued.max.request.bytes": "67108864",
    "socket.send.buffer.bytes": "262144",
    "socket.receive.buffer.bytes": "-1",
}

NOT_BESIDE_A_FILE: Final = ("remote.log.storage.system.enable",)

PROFILES: Final[Mapping[str, Mapping[str, str]]] = {
    "embedded": _EMBEDDED,
    "test": {
        **_EMBEDDED,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    },
    "kafka": {},
}
