"""Checks once after a start whether the store is the one that the metadata describes, by reading from a few segments.

A broker whose store settings were lost finds an empty store, often the default directory. Without this check every read
would report a missing segment, as if the tier were lost, and no log line would point to the settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.runtime.event_log import get_logger
from kbroker.tiered.api import (
    FINISHED,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    StoreMisconfigured,
    TopicIdPartition,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.tools import TierTools

MAX_ASKED: Final = 5

logger = get_logger(__name__)


async def has_none_of_its_segments(tools: TierTools, partitions: Iterable[TopicIdPartition]) -> bool:
    """Request the newest segment of some partitions. Log an error if the store has none of them, and a warning if it
    lacks some.

    Also False if the metadata lists no segments, or the store does not answer.
    """
    threads = tools.env.threads(1)
    missing, found = list[str](), 0
    for partition in partitions:
        try:
            with plugin_errors("wait_until_ready"):
                await tools.metadata.wait_until_ready(partition)
            newest = _newest(tools, partition)
            if newest is None:
                continue
            await threads.run_blocking(_ask_for, tools, newest)
        except (RemoteResourceNotFound, StoreMisconfigured):
            if _newest(tools, partition) == newest:  # otherwise it was deleted in between
                missing.append(partition.name)
        except RemoteStorageError:
            continue  # not ready, no answer, or damaged: other code reports these
        else:
            found += 1
        if len(missing) + found == MAX_ASKED:
            break
    if missing:
        write, what = (logger.warning, "lacks segments") if found else (logger.error, "has none of the segments")
        write(
            f"the store {what} that the metadata list; is it the right one?",
            asked_for=len(missing) + found,
            missing_of=", ".join(missing),
            store=tools.storage,
            settings="remote.log.storage.manager.class.name and rsm.config.*",
        )
    return bool(missing) and not found


def _newest(tools: TierTools, partition: TopicIdPartition) -> RemoteLogSegmentMetadata | None:
    known = [one for one in tools.metadata.list_remote_log_segments(partition) if one.state is FINISHED]
    return max(known, key=lambda one: one.end_offset, default=None)


def _ask_for(tools: TierTools, segment: RemoteLogSegmentMetadata) -> None:
    with plugin_errors("fetch_log_segment"), tools.storage.fetch_log_segment(segment, 0, 0) as stream:
        stream.read(1)
