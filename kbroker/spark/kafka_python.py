"""What is used of kafka-python. It takes 0.2 s to import, so only who makes a client does: many processes of a Spark
job make none.
"""

import logging

logging.getLogger("kafka").addHandler(logging.NullHandler())
logging.getLogger("kafka").propagate = False  # it tells of each attempt; what matters of them comes as one error

from kafka.admin import KafkaAdminClient  # noqa: E402  (it logs while it is imported)
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
