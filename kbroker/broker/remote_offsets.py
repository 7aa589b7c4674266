"""The part of a ListOffsets by timestamp that lies in the tier.

Source  KIP-1075: asynchronous, with a time-out of its own (KAFKA-15859)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from kbroker.broker.remote_fetching import Waiting
from kbroker.replication.offset_lookup import MAX_TIMESTAMP, OffsetAsked, OffsetFound, look_up
from kbroker.replication.partition import Partition
from kbroker.runtime.net_ports import Env
from kbroker.tiered.api import RemoteStorageError
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.tiered.remote_read import RemoteReader


class Question(NamedTuple):
    """Something to look up in both tiers of a partition."""

    partition: Partition
    asked: OffsetAsked


async def look_up_in_both(
    questions: list[Question], reader: RemoteReader | None, env: Env, client: Waiting, *, timeout_ms: int
) -> list[OffsetFound | KafkaError]:
    """Answer all questions at once; REQUEST_TIMED_OUT to those that take too long."""
    answers: list[OffsetFound | KafkaError] = [
        KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the tier has not answered within {timeout_ms} ms") for _ in questions
    ]

    async def answer(number: int) -> None:
        try:
            answers[number] = await _look_up(questions[number], reader, env)
        except KafkaError as error:
            answers[number] = error

    with trio.CancelScope(deadline=trio.current_time() + timeout_ms / 1000) as scope, client.waiting(scope):
        async with trio.open_nursery() as nursery:
            for number in range(len(questions)):
                nursery.start_soon(answer, number)
    return answers


async def _look_up(question: Question, reader: RemoteReader | None, env: Env) -> OffsetFound:
    partition, asked = question
    while True:
        local_start = partition.log.local_log_start_offset
        remote = await _search(partition, asked, reader, env)
        found = await env.run_blocking(look_up, partition, asked, remote)
        partition.leading()  # else another topic may have taken the name of the files meanwhile
        # Segments that left the local log between the two searches were looked at by neither.
        if partition.log.local_log_start_offset == local_start or found == remote:
            return found


async def _search(
    partition: Partition, asked: OffsetAsked, reader: RemoteReader | None, env: Env
) -> OffsetFound | None:
    """What the tier has for a timestamp; None if nothing.

    Errors  KafkaError: KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, OFFSET_NOT_AVAILABLE
    """
    remote = partition.remote
    if reader is None or remote is None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the tier cannot be read now")
    from kbroker.tiered.remote_search import RemoteSearch  # noqa: PLC0415 - not imported where nothing is tiered

    start_offset = partition.log.log_start_offset
    search = RemoteSearch(reader, env, partition)
    try:
        await reader.wait_until_ready(remote.topic_id_partition)
        if asked.timestamp == MAX_TIMESTAMP:
            found = await search.latest()
        else:
            found = await search.first_at_or_after(asked.timestamp)
    except RemoteStorageError as error:
        if partition.log.log_start_offset > start_offset:
            # Retention has taken what was looked at: the client asks again, of what is left.
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition.name} begins later by now") from error
        raise reader.failed(partition, start_offset, error) from error
    return None if found is None else OffsetFound(*found)
