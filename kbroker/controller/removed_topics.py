"""Find the topics that the metadata log says were removed. Only these may lose their data.

An image lists the topics that exist. A topic that is not in the image was either removed, or the metadata is older
than its data, for example after a restored backup. Only a RemoveTopicRecord distinguishes the two cases. If a start
finds data of unknown topics, it searches the whole log for these records, including the part before the newest
snapshot.

Blocking, through the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kbroker.controller.metadata_log import DIRECTORY, log_segments
from kbroker.controller.records import batch_records
from kbroker.controller.replay import Replay
from kbroker.metadata.errors import UnusableMetadata
from kbroker.runtime.ports import Disk
from wire.stored.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    RemoveTopicRecord,
)


def removed_topics(root: str, *, disk: Disk, report: Callable[[str], None]) -> frozenset[UUID]:
    """The ids of removed topics, as far as the log under a log directory can be read. Concurrent appends are safe.

    Errors  OSError
    """
    directory = f"{root}/{DIRECTORY}"
    segments = log_segments(directory, disk.list(directory))
    removed, pending = set[UUID](), set[UUID]()
    first = segments[0].base_offset if segments else 0
    try:
        for batch in Replay(disk, segments, start_offset=first, highest_epoch=0, clean_shutdown=False):
            for record in batch_records(batch):
                match record:
                    case RemoveTopicRecord(topic_id=topic_id):
                        pending.add(topic_id)
                    case BeginTransactionRecord() | EndTransactionRecord():
                        removed |= pending
                        pending = set()
                    case AbortTransactionRecord():
                        pending = set()
    except UnusableMetadata as error:
        report(f"{error}; the data of topics removed after that position are kept")
    return frozenset(removed | pending)
