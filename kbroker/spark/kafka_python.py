"""The imports from kafka-python, which take 0.2 s. Only code that creates a client imports this module; many
processes of a Spark job never do.
"""

import logging

logging.getLogger("kafka").addHandler(logging.NullHandler())
logging.getLogger("kafka").propagate = False  # it logs each attempt; the caller gets one error

from kafka.admin import KafkaAdminClient  # noqa: E402  (it logs during its import)
from kafka.errors import KafkaError, UnknownBrokerIdError, for_code  # noqa: E402
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest  # noqa: E402
from kafka.protocol.metadata import MetadataRequest  # noqa: E402
from kafka.util import Timer  # noqa: E402

__all__ = [
    "FetchRequest",
    "KafkaAdminClient",
    "KafkaError",
    "ListOffsetsRequest",
    "MetadataRequest",
    "OffsetForLeaderEpochRequest",
    "Timer",
    "UnknownBrokerIdError",
    "for_code",
]
