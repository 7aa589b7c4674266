"""Random histories of plain and transactional offset commits, whose coordinator crashes and whose log is compacted.

After each step, what the coordinator answers has to follow from the records in its log: the visible offset of a
partition is that of its last record which belongs to no transaction or to a committed one, and which no tombstone
follows; it is unstable while such a record belongs to an open transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordinator.records import OffsetRecord, decode_record
from kbroker.testing.draws import Draws
from tests.coordinator.members import CoordinatorDied, RecordingWorld
from wire.errors import ErrorCode
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic

HISTORIES = int(os.environ.get("KBROKER_GROUP_HISTORIES", "40"))
RETENTION_MINUTES = 60
MINUTE_MS = 60_000
PRODUCERS = (1000, 1001, 1002)
GROUPS = ("a", "b")
PARTITIONS = (0, 1)
PLACES = [(group_id, partition) for group_id in GROUPS for partition in PARTITIONS]
REMOVED = b"\x7f\xff"  # a key of an unknown type, in place of a record that the cleaner has removed

Step = tuple[str, int, int]
ACTIONS = (
    *("commit in transaction",) * 5,
    *("commit",) * 3,
    *("end",) * 3,
    *("abort",) * 2,
    "delete offset",
    "delete group",
    "advance",
    "reload",
    "compact",
    "coordinator dies in append",
    "append fails",
)


class Stored(NamedTuple):
    """An offset record of the log; outcome is None while its transaction is open."""

    at: int
    place: tuple[str, int]
    offset: int | None
    outcome: bool | None


class History:
    """A coordinator, and what its log says."""

    def __init__(self) -> None:
        self.world = RecordingWorld(offsets_retention_minutes=RETENTION_MINUTES)
        self.offset = 0
        self.reached: set[str] = set()

    def take(self, action: str, index: int, amount: int) -> None:
        world = self.world
        group_id, partition = PLACES[index % len(PLACES)]
        producer_id = PRODUCERS[amount % len(PRODUCERS)]
        self.offset += 1
        try:
            match action:
                case "commit in transaction":
                    world.commit_in_transaction(
                        self.offset, producer_id=producer_id, group_id=group_id, partition=partition
                    )
                case "commit":
                    world.commit(self.offset, group_id=group_id, partition=partition)
                case "end" | "abort":
                    world.end(producer_id, committed=action == "end")
                case "delete offset":
                    partitions = [OffsetDeleteRequestPartition(partition_index=partition)]
                    topics = [OffsetDeleteRequestTopic(name="orders", partitions=partitions)]
                    world.decide(OffsetDeleteRequest(group_id=group_id, topics=topics))
                case "delete group":
                    world.decide(DeleteGroupsRequest(groups_names=[group_id]))
                case "advance":
                    world.advance(amount * MINUTE_MS)
                case "reload":
                    world.reload()
                case "compact":
                    self.compact()
                    world.reload()
                case "coordinator dies in append":
                    world.dies_in_append = True
                case "append fails":
                    world.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
        except CoordinatorDied:
            world.die()
        self.check()

    def records(self) -> Iterator[Stored]:
        """The offset records of the log, with the outcome of their transactions."""
        log, transactional = self.world.log, self.world.transactional
        outcomes: dict[int, bool] = {}
        found = []
        for at in reversed(range(len(log))):
            key, value = log[at]
            producer_id, commits = transactional.get(at, (-1, None))
            if commits is not None:
                outcomes[producer_id] = commits
                continue
            record = decode_record(key, value)
            if isinstance(record, OffsetRecord):
                place = record.key_message.group, record.key_message.partition
                message = record.value_message
                outcome = True if producer_id < 0 else outcomes.get(producer_id)
                found.append(Stored(at, place, None if message is None else message.offset, outcome))
        return reversed(found)

    def check(self) -> None:
        visible: dict[tuple[str, int], int | None] = {}
        unstable = set()
        for record in self.records():
            if record.offset is None:
                unstable.discard(record.place)
            if record.outcome is None:
                unstable.add(record.place)
            elif record.outcome:
                visible[record.place] = record.offset
            self.reached.add("aborted" if record.outcome is False else "kept")
        for group_id, partition in PLACES:
            place = group_id, partition
            expected = visible.get(place)
            committed = self.world.committed(group_id=group_id, partition=partition)
            assert committed == (-1 if expected is None else expected), place
            assert self.world.is_unstable(group_id=group_id, partition=partition) == (place in unstable), place
            if place in unstable:
                self.reached.add("unstable")
                group = self.world.shard.group(group_id)
                assert group is not None, "a group with pending offsets is gone"
            if committed >= 0 and place in unstable:
                self.reached.add("covered")

    def compact(self) -> None:
        """Remove what the log cleaner may: aborted records, and records that a later one of the key replaces, all of
        them before the first open transaction.
        """
        records = list(self.records())
        end = min((record.at for record in records if record.outcome is None), default=len(self.world.log))
        last: dict[tuple[str, int], int] = {}
        for record in records:
            if record.outcome and record.at < end:
                last[record.place] = record.at
        for record in records:
            if record.at < end and (not record.outcome or record.at < last[record.place]):
                self.world.log[record.at] = REMOVED, None
                self.world.transactional.pop(record.at, None)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_offsets_follow_from_the_log_in_random_histories(seed: int) -> None:
    draws = Draws("transactional offsets", seed)
    history = History()
    for _ in range(150):
        history.take(draws.choice(ACTIONS), draws.below(len(PLACES)), draws.below(120))
    assert history.reached == {"kept", "aborted", "unstable", "covered"}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, len(PLACES) - 1), st.integers(0, 120)),
        min_size=5,
        max_size=60,
    )
)
def test_offsets_follow_from_the_log_for_steps_in_any_order(steps: list[Step]) -> None:
    history = History()
    for action, index, amount in steps:
        history.take(action, index, amount)
