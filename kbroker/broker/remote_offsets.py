"""The part of a ListOffsets that needs the tier: lookups by timestamp, and where the tier ends.

The request is not answered until the tier's content is known: clients would retry an error in a tight loop.

Source  KIP-1075: asynchronous, with a separate timeout (KAFKA-15859); KAFKA-19599 (hold the request)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from kbroker.broker.remote_fetching import Waiting
from kbroker.replication.offset_lookup import MAX_TIMESTAMP, OffsetAsked, OffsetFound, look_up
from kbroker.replication.partition import Partition
from kbroker.runtime.frames import without_frames
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

LOOK_AGAIN_MS: Final = 1_000
"""Waiters are not woken when a topic ceases to be tiered, so they poll at this interval."""


class Question(NamedTuple):
    """A lookup in both tiers of a partition."""

    partition: Partition
    asked: OffsetAsked


async def look_up_in_both(
    questions: list[Question], broker: Broker, client: Waiting, *, timeout_ms: int
) -> list[OffsetFound | KafkaError]:
    """Answer all questions at once; REQUEST_TIMED_OUT for those that take too long."""
    answers: dict[int, OffsetFound | KafkaError] = {}
    deadline = trio.current_time() + timeout_ms / 1000

    async def answer(number: int) -> None:
        try:
            await _wait_until_known(questions[number].partition, broker)
            answers[number] = await _look_up(questions[number], broker)
        except KafkaError as error:
            answers[number] = without_frames(error)

    with trio.CancelScope(deadline=deadline) as scope, client.waiting(scope):
        async with trio.open_nursery() as nursery:
            for number in range(len(questions)):
                nursery.start_soon(answer, number)
    for number, (partition, _) in enumerate(questions):
        if number not in answers:
            why = "answered" if broker.tier.knows(partition) else f"read the metadata of {partition.name}"
            answers[number] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the tier has not {why} within {timeout_ms} ms")
            if trio.current_time() >= deadline:  # otherwise the client has disconnected
                broker.tier.note_expired_lookup(partition)
    return [answers[number] for number in range(len(questions))]


async def _wait_until_known(partition: Partition, broker: Broker) -> None:
    """Wait until the tier's content of a partition is known. Errors: those of Partition.leading."""
    while not broker.tier.knows(partition):
        partition.leading()
        # A change of the partition wakes this waiter.
        await broker.purgatory.wait(
            partition.key,
            until=lambda: broker.tier.knows(partition) or not partition.is_leader,
            max_wait_ms=LOOK_AGAIN_MS,
        )


async def _look_up(question: Question, broker: Broker) -> OffsetFound:
    partition, asked = question
    if asked.names_the_tier:
        return look_up(partition, asked)
    while True:
        local_start = partition.log.local_log_start_offset
        remote = await _search(partition, asked, broker)
        found = await broker.env.run_blocking(look_up, partition, asked, remote)
        partition.leading()  # otherwise another topic may own the files by now
        # Segments that left the local log between the two searches were looked at by neither.
        if partition.log.local_log_start_offset == local_start or found == remote:
            return found


async def _search(partition: Partition, asked: OffsetAsked, broker: Broker) -> OffsetFound | None:
    """The tier's answer for a timestamp; None if there is none.

    Errors  KafkaError: KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, OFFSET_NOT_AVAILABLE
    """
    remote, reader = partition.remote, broker.tier.reader
    if reader is None or remote is None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the tier cannot be read now")
    # Not imported where nothing is tiered.
    from kbroker.tiered.api import RemoteStorageError  # noqa: PLC0415
    from kbroker.tiered.remote_search import RemoteSearch  # noqa: PLC0415

    start_offset = partition.log.log_start_offset
    search = RemoteSearch(reader, broker.env, partition)
    try:
        await reader.wait_until_ready(remote.topic_id_partition)
        if asked.timestamp == MAX_TIMESTAMP:
            found = await search.latest()
        else:
            found = await search.first_at_or_after(asked.timestamp)
    except RemoteStorageError as error:
        if partition.log.log_start_offset > start_offset:
            # Retention has deleted the searched segments: the client retries with what is left.
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"the log start of {partition.name} has moved") from error
        raise reader.failed(partition, start_offset, error) from error
    return None if found is None else OffsetFound(*found)
