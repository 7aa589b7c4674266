"""Which topics the metadata log says were removed: the proof that their data may be deleted.

An image lists the topics that exist. A topic that is not in it was removed, or the metadata are older than its data: a
backup was restored, say. Only a RemoveTopicRecord tells the two apart. A start that finds data of unknown topics looks
for these records in everything that the log still holds, which reaches back beyond the newest snapshot.

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
    """The ids of the removed topics, as far as the log under a log directory can be read; the log may be appended to.

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
        report(f"{error}; data of topics that were removed behind it are kept")
    return frozenset(removed | pending)
