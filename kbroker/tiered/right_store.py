"""Whether the store is the one that the metadata tell of: a few segments are asked for once after a start.

A broker whose settings of the store were lost finds an empty store, often the default directory. Each read would say
that its segment is missing, as if the tier had been lost, and no line would say that only a setting is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.runtime.log import logger
from kbroker.tiered.api import (
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    StoreMisconfigured,
    TopicIdPartition,
)
from kbroker.tiered.calls import plugin_errors
from kbroker.tiered.plan import FINISHED
from kbroker.tiered.tools import TierTools

MAX_ASKED: Final = 5

log = logger(__name__)


async def has_none_of_its_segments(tools: TierTools, partitions: Iterable[TopicIdPartition]) -> bool:
    """Ask for the newest segment of some partitions, and log an error if the store has none of them.

    False also where the metadata list no segments, or the store does not answer.
    """
    threads = tools.env.threads(1)
    missing = 0
    for partition in partitions:
        try:
            with plugin_errors("wait_until_ready"):
                await tools.metadata.wait_until_ready(partition)
            newest = _newest(tools, partition)
            if newest is None:
                continue
            await threads.run_blocking(_ask_for, tools, newest)
        except (RemoteResourceNotFound, StoreMisconfigured):
            if _newest(tools, partition) == newest:  # else it was deleted meanwhile
                missing += 1
        except RemoteStorageError:
            continue  # it is not ready, does not answer, or is damaged: others say so
        else:
            return False
        if missing == MAX_ASKED:
            break
    if missing:
        log.error(
            "the store has none of the segments that the metadata list; is it the right one?",
            asked_for=missing,
            store=tools.storage,
            settings="remote.log.storage.manager.class.name and rsm.config.*",
        )
    return missing > 0


def _newest(tools: TierTools, partition: TopicIdPartition) -> RemoteLogSegmentMetadata | None:
    known = [one for one in tools.metadata.list_remote_log_segments(partition) if one.state is FINISHED]
    return max(known, key=lambda one: one.end_offset, default=None)


def _ask_for(tools: TierTools, segment: RemoteLogSegmentMetadata) -> None:
    with plugin_errors("fetch_log_segment"), tools.storage.fetch_log_segment(segment, 0, 0) as stream:
        stream.read(1)
