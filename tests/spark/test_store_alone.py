"""Reading a store without a broker: its topics, the history of a partition, and offsets by time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.spark.errors import DamagedObject, MissingObject, StoreUnavailable, TopicRecreated, UnknownTopic
from kbroker.spark.jobs.audit import HOUR_MS, audit
from kbroker.spark.jobs.audit_report import AuditReport
from kbroker.spark.options import Subscription
from kbroker.spark.pieces import SegmentPiece
from kbroker.spark.plan import PartitionState, tile
from kbroker.spark.remote_times import first_at_or_after, load_indexes
from kbroker.spark.store_inventory import StoreInventory
from kbroker.testing.remote_segments import START_MS, WrittenSegment, partition_named, write_segment
from kbroker.tiered.api import IndexType, StoredObject, TopicIdPartition
from kbroker.tiered.layout import MANIFEST, SEGMENT, object_name
from kbroker.tiered.local import LocalRemoteStorage
from wire.record_batch import batches

ORDERS = partition_named("orders")


class Tier:
    """A directory tier into which tests copy segments one by one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._logs = directory / "logs"
        self._logs.mkdir(parents=True)
        self.storage = LocalRemoteStorage()
        self.storage.configure({"dir": str(directory / "tier")})
        self._clock_ms = START_MS

    def copy(self, *, partition: TopicIdPartition = ORDERS, **what: object) -> WrittenSegment:
        """See write_segment; each copy is one second later than the previous one."""
        self._clock_ms += 1000
        made = write_segment(str(self._logs), partition=partition, **{"batches": 5, **what})  # type: ignore[arg-type]
        made = replace(made, metadata=replace(made.metadata, event_timestamp_ms=self._clock_ms))
        self.storage.copy_log_segment_data(made.metadata, made.data)
        return made

    def path(self, segment: WrittenSegment, kind: str) -> Path:
        return self.directory / "tier" / object_name(segment.metadata, kind)

    def state(self, partition: TopicIdPartition = ORDERS) -> PartitionState:
        inventory = StoreInventory(self.storage)
        wanted = partition.topic, partition.partition
        return inventory.states([wanted], inventory.extent(Subscription(partitions=(wanted,))).bounds)[0]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


def read_offsets(state: PartitionState) -> list[tuple[int, int]]:
    """The offset ranges of a plan for all offsets, each with the first offset of its segment."""
    pieces = tile(state, state.log_start_offset, state.end_offset)
    assert all(isinstance(piece, SegmentPiece) for piece in pieces)
    return [(piece.start_offset, piece.end_offset) for piece in pieces]


def test_topics_and_partitions_are_those_of_the_manifests(tier: Tier) -> None:
    tier.copy()
    tier.copy(partition=partition_named("orders", 2))
    tier.copy(partition=partition_named("billing"))
    inventory = StoreInventory(tier.storage)
    found = inventory.extent(Subscription(topics=("orders",)))
    assert (found.ids, list(found.bounds)) == ({"orders": ORDERS.topic_id}, [("orders", 0), ("orders", 2)])
    assert sorted(inventory.extent(Subscription(pattern=".*")).ids) == ["billing", "orders"]
    assert inventory.extent(Subscription(pattern="none.*")) == ({}, {})
    with pytest.raises(UnknownTopic, match="orders-1"):
        inventory.extent(Subscription(partitions=(("orders", 1),)))
    with pytest.raises(UnknownTopic, match="users"):
        inventory.extent(Subscription(topics=("users",)))


def test_an_unfinished_copy_is_not_read(tier: Tier) -> None:
    first, second = tier.copy(), tier.copy(start_offset=15)
    tier.path(second, MANIFEST).unlink()
    state = tier.state()
    assert state.end_offset == first.metadata.end_offset + 1 == 15
    assert read_offsets(state) == [(0, 15)]


def test_the_history_is_that_of_the_newest_leader(tier: Tier) -> None:
    tier.copy(leader_epochs=((0, 0),))
    tier.copy(start_offset=15, batches=20, leader_epochs=((1, 15),))  # of a leader without followers
    tier.copy(start_offset=15, leader_epochs=((2, 15),))
    # Normally the checkpoint of the newest segment has all epochs up to its end. This one has only the segment's.
    newest = tier.copy(start_offset=30, leader_epochs=((2, 30),))
    tier.path(newest, IndexType.LEADER_EPOCH.value).write_bytes(b"0\n2\n0 0\n2 15\n")
    tier.path(newest, MANIFEST).write_bytes(
        tier.path(newest, MANIFEST).read_bytes().replace(b'"leader-epoch-checkpoint"', b'"none"')
    )
    state = tier.state()
    assert (state.log_start_offset, state.end_offset) == (0, 45)
    assert read_offsets(state) == [(0, 15), (15, 30), (30, 45)]
    epochs = [
        piece.segment.segment_leader_epochs[0][0] for piece in tile(state, 0, 45) if isinstance(piece, SegmentPiece)
    ]
    assert epochs == [0, 2, 2]


def test_the_newer_of_two_topics_with_one_name_is_read(tier: Tier) -> None:
    tier.copy(start_offset=0)
    tier.copy(start_offset=15)
    later = partition_named("orders", incarnation=2)
    tier.copy(partition=later)
    inventory = StoreInventory(tier.storage)
    assert inventory.extent(Subscription(topics=("orders",))).ids == {"orders": later.topic_id}


def test_two_clusters_with_one_topic_name_are_an_error(tier: Tier) -> None:
    tier.copy()
    tier.copy(partition=partition_named("orders", incarnation=2))
    tier.copy(start_offset=15)
    with pytest.raises(TopicRecreated, match="several topics of this name"):
        StoreInventory(tier.storage).extent(Subscription(topics=("orders",)))


def test_an_older_topic_that_outlived_the_newer_is_an_error(tier: Tier) -> None:
    tier.copy()
    tier.copy(partition=partition_named("orders", incarnation=2))
    tier.copy(partition=partition_named("orders", incarnation=3))
    tier.copy(start_offset=15)
    with pytest.raises(TopicRecreated, match="several topics of this name"):
        StoreInventory(tier.storage).extent(Subscription(topics=("orders",)))


@pytest.mark.parametrize("wanted", [Subscription(topics=("orders",)), Subscription(pattern=".*")])
def test_an_empty_store_is_an_error(tier: Tier, wanted: Subscription) -> None:
    with pytest.raises(UnknownTopic, match=r"tier'.* is empty"):
        StoreInventory(tier.storage).extent(wanted)


# --- manifests that are damaged ---------------------------------------------------------------------------------------

DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(range(256)),
    "zeros": lambda data: bytes(len(data)),
    "nested": lambda _: b"[" * 100_000,
    "other JSON": lambda _: b"[]",
    "no text": lambda data: data.replace(b'"orders"', b"5"),
    "no epochs": lambda data: json.dumps(json.loads(data) | {"segment_leader_epochs": []}).encode(),
    "another segment": lambda data: re.sub(rb'("segment_id": ")..', rb"\1AA", data),
    "another start": lambda data: data.replace(b'"start_offset": 15,', b'"start_offset": 14,'),
    "infinite": lambda data: data.replace(b'"end_offset": 29', b'"end_offset": Infinity'),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_is_an_error(tier: Tier, damage: Callable[[bytes], bytes]) -> None:
    tier.copy()
    path = tier.path(tier.copy(start_offset=15), MANIFEST)
    kept = path.read_bytes()
    path.write_bytes(damage(kept))
    assert path.read_bytes() != kept
    said = r"in orders-\S+15-\S+\.manifest\.json: a manifest cannot be read: .*Remedy: restore it, or name a broker"
    with pytest.raises(StoreUnavailable, match=said):
        tier.state()


def audited(tier: Tier, topics: list[str] | None = None, *, min_age_ms: int = -HOUR_MS) -> AuditReport:
    """Run an audit without a broker, and without reading segments, the only part that needs Spark."""
    spark: Any = None
    options = {"rsm.config.dir": str(tier.directory / "tier")}
    return audit(spark, options=options, topics=topics, deep=False, min_age_ms=min_age_ms)


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_an_audit_reports_a_damaged_manifest_and_continues(tier: Tier, damage: Callable[[bytes], bytes]) -> None:
    tier.copy()
    path = tier.path(tier.copy(start_offset=15, leader_epochs=((0, 0),)), MANIFEST)
    short = tier.copy(start_offset=30, leader_epochs=((0, 0),))
    tier.copy(partition=partition_named("billing"))
    path.write_bytes(damage(path.read_bytes()))
    tier.path(short, SEGMENT).write_bytes(short.log[:-1])
    report = audited(tier)
    # The segment's other objects are no orphans, and its offsets are a gap.
    assert report.problems == {"damage": 1, "gap": 1, "size": 1}
    (found,) = (each for each in report.findings if each.problem == "damage")
    assert found.name == str(path.relative_to(tier.directory / "tier"))
    assert found.text.startswith("cannot be read: ")
    assert "Remedy: restore it, or name a broker" in found.text
    assert report.segments == 3
    assert audited(tier, ["billing"]).findings == []
    assert audited(tier, ["orders"]).problems == report.problems


def test_a_tier_with_only_damaged_manifests_is_not_clean(tier: Tier) -> None:
    tier.path(tier.copy(), MANIFEST).write_bytes(b"")
    for topics in (None, ["orders"]):
        assert audited(tier, topics).problems == {"damage": 1}
    with pytest.raises(UnknownTopic):
        audited(tier, ["billing"])


def test_the_next_look_finds_new_and_deleted_segments(tier: Tier) -> None:
    first = tier.copy()
    inventory = StoreInventory(tier.storage)
    assert inventory.extent(Subscription(topics=("orders",))).ids == {"orders": ORDERS.topic_id}
    tier.copy(start_offset=15)
    tier.storage.delete_log_segment_data(first.metadata)
    assert inventory.extent(Subscription(topics=("orders",))).bounds == {("orders", 0): (15, 30)}


class OldList(LocalRemoteStorage):
    """A store whose listing is outdated and lacks these names."""

    unlisted: frozenset[str] = frozenset()

    def list_objects(self) -> Iterator[StoredObject]:
        return (each for each in super().list_objects() if each.name not in self.unlisted)


def test_m6_a_segment_missing_in_an_outdated_list_remains(tier: Tier) -> None:
    """M6: a known object is requested by name before it counts as deleted."""
    made = [tier.copy(start_offset=start, leader_epochs=((0, 0),)) for start in (0, 15, 30)]
    storage = OldList()
    storage.configure({"dir": str(tier.directory / "tier")})
    inventory = StoreInventory(storage)
    inventory.extent(Subscription(topics=("orders",)))
    storage.unlisted = frozenset(object_name(each.metadata, MANIFEST) for each in made[:2])
    tier.storage.delete_log_segment_data(made[0].metadata)
    assert inventory.extent(Subscription(topics=("orders",))).bounds == {("orders", 0): (15, 45)}


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tier, list[tuple[int, int]]]:
    """Three segments, the second with older timestamps than the others, and (offset, time) of all records."""
    tier = Tier(tmp_path_factory.mktemp("timed"))
    records = []
    for number, start_ms in enumerate((START_MS, START_MS - 500_000, START_MS + 90_000)):
        made = tier.copy(
            start_offset=90 * number, batches=30, value_bytes=900, start_ms=start_ms, leader_epochs=((0, 90 * number),)
        )
        records += [(record.offset, record.timestamp) for batch in batches(made.log) for record in batch.records()]
    return tier, records


@given(shift=st.integers(-600_000, 250_000), start=st.integers(0, 200))
@settings(max_examples=80, deadline=None)
def test_a_time_is_found_as_in_a_full_scan(timed: tuple[Tier, list[tuple[int, int]]], shift: int, start: int) -> None:
    tier, records = timed
    state = replace(tier.state(), log_start_offset=start)
    wanted = next((offset for offset, time in records if offset >= start and time >= START_MS + shift), None)
    assert first_at_or_after(tier.storage, state, START_MS + shift) == wanted


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(bytes(range(48)))])
def test_a_time_is_found_without_indexes(tier: Tier, damage: Callable[[Path], object]) -> None:
    made = tier.copy(batches=30, value_bytes=900)
    for index_type in (IndexType.OFFSET, IndexType.TIMESTAMP):
        damage(tier.path(made, index_type.value))
    assert first_at_or_after(tier.storage, tier.state(), START_MS + 40_500) == 41
    assert tier.path(made, SEGMENT).exists()


def test_a_damaged_time_index_does_not_matter_for_offsets(tier: Tier) -> None:
    made = tier.copy(batches=30, value_bytes=900)
    damaged = tier.path(made, IndexType.TIMESTAMP.value)
    damaged.write_bytes(bytes(range(48)))
    assert load_indexes(tier.storage, made.finished) is None
    found = load_indexes(tier.storage, made.finished, with_times=False)
    assert found is not None
    assert found.offsets == made.indexes[IndexType.OFFSET]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


# The last byte of the base offset, of the length, of the magic and of the records.
@pytest.mark.parametrize("position", [7, 11, 16, -1])
def test_a_time_in_a_damaged_segment_names_the_object(tier: Tier, position: int) -> None:
    made = tier.copy()
    flip(tier.path(made, SEGMENT), position)
    state = tier.state()
    with pytest.raises(
        DamagedObject, match=rf"orders-0 at offset 0 in object .*/{made.metadata.start_offset:020d}-.*log"
    ):
        first_at_or_after(tier.storage, state, START_MS + 14_000)


def test_a_time_in_a_missing_segment_names_the_object(tier: Tier) -> None:
    made = tier.copy()
    state = tier.state()
    tier.path(made, SEGMENT).unlink()
    with pytest.raises(MissingObject, match=r"orders-0 at offset 0 in object .*\.log"):
        first_at_or_after(tier.storage, state, START_MS)
