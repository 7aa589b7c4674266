"""File names in a log directory other than logs, and names of partition directories that are deleted or strays.

Source  LocalLog, CleanShutdownFileHandler of Apache Kafka 4.3.1
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.storage.checkpoint import (
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)

LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
FAILED: Final = "kbroker.failed"
PARTITION: Final = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
DELETED: Final = re.compile(r"\S+-\d+\.[0-9a-f]{32}-delete|\S+\.[0-9a-f]{32}-delete")
STRAY: Final = re.compile(r"\S+-\d+\.\S+-stray")
MAX_NAME_BYTES: Final = 255


def deleted_name(topic: str, partition: int, unique_id: uuid.UUID) -> str:
    """The name of the directory of a partition that is being deleted."""
    return _with_suffix(topic, f"-{partition}.{unique_id.hex}-delete")


def stray_name(topic: str, partition: int, unique_id: uuid.UUID) -> str:
    """The name of the directory of a partition that the metadata does not list."""
    return _with_suffix(topic, f"-{partition}.{unique_id.hex}-stray")


def _with_suffix(topic: str, suffix: str) -> str:
    """Append the suffix, shortening the topic's name if the file name would be too long."""
    return topic[: MAX_NAME_BYTES - len(suffix)] + suffix


def is_trace_of_use(name: str) -> bool:
    """Whether only a broker that ran, kbroker or Apache Kafka, creates this name; formatting does not create it."""
    if name in (CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT):
        return True
    is_partition = PARTITION.fullmatch(name) is not None and name != f"{CLUSTER_METADATA_TOPIC}-0"
    return is_partition or STRAY.fullmatch(name) is not None or DELETED.fullmatch(name) is not None
