"""A segment is deleted while it is read: its rows are read from their new location, each once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import pytest

from kbroker.spark.errors import MissingObject
from kbroker.spark.options import SourceOptions, Subscription
from kbroker.spark.pieces import SegmentPiece
from kbroker.spark.reading import read_piece
from kbroker.spark.stores import StoreOptions
from kbroker.testing.remote_segments import WrittenSegment, partition_named, write_batches
from kbroker.tiered.api import RemoteLogSegmentMetadata
from kbroker.tiered.local import LocalRemoteStorage
from tests.spark.segments import rows_of
from wire.record_batch import Record, batches, build_batch


class Vanishing(LocalRemoteStorage):
    """A directory tier that deletes a segment as soon as one range of it was read."""

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> BinaryIO:
        stream = super().fetch_log_segment(metadata, start_position, end_position)
        if metadata.remote_log_segment_id.id == UUID(int=1):
            self.delete_log_segment_data(metadata)
        return stream


# Offsets are missing before the second batch; the third one confirms its position.
LOG = [
    build_batch([Record(-1, 0, None, b"%d" % number) for number in range(10)], base_offset=start)
    for start in (100, 115, 125)
]
OFFSETS = [*range(100, 110), *range(115, 135)]


def copied(directory: Path, segment_id: int) -> WrittenSegment:
    storage = LocalRemoteStorage()
    storage.configure({"dir": str(directory / "tier")})
    made = write_batches(
        str(directory),
        LOG,
        start_offset=100,
        end_offset=134,
        leader_epochs=((0, 100),),
        partition=partition_named(),
        segment_id=UUID(int=segment_id),
    )
    storage.copy_log_segment_data(made.metadata, made.data)
    return made


def options_of(directory: Path, *, fail_on_data_loss: bool = True) -> SourceOptions:
    store = StoreOptions("tests.spark.test_reading:Vanishing", {"dir": str(directory / "tier")})
    return SourceOptions(
        Subscription(("orders",)), None, store, fail_on_data_loss=fail_on_data_loss, chunk_bytes=len(LOG[0]) + 1
    )


def offsets(options: SourceOptions, piece: SegmentPiece) -> list[int]:
    return [offset for (offset,) in rows_of(read_piece(options, piece, ("offset",)))]


@pytest.mark.parametrize("end", [105, 120, 135])
def test_a_deleted_segments_rest_is_read_from_a_copy(tmp_path: Path, end: int) -> None:
    gone = copied(tmp_path, 1)
    copied(tmp_path, 2)
    found = offsets(options_of(tmp_path), SegmentPiece(gone.finished, 100, end))
    assert found == [offset for offset in OFFSETS if offset < end]


def test_a_deleted_segment_without_a_copy_is_missing_or_skipped(tmp_path: Path) -> None:
    gone = copied(tmp_path, 1)
    with pytest.raises(MissingObject, match="orders-0 at offset 110"):
        offsets(options_of(tmp_path), SegmentPiece(gone.finished, 100, 135))
    gone = copied(tmp_path, 1)
    assert offsets(options_of(tmp_path, fail_on_data_loss=False), SegmentPiece(gone.finished, 100, 135)) == OFFSETS[:10]


def test_losing_the_batch_after_a_piece_repeats_no_row(tmp_path: Path) -> None:
    end_position = [batch.position for batch in batches(b"".join(LOG))][2]
    for fail_on_data_loss in (True, False):
        gone = copied(tmp_path, 1)
        copied(tmp_path, 2)
        piece = SegmentPiece(gone.finished, 115, 125, 0, end_position)
        options = replace(options_of(tmp_path, fail_on_data_loss=fail_on_data_loss), chunk_bytes=end_position)
        if fail_on_data_loss:
            with pytest.raises(MissingObject):
                offsets(options, piece)
        else:
            assert offsets(options, piece) == [*range(115, 125)]
