"""Errors and pieces that are sent between Spark's processes, and the messages of errors."""

from __future__ import annotations

import pickle
from uuid import UUID

import pytest

from kbroker.spark.errors import DamagedObject, InvalidOption, KbrokerSourceError, object_of
from kbroker.spark.pieces import SegmentPiece, TailPiece
from kbroker.tiered.api import RemoteLogSegmentId, RemoteLogSegmentMetadata
from kbroker.tiered.local import LocalRemoteStorage
from tests.spark.segments import PARTITION

SEGMENT = RemoteLogSegmentMetadata(RemoteLogSegmentId(PARTITION, UUID(int=9)), 42, 99, 0, 1, 0, ((0, 42),), 1000)


def test_a_message_names_partition_offset_object_and_remedy() -> None:
    error = DamagedObject(
        "the CRC is wrong", remedy="put it back", at=("orders", 3), offset=42, object_name="object a/b.log"
    )
    assert str(error) == "orders-3 at offset 42 in object a/b.log: the CRC is wrong. Remedy: put it back."


def test_a_message_omits_unknown_fields() -> None:
    assert str(InvalidOption("no such option", remedy="remove it")) == "no such option. Remedy: remove it."
    assert str(KbrokerSourceError("gone", remedy="wait", at="orders")) == "orders: gone. Remedy: wait."


def test_errors_survive_pickling() -> None:
    error = DamagedObject("bad", remedy="mend", at=("orders", 0), offset=0, object_name="o")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is DamagedObject
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    "piece", [SegmentPiece(SEGMENT, 50, 60, 100, 200), TailPiece("orders", PARTITION.topic_id, 3, 5, 9)]
)
def test_pieces_survive_pickling(piece: SegmentPiece | TailPiece) -> None:
    assert pickle.loads(pickle.dumps(piece)) == piece
    assert piece.topic_id_partition == PARTITION


def test_an_object_is_named_as_its_store_lists_it() -> None:
    storage = LocalRemoteStorage()
    storage.configure({"dir": "/somewhere/tier"})
    name = object_of(SEGMENT, storage)
    assert "orders-AAAAAAAAAAAAAAAAAAAABw/3/00000000000000000042-AAAAAAAAAAAAAAAAAAAACQ.log" in name
    assert "/somewhere/tier" in name
    assert object_of(SEGMENT, object()) == f"segment {UUID(int=9)} of object"
