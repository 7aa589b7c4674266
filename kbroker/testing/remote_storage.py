"""The contract of RemoteStorageManager, as tests for pytest.

The author of a manager derives a test class that creates it:

    class TestMyStorage(RemoteStorageConformance):
        def make_manager(self, directory: Path) -> MyStorage:
            manager = MyStorage()
            manager.configure({"bucket": "tests", "prefix": directory.name})
            return manager

`directory` belongs to one test. A second manager for it stands for the same store after a restart; a manager for
another directory stands for an empty store. The tests need no broker. They copy segments with real batches and indexes,
made by `write_segment`.

Only tests import this module, so kbroker itself does not need pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias
from uuid import UUID

import pytest

from kbroker.testing.remote_segments import WrittenSegment, partition_named, write_segment
from kbroker.tiered.api import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    RemoteStorageManager,
    StoredObject,
)

Write: TypeAlias = Callable[..., WrittenSegment]
LONGEST_TOPIC = "t._-" + "x" * 245  # 249 characters, and every kind of character that a name may have


def read_all(stream: BinaryIO, *, piece: int = 65_536) -> bytes:
    """All the bytes of a stream, read in pieces; closes it."""
    parts = []
    with stream:
        while part := stream.read(piece):
            parts.append(part)
    return b"".join(parts)


class RemoteStorageConformance:
    """See the module's docstring."""

    def make_manager(self, directory: Path) -> RemoteStorageManager:
        """A configured manager for the store of `directory`, which exists."""
        raise NotImplementedError(f"{type(self).__name__} has to define how to create its manager")

    @pytest.fixture
    def manager(self, tmp_path: Path) -> Iterator[RemoteStorageManager]:
        made = self.make_manager(tmp_path)
        yield made
        made.close()

    @pytest.fixture
    def write(self, tmp_path_factory: pytest.TempPathFactory) -> Write:
        """Writes segments to copy; see `write_segment`."""
        return partial(write_segment, str(tmp_path_factory.mktemp("log")))

    # --- copying and reading --------------------------------------------------------------------------------------

    def test_a_copied_segment_reads_back_unchanged(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=40, transaction_index=bytes(range(34)) * 3)
        finished = _copy(manager, segment)
        _expect_segment(manager, finished, segment)

    def test_a_segment_with_empty_indexes_is_copied(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=1)
        finished = _copy(manager, segment)
        assert segment.indexes[IndexType.OFFSET] == b""
        _expect_segment(manager, finished, segment)

    def test_ranges_include_both_ends(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=3)
        finished = _copy(manager, segment)
        last = len(segment.log) - 1
        for start, end in [(0, 0), (0, 60), (61, 61), (17, last - 1), (0, last), (last, last), (last - 1, last)]:
            assert read_all(manager.fetch_log_segment(finished, start, end)) == segment.log[start : end + 1]

    def test_a_range_without_an_end_reaches_the_segment_end(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=3)
        finished = _copy(manager, segment)
        for start in (0, 61, len(segment.log) - 1):
            assert read_all(manager.fetch_log_segment(finished, start)) == segment.log[start:]

    def test_a_range_beyond_the_segment_ends_with_it(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=3)
        finished = _copy(manager, segment)
        for beyond in (0, 1, 1 << 20, 1 << 40):
            assert read_all(manager.fetch_log_segment(finished, 7, len(segment.log) + beyond)) == segment.log[7:]

    def test_positions_outside_the_segment_are_refused(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=3)
        finished = _copy(manager, segment)
        size = len(segment.log)
        for start, end in [(-1, None), (-1, 5), (size, None), (size + 5, size + 9), (5, 4), (0, -1)]:
            with pytest.raises(ValueError):
                manager.fetch_log_segment(finished, start, end)

    def test_a_stream_can_be_read_in_pieces_of_any_size(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=40)
        finished = _copy(manager, segment)
        for piece in (997, 4096, 1 << 24):
            assert read_all(manager.fetch_log_segment(finished, 0), piece=piece) == segment.log
        with manager.fetch_log_segment(finished, 0) as stream:
            assert stream.read() == segment.log

    def test_closing_a_stream_early_does_no_harm(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=40, value_bytes=20_000)
        finished = _copy(manager, segment)
        for position in range(200):
            with manager.fetch_log_segment(finished, position) as stream:
                assert stream.read(1) == segment.log[position : position + 1]
        assert read_all(manager.fetch_log_segment(finished, 0)) == segment.log

    def test_a_segment_of_several_megabytes_arrives_whole(self, manager: RemoteStorageManager, write: Write) -> None:
        """Larger than any piece in which a manager may move it, and not a multiple of one."""
        segment = write(batches=100, value_bytes=120_001)
        finished = _copy(manager, segment)
        assert len(segment.log) > 12_000_000
        assert read_all(manager.fetch_log_segment(finished, 0)) == segment.log
        middle = len(segment.log) // 2
        assert (
            read_all(manager.fetch_log_segment(finished, middle, middle + 4_200_000))
            == (segment.log[middle : middle + 4_200_001])
        )

    # --- missing objects --------------------------------------------------------------------------------------------

    def test_a_segment_that_was_never_copied_is_not_found(self, manager: RemoteStorageManager, write: Write) -> None:
        _expect_nothing(manager, write(batches=3).metadata)

    def test_a_missing_transaction_index_is_not_found(self, manager: RemoteStorageManager, write: Write) -> None:
        """KAFKA-14993: the index is optional; without it no transaction was aborted."""
        segment = write(batches=3)
        finished = _copy(manager, segment)
        assert segment.data.transaction_index is None
        with pytest.raises(RemoteResourceNotFound):
            manager.fetch_index(finished, IndexType.TRANSACTION)

    # --- identity -------------------------------------------------------------------------------------------------

    def test_copying_the_same_id_replaces_the_segment(self, manager: RemoteStorageManager, write: Write) -> None:
        first = write(batches=40, transaction_index=bytes(34))
        second = write(batches=3, value_bytes=50, segment_id=first.metadata.remote_log_segment_id.id)
        _copy(manager, first)
        finished = _copy(manager, second)
        _expect_segment(manager, finished, second)
        with pytest.raises(RemoteResourceNotFound):
            manager.fetch_index(finished, IndexType.TRANSACTION)

    def test_copying_twice_is_idempotent(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=3)
        _copy(manager, segment)
        finished = _copy(manager, segment)
        assert read_all(manager.fetch_log_segment(finished, 0)) == segment.log
        manager.delete_log_segment_data(finished)
        _expect_nothing(manager, finished)

    def test_copies_of_the_same_offsets_are_independent(self, manager: RemoteStorageManager, write: Write) -> None:
        """KAFKA-15168: two leaders copied the same offsets, and one of the copies is deleted."""
        first, second = write(batches=4, value_bytes=30), write(batches=4, value_bytes=40)
        finished_first, finished_second = _copy(manager, first), _copy(manager, second)
        manager.delete_log_segment_data(finished_first)
        _expect_nothing(manager, finished_first)
        _expect_segment(manager, finished_second, second)

    def test_topics_of_one_name_and_partitions_are_kept_separate(
        self, manager: RemoteStorageManager, write: Write
    ) -> None:
        before, again = partition_named("orders", 0, incarnation=1), partition_named("orders", 0, incarnation=2)
        segments = [
            write(batches=2, value_bytes=10 + number, partition=partition)
            for number, partition in enumerate([before, again, again._replace(partition=1), again._replace(topic="o")])
        ]
        copied = [_copy(manager, segment) for segment in segments]
        manager.delete_log_segment_data(copied[0])
        for metadata, segment in list(zip(copied, segments, strict=True))[1:]:
            assert read_all(manager.fetch_log_segment(metadata, 0)) == segment.log

    def test_the_longest_name_of_a_topic_and_the_largest_numbers_fit(
        self, manager: RemoteStorageManager, write: Write
    ) -> None:
        partition = partition_named(LONGEST_TOPIC, 2**31 - 1)
        segment = write(batches=2, partition=partition, start_offset=2**63 - 1_000)
        finished = _copy(manager, segment)
        assert read_all(manager.fetch_log_segment(finished, 0)) == segment.log

    # --- deleting -------------------------------------------------------------------------------------------------

    def test_a_deleted_segment_is_gone_and_deleting_again_succeeds(
        self, manager: RemoteStorageManager, write: Write
    ) -> None:
        segment, other = write(batches=3, transaction_index=bytes(34)), write(batches=3, start_offset=900)
        finished, kept = _copy(manager, segment), _copy(manager, other)
        for _ in range(2):
            manager.delete_log_segment_data(finished)
            _expect_nothing(manager, finished)
        assert read_all(manager.fetch_log_segment(kept, 0)) == other.log

    def test_deleting_a_missing_segment_succeeds(self, manager: RemoteStorageManager, write: Write) -> None:
        manager.delete_log_segment_data(write(batches=1).metadata)

    def test_leftovers_of_a_failed_copy_can_be_deleted(self, manager: RemoteStorageManager, write: Write) -> None:
        """KAFKA-17428: each file in turn is missing when the manager wants to read it."""
        for lost in ("log_segment", "offset_index", "time_index", "transaction_index", "producer_snapshot_index"):
            segment = write(batches=3, transaction_index=bytes(34))
            Path(getattr(segment.data, lost)).unlink()
            with pytest.raises(RemoteStorageError):
                manager.copy_log_segment_data(segment.metadata, segment.data)
            manager.delete_log_segment_data(segment.metadata)
            _expect_nothing(manager, segment.metadata)
            assert [stored.name for stored in _objects(manager)] == []

    # --- concurrency and restarts ------------------------------------------------------------------------------------

    def test_segments_can_be_used_by_several_threads_at_once(self, manager: RemoteStorageManager, write: Write) -> None:
        segments = [write(batches=4, start_offset=100 * number, value_bytes=3_000) for number in range(12)]

        def live(segment: WrittenSegment) -> None:
            finished = _copy(manager, segment)
            assert read_all(manager.fetch_log_segment(finished, 0)) == segment.log
            assert manager.fetch_index(finished, IndexType.TIMESTAMP) == segment.indexes[IndexType.TIMESTAMP]
            manager.delete_log_segment_data(finished)
            _expect_nothing(manager, finished)

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(live, segment) for segment in segments]:
                done.result()
        assert [stored.name for stored in _objects(manager)] == []

    def test_one_segment_is_read_by_several_threads_at_once(self, manager: RemoteStorageManager, write: Write) -> None:
        segment = write(batches=40, value_bytes=3_000)
        finished = _copy(manager, segment)

        def read(start: int) -> bool:
            return read_all(manager.fetch_log_segment(finished, start), piece=10_007) == segment.log[start:]

        with ThreadPoolExecutor(6) as threads:
            assert all(threads.map(read, range(0, 6_000, 100)))

    def test_copied_segments_survive_a_restart(self, tmp_path: Path, write: Write) -> None:
        segment = write(batches=3, transaction_index=bytes(34))
        before = self.make_manager(tmp_path)
        finished = _copy(before, segment)
        before.close()
        after = self.make_manager(tmp_path)
        _expect_segment(after, finished, segment)
        after.delete_log_segment_data(finished)
        _expect_nothing(after, finished)
        after.close()

    def test_closing_may_be_repeated(self, manager: RemoteStorageManager, write: Write) -> None:
        _copy(manager, write(batches=1))
        manager.close()
        manager.close()

    def test_an_unknown_setting_is_an_error(self, manager: RemoteStorageManager) -> None:
        with pytest.raises(ValueError, match="no\\.such\\.setting"):
            type(manager)().configure({"no.such.setting": "1"})

    def test_custom_metadata_fits_the_default_bound(self, manager: RemoteStorageManager, write: Write) -> None:
        """remote.log.metadata.custom.metadata.max.bytes: a copy that returns more is deleted, and copying stops."""
        segment = write(batches=1)
        returned = manager.copy_log_segment_data(segment.metadata, segment.data)
        assert returned is None or 0 < len(returned) <= 128

    # --- listing, if the manager supports it ------------------------------------------------------------------------

    def test_a_list_names_each_object_of_a_segment_with_its_size(
        self, manager: RemoteStorageManager, write: Write
    ) -> None:
        if not hasattr(manager, "list_objects"):
            return
        segment, other = write(batches=40, transaction_index=bytes(34)), write(batches=3, start_offset=900)
        _copy(manager, segment)
        _copy(manager, other)
        for copied in (segment, other):
            segment_id = copied.metadata.remote_log_segment_id
            listed = {
                stored.index_type: stored
                for stored in _objects(manager)
                if stored.segment_id == segment_id.id and not stored.is_auxiliary
            }
            assert {stored.topic_id for stored in listed.values()} == {segment_id.topic_id_partition.topic_id}
            sizes: dict[IndexType | None, int] = {kind: len(index) for kind, index in copied.indexes.items()}
            sizes[None] = len(copied.log)
            assert {kind: stored.size for kind, stored in listed.items()} == sizes
            assert all(stored.modified_ms > 0 for stored in listed.values())

    def test_a_list_omits_deleted_segments(self, manager: RemoteStorageManager, write: Write) -> None:
        segment, other = write(batches=3, transaction_index=bytes(34)), write(batches=3, start_offset=900)
        finished = _copy(manager, segment)
        _copy(manager, other)
        manager.delete_log_segment_data(finished)
        kept: set[UUID | None] = {other.metadata.remote_log_segment_id.id}
        assert {stored.segment_id for stored in _objects(manager)} <= kept


def _copy(manager: RemoteStorageManager, segment: WrittenSegment) -> RemoteLogSegmentMetadata:
    """Copy, and return the metadata that results."""
    custom = manager.copy_log_segment_data(segment.metadata, segment.data)
    return replace(segment.finished, custom_metadata=custom)


def _expect_segment(manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, segment: WrittenSegment) -> None:
    assert read_all(manager.fetch_log_segment(metadata, 0)) == segment.log
    for index_type, index in segment.indexes.items():
        assert manager.fetch_index(metadata, index_type) == index, index_type


def _expect_nothing(manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> None:
    with pytest.raises(RemoteResourceNotFound):
        manager.fetch_log_segment(metadata, 0)
    for index_type in IndexType:
        with pytest.raises(RemoteResourceNotFound):
            manager.fetch_index(metadata, index_type)


def _objects(manager: RemoteStorageManager) -> list[StoredObject]:
    """The objects that a manager lists; none if it cannot list."""
    list_objects = getattr(manager, "list_objects", None)
    return [] if list_objects is None else list(list_objects())
