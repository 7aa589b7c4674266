"""The contract of RemoteLogMetadataManager, as tests for pytest.

The author of a manager derives a test class that opens it:

    class TestMyMetadata(RemoteMetadataConformance):
        @asynccontextmanager
        async def running(self, store: Path) -> AsyncIterator[MyMetadata]:
            manager = MyMetadata(store / "database")
            yield manager
            await manager.close()

`store` belongs to one test: opening it a second time stands for the same manager after a restart. The tests are async
functions for pytest-trio.

Only tests import this module, so kbroker itself does not need pytest.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest

from kbroker.testing.remote_segments import partition_named
from kbroker.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteResourceNotFound,
    RemoteStorageError,
    TopicIdPartition,
)

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
START_MS = 1_700_000_000_000
BROKER_ID = 1
_numbers = itertools.count()


def segment_metadata(
    partition: TopicIdPartition,
    start_offset: int,
    end_offset: int,
    *,
    epochs: dict[int, int] | None = None,
    size: int = 1_000,
    txn_index_empty: bool = False,
    segment_id: UUID | None = None,
) -> RemoteLogSegmentMetadata:
    """The metadata at the start of a copy; `epochs` maps leader epochs to start offsets, by default epoch 0 wrote it
    all.
    """
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, segment_id or uuid5(NAMESPACE_OID, f"segment {next(_numbers)}")),
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=START_MS + end_offset,
        broker_id=BROKER_ID,
        event_timestamp_ms=START_MS,
        segment_leader_epochs=tuple((epochs or {0: start_offset}).items()),
        segment_size_in_bytes=size,
        txn_index_empty=txn_index_empty,
    )


def update_to(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, *, custom: bytes | None = None, later_ms: int = 1
) -> RemoteLogSegmentMetadataUpdate:
    """The event that moves a segment to its next state."""
    return RemoteLogSegmentMetadataUpdate(
        metadata.remote_log_segment_id,
        event_timestamp_ms=metadata.event_timestamp_ms + later_ms,
        state=state,
        broker_id=BROKER_ID,
        custom_metadata=custom,
    )


class RemoteMetadataConformance:
    """See the module's docstring."""

    def running(self, store: Path) -> AbstractAsyncContextManager[RemoteLogMetadataManager]:
        """A running manager for the store of this directory, which exists."""
        raise NotImplementedError(f"{type(self).__name__} has to define how to open its manager")

    @pytest.fixture
    async def manager(self, tmp_path: Path) -> AsyncIterator[RemoteLogMetadataManager]:
        async with self.running(tmp_path) as made:
            await hold(made, ORDERS)
            yield made

    # --- one segment ----------------------------------------------------------------------------------------------

    async def test_an_unfinished_copy_is_listed_but_not_readable(self, manager: RemoteLogMetadataManager) -> None:
        begun = segment_metadata(ORDERS, 0, 99)
        await manager.add_remote_log_segment_metadata(begun)
        assert manager.list_remote_log_segments(ORDERS) == [begun]
        assert manager.remote_log_segment_metadata(ORDERS, 0, 50) is None
        assert manager.highest_offset_for_epoch(ORDERS, 0) is None

    async def test_a_finished_segment_is_found_by_each_of_its_offsets(self, manager: RemoteLogMetadataManager) -> None:
        begun = segment_metadata(ORDERS, 10, 99, epochs={3: 10})
        finished = await copy(manager, begun, custom=b"kept")
        assert finished == replace(
            begun, state=FINISHED, event_timestamp_ms=begun.event_timestamp_ms + 1, custom_metadata=b"kept"
        )
        for offset, expected in ((9, None), (10, finished), (99, finished), (100, None)):
            assert manager.remote_log_segment_metadata(ORDERS, 3, offset) == expected, offset
        assert manager.remote_log_segment_metadata(ORDERS, 2, 50) is None
        assert manager.highest_offset_for_epoch(ORDERS, 3) == 99
        assert manager.highest_offset_for_epoch(ORDERS, 2) is None

    async def test_a_segment_of_several_epochs_is_found_in_each(self, manager: RemoteLogMetadataManager) -> None:
        finished = await copy(manager, segment_metadata(ORDERS, 0, 99, epochs={1: 0, 2: 40, 5: 80}))
        held = {1: (0, 39), 2: (40, 79), 5: (80, 99)}
        for epoch, (first, last) in held.items():
            for offset in (first - 1, first, last, last + 1):
                expected = finished if first <= offset <= last else None
                assert manager.remote_log_segment_metadata(ORDERS, epoch, offset) == expected, (epoch, offset)
            assert manager.highest_offset_for_epoch(ORDERS, epoch) == last
        assert manager.list_remote_log_segments(ORDERS) == [finished]

    async def test_a_segment_being_deleted_is_listed_but_not_readable(self, manager: RemoteLogMetadataManager) -> None:
        finished = await copy(manager, segment_metadata(ORDERS, 0, 99), custom=b"kept")
        await manager.update_remote_log_segment_metadata(update_to(finished, DELETING))
        (deleting,) = manager.list_remote_log_segments(ORDERS)
        assert (deleting.state, deleting.custom_metadata) == (DELETING, b"kept")
        assert manager.remote_log_segment_metadata(ORDERS, 0, 50) is None
        await manager.update_remote_log_segment_metadata(update_to(finished, DELETED))
        assert manager.list_remote_log_segments(ORDERS) == []
        assert manager.highest_offset_for_epoch(ORDERS, 0) == 99

    async def test_a_failed_copy_is_deleted_and_never_readable(self, manager: RemoteLogMetadataManager) -> None:
        failed = segment_metadata(ORDERS, 0, 99)
        await manager.add_remote_log_segment_metadata(failed)
        await manager.update_remote_log_segment_metadata(update_to(failed, DELETING))
        await manager.update_remote_log_segment_metadata(update_to(failed, DELETING))
        await manager.update_remote_log_segment_metadata(update_to(failed, DELETED))
        assert manager.list_remote_log_segments(ORDERS) == []
        assert manager.highest_offset_for_epoch(ORDERS, 0) is None

    # --- invalid transitions ----------------------------------------------------------------------------------------

    async def test_kafka_15632_an_invalid_state_transition_is_refused(self, manager: RemoteLogMetadataManager) -> None:
        finished = await copy(manager, segment_metadata(ORDERS, 0, 99))
        begun = segment_metadata(ORDERS, 100, 199)
        await manager.add_remote_log_segment_metadata(begun)
        known = manager.list_remote_log_segments(ORDERS)
        for metadata, state in ((finished, STARTED), (finished, DELETED), (begun, DELETED), (begun, STARTED)):
            with pytest.raises(ValueError, match=str(metadata.remote_log_segment_id.id)):
                await manager.update_remote_log_segment_metadata(update_to(metadata, state))
        with pytest.raises(ValueError, match="COPY_SEGMENT_FINISHED"):
            await manager.add_remote_log_segment_metadata(finished)
        with pytest.raises(RemoteResourceNotFound):
            await manager.update_remote_log_segment_metadata(update_to(segment_metadata(ORDERS, 0, 9), FINISHED))
        assert manager.list_remote_log_segments(ORDERS) == known
        assert manager.remote_log_segment_metadata(ORDERS, 0, 0) == finished

    # --- several segments -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("larger_first", [False, True])
    async def test_kafka_15168_the_longest_of_overlapping_segments_is_read(
        self, larger_first: bool, manager: RemoteLogMetadataManager
    ) -> None:
        pair = [segment_metadata(ORDERS, 10, 90), segment_metadata(ORDERS, 5, 100)]
        done = [await copy(manager, each) for each in (reversed(pair) if larger_first else pair)]
        larger = done[0] if larger_first else done[1]
        for offset in (5, 10, 50, 90, 95, 100):
            assert manager.remote_log_segment_metadata(ORDERS, 0, offset) == larger
        assert {one.start_offset for one in manager.list_remote_log_segments(ORDERS)} == {5, 10}
        assert manager.highest_offset_for_epoch(ORDERS, 0) == 100

    async def test_segments_without_aborted_transactions_are_skipped(self, manager: RemoteLogMetadataManager) -> None:
        await copy(manager, segment_metadata(ORDERS, 0, 99, txn_index_empty=True))
        await copy(manager, segment_metadata(ORDERS, 100, 199, txn_index_empty=True))
        wanted = await copy(manager, segment_metadata(ORDERS, 200, 299))
        await copy(manager, segment_metadata(ORDERS, 300, 399, txn_index_empty=True))
        for offset in (0, 150, 200, 299):
            assert manager.next_segment_with_txn_index(ORDERS, 0, offset) == wanted
        assert manager.next_segment_with_txn_index(ORDERS, 0, 300) is None
        assert manager.next_segment_with_txn_index(ORDERS, 1, 0) is None

    # --- partitions -----------------------------------------------------------------------------------------------

    async def test_waiting_for_an_unregistered_partition_is_an_error(self, manager: RemoteLogMetadataManager) -> None:
        assert not manager.is_ready(OTHER)
        with pytest.raises(RemoteStorageError):
            await manager.wait_until_ready(OTHER)
        with pytest.raises(RemoteStorageError):
            manager.list_remote_log_segments(OTHER)
        with pytest.raises(RemoteStorageError):
            await manager.add_remote_log_segment_metadata(segment_metadata(OTHER, 0, 9))
        await manager.on_stop_partitions([ORDERS, OTHER])
        assert not manager.is_ready(ORDERS)
        with pytest.raises(RemoteStorageError):
            await manager.wait_until_ready(ORDERS)

    async def test_partitions_are_distinguished_by_topic_id(self, manager: RemoteLogMetadataManager) -> None:
        again = partition_named("orders", 0, incarnation=2)
        many = [partition_named("many", index) for index in range(7)]
        first = await copy(manager, segment_metadata(ORDERS, 0, 99))
        await hold(manager, again, *many)
        copied = {each: await copy(manager, segment_metadata(each, 0, 9)) for each in (again, *many)}
        for each, metadata in {ORDERS: first, **copied}.items():
            assert manager.list_remote_log_segments(each) == [metadata]

    async def test_a_partition_registered_again_has_its_metadata(self, manager: RemoteLogMetadataManager) -> None:
        finished = await copy(manager, segment_metadata(ORDERS, 0, 99))
        await manager.on_stop_partitions([ORDERS])
        await hold(manager, OTHER)
        await hold(manager, ORDERS)
        assert manager.list_remote_log_segments(ORDERS) == [finished]

    async def test_everything_is_known_after_a_restart(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as manager:
            await hold(manager, ORDERS, OTHER)
            kept = await copy(manager, segment_metadata(ORDERS, 10, 99, epochs={0: 10, 4: 50}), custom=b"kept")
            begun = segment_metadata(ORDERS, 100, 199, epochs={4: 100}, txn_index_empty=True)
            await manager.add_remote_log_segment_metadata(begun)
            gone = await copy(manager, segment_metadata(OTHER, 0, 9))
            for state in (DELETING, DELETED):
                await manager.update_remote_log_segment_metadata(update_to(gone, state))
        async with self.running(tmp_path) as manager:
            await hold(manager, ORDERS, OTHER)
            assert sorted(manager.list_remote_log_segments(ORDERS), key=lambda one: one.start_offset) == [kept, begun]
            assert manager.remote_log_segment_metadata(ORDERS, 0, 49) == kept
            assert manager.highest_offset_for_epoch(ORDERS, 4) == 99
            assert manager.list_remote_log_segments(OTHER) == []
            assert manager.highest_offset_for_epoch(OTHER, 0) == 9
            finished = await copy(manager, segment_metadata(ORDERS, 200, 299, epochs={4: 200}))
            assert manager.remote_log_segment_metadata(ORDERS, 4, 250) == finished


ORDERS = partition_named("orders", 0)
OTHER = partition_named("payments", 3)


async def hold(manager: RemoteLogMetadataManager, *partitions: TopicIdPartition) -> None:
    """Register partitions, and wait until their metadata is read."""
    await manager.on_partition_leadership_changes(partitions, [])
    for partition in partitions:
        await manager.wait_until_ready(partition)
        assert manager.is_ready(partition)


async def copy(
    manager: RemoteLogMetadataManager, metadata: RemoteLogSegmentMetadata, *, custom: bytes | None = None
) -> RemoteLogSegmentMetadata:
    """Record a complete copy; returns its metadata."""
    await manager.add_remote_log_segment_metadata(metadata)
    await manager.update_remote_log_segment_metadata(update_to(metadata, FINISHED, custom=custom))
    segment_id = metadata.remote_log_segment_id
    found = manager.list_remote_log_segments(segment_id.topic_id_partition)
    (known,) = [each for each in found if each.remote_log_segment_id == segment_id]
    return known
