"""The member metadata and assignments of consumers in classic groups; each starts with its version (int16).

Brokers store these bytes unchanged. They read them only to describe groups and to convert groups to the KIP-848
protocol.
"""

from wire.schema import field, stored, struct
from wire.types import bytes_, int32, string


@struct
class TopicPartition:
    topic: string
    partitions: list[int32]


@stored(versions="0-3", flexible="none")
class ConsumerProtocolSubscription:
    topics: list[string]
    user_data: bytes_ | None = None
    owned_partitions: list[TopicPartition] = field(versions="1+", default=[], ignorable=True)
    generation_id: int32 = field(versions="2+", default=-1, ignorable=True)
    rack_id: string | None = field(versions="3+", default=None, ignorable=True)


@stored(versions="0-3", flexible="none")
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartition]
    user_data: bytes_ | None = None
