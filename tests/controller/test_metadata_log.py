"""The metadata log on a disk: its state after a shutdown, a crash, a power loss, and damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.metadata import MetadataSettings
from kbroker.controller import records
from kbroker.controller.metadata_leader import MetadataLeader
from kbroker.controller.metadata_loading import load_metadata_log
from kbroker.controller.metadata_log import DIRECTORY
from kbroker.controller.quorum_state import parse_quorum_state
from kbroker.controller.replay import LogSegment, Replay
from kbroker.controller.snapshots import SnapshotId, read_snapshot, snapshot_ids, write_snapshot
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.metadata.snapshot import image_records
from kbroker.runtime.disk import RealDisk
from kbroker.runtime.ports import Disk
from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from wire.record_batch import RecordBatch, batches
from wire.stored.metadata import (
    BeginTransactionRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    TopicRecord,
)

FIXTURES = Path(__file__).parent / "fixtures"
NOW = 1_700_000_000_000


def topic_record(number: int, padding: int = 0) -> TopicRecord:
    return TopicRecord(name=f"topic-{number}" + "x" * padding, topic_id=UUID(int=1_000 + number))


class Node:
    """One process with its metadata log."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        *,
        clean_shutdown: bool = False,
        config: MetadataSettings | None = None,
        max_batch_bytes: int = records.MAX_BATCH_BYTES,
        bootstrap: str | None = None,
    ) -> None:
        self.root = root
        self.disk = disk
        self.reports: list[str] = []
        self.log, self.image = load_metadata_log(
            root,
            disk=disk,
            node_id=1,
            config=config or MetadataSettings(),
            max_batch_bytes=max_batch_bytes,
            timestamp_ms=NOW,
            clean_shutdown=clean_shutdown,
            report=self.reports.append,
        )
        self.loaded = self.image
        self.leader = MetadataLeader(self.log, node_id=1)
        self.image = self.leader.begin_epoch(self.image, disk=disk, timestamp_ms=NOW, bootstrap=bootstrap)

    def append(self, *decided: object) -> None:
        values = [records.encode_value(record, 21) for record in decided]
        staged = self.leader.stage(values, metadata_version=21)
        self.leader.write(staged, timestamp_ms=NOW)
        self.image = self.image.apply(decided, offset=staged.end_offset - 1, epoch=self.log.epoch)

    def snapshot(self) -> SnapshotId:
        self.log.note_snapshot(now_ms=0)
        snapshot = self.log.write_snapshot(self.image, timestamp_ms=NOW)
        self.log.adopt_snapshot(snapshot, timestamp_ms=NOW, now_ms=0)
        return snapshot


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Node]:
    def begin(**options: object) -> Node:
        return Node(RealDisk(), str(tmp_path), **options)  # type: ignore[arg-type]

    return begin


def log_files(node: Node) -> list[Path]:
    return sorted(Path(node.root, DIRECTORY).glob("*.log"))


def state(image: Image) -> Image:
    """The image without its offset and epoch, to compare states across epochs."""
    return image._replace(offset=Image().offset, epoch=Image().epoch)


def test_files_with_other_names_are_no_segments(start: Callable[..., Node]) -> None:
    node = start()
    Path(node.root, DIRECTORY, "notes.log").write_text("not a segment")
    assert start().log.epoch == 2


def test_a_new_log_starts_with_the_same_records_as_kafkas(start: Callable[..., Node]) -> None:
    node = start()
    (path,) = log_files(node)
    leader, first = batches(path.read_bytes())
    assert leader.is_control
    assert (leader.base_offset, leader.partition_leader_epoch, leader.record_count) == (0, 1, 1)
    assert records.control_type(leader) == records.LEADER_CHANGE
    begin, level, end = records.batch_records(first)
    assert begin == BeginTransactionRecord(name="Bootstrap records")
    assert level == FeatureLevelRecord(name="metadata.version", feature_level=21)
    assert type(end).__name__ == "EndTransactionRecord"
    directory = path.parent
    quorum = parse_quorum_state((directory / "quorum-state").read_bytes(), "quorum-state")
    assert (quorum.leader_id, quorum.leader_epoch, quorum.voters) == (1, 1, (1,))
    assert (directory / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"


def test_bootstrap_log_and_file_equal_kafkas_except_for_timestamps(start: Callable[..., Node], tmp_path: Path) -> None:
    """Byte for byte those of a node that Kafka's own tool formatted for release 3.9, except for timestamps and CRCs."""
    node = start()
    ours = b"".join(bytes(_without_time(batch)) for batch in batches(log_files(node)[0].read_bytes()))
    theirs = [bytes(_without_time(batch)) for batch in batches((FIXTURES / "kafka-4.3.1-restarted.log").read_bytes())]
    assert ours == b"".join(theirs[:2])
    level = FeatureLevelRecord(name="metadata.version", feature_level=21)
    path = str(tmp_path / "bootstrap.checkpoint")
    write_snapshot(
        RealDisk(),
        path,
        [level],
        metadata_version=21,
        epoch=0,
        last_contained_log_timestamp=0,
        timestamp_ms=NOW,
    )
    assert [bytes(_without_time(batch)) for batch in batches(Path(path).read_bytes())] == [
        bytes(_without_time(batch)) for batch in batches((FIXTURES / "kafka-4.3.1-bootstrap.checkpoint").read_bytes())
    ]


def _without_time(batch: RecordBatch) -> bytearray:
    data = bytearray(batch.data)
    data[17:21] = bytes(4)  # the CRC
    data[27:43] = bytes(16)  # base and greatest timestamp
    return data


def test_a_log_written_by_kafka_can_be_read() -> None:
    """The node was stopped cleanly, killed, and restarted: each restart raised the leader epochs by two."""
    path = str(FIXTURES / "kafka-4.3.1-restarted.log")
    replay = Replay(RealDisk(), [LogSegment(0, path)], start_offset=0, highest_epoch=3, clean_shutdown=False)
    found = [record for batch in replay for record in records.batch_records(batch)]
    assert any(isinstance(record, NoOpRecord) for record in found)
    image = Image().apply(found, offset=replay.end.end_offset - 1, epoch=replay.end.epoch)
    assert [one.leader_epoch for one in image.topics_by_name["alpha"].partitions.values()] == [4, 4]
    assert image.topic_configs("alpha") == {"retention.ms": "100000"}
    assert image.broker_configs(None) == {"log.retention.ms": "9999999"}
    assert not image.brokers[1].fenced
    assert image.next_producer_id == 1000
    assert parse_quorum_state((FIXTURES / "kafka-4.3.1-quorum-state").read_bytes(), "").leader_epoch == 3
    again = Image().apply(image_records(image), offset=image.offset, epoch=image.epoch)
    assert again == image


def test_every_start_raises_the_epoch_and_keeps_the_records(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1), topic_record(2))
    node.log.close()
    again = start(clean_shutdown=True)
    assert again.loaded == node.image
    assert again.log.epoch == 2
    assert again.image.offset == node.image.offset + 1, "the LeaderChange"
    assert state(again.image) == state(node.image)


def test_an_epoch_whose_first_record_was_lost_is_not_reused(start: Callable[..., Node]) -> None:
    start()
    node = start()
    path = log_files(node)[0]
    path.write_bytes(path.read_bytes()[:-91])  # the LeaderChange of epoch 2
    assert start().log.epoch == 3


def test_an_empty_log_starts_with_the_bootstrap_records(start: Callable[..., Node], tmp_path: Path) -> None:
    path = str(tmp_path / "bootstrap.checkpoint")
    given = [
        FeatureLevelRecord(name="metadata.version", feature_level=20),
        ConfigRecord(resource_type=4, resource_name="", name="x", value="y"),
    ]
    options = {"metadata_version": 20, "epoch": 0, "last_contained_log_timestamp": 0, "timestamp_ms": NOW}
    write_snapshot(RealDisk(), path, given, **options)
    node = start(bootstrap=path)
    assert (node.image.metadata_version, node.image.broker_configs(None)) == (20, {"x": "y"})


def test_k12_an_unsupported_bootstrap_version_fails_the_start(start: Callable[..., Node], tmp_path: Path) -> None:
    path = str(tmp_path / "bootstrap.checkpoint")
    given = [FeatureLevelRecord(name="metadata.version", feature_level=30)]
    options = {"metadata_version": 30, "epoch": 0, "last_contained_log_timestamp": 0, "timestamp_ms": NOW}
    write_snapshot(RealDisk(), path, given, **options)
    with pytest.raises(UnusableMetadata, match=r"needs metadata\.version level 30; supported: 7 to 21"):
        start(bootstrap=path)


@pytest.mark.parametrize("cut", [1, 30, 60, 61, 100])
def test_c3_d1_a_torn_tail_is_cut(start: Callable[..., Node], cut: int) -> None:
    node = start()
    node.append(topic_record(1))
    before = node.image
    node.append(topic_record(2, padding=60))
    path = log_files(node)[0]
    path.write_bytes(path.read_bytes()[:-cut])
    again = start()
    assert again.loaded == before
    assert any("unfinished batch" in report for report in again.reports)
    again.append(topic_record(3))
    assert sorted(start().image.topics_by_name) == ["topic-1", "topic-3"]


def test_c3_a_tail_of_zeros_is_cut(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    path = log_files(node)[0]
    path.write_bytes(path.read_bytes() + bytes(5_000))
    assert start().loaded == node.image


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("at", [8, 16, 20, 70])  # length, magic, CRC, a record
def test_c4_k12_damage_before_a_complete_batch_fails_the_start(start: Callable[..., Node], at: int) -> None:
    node = start()
    node.append(topic_record(1))
    position = log_files(node)[0].stat().st_size
    node.append(topic_record(2))
    node.append(topic_record(3))
    _flip(log_files(node)[0], position + at)
    with pytest.raises(UnusableMetadata, match="a committed batch is lost"):
        start()


def test_c4_damage_after_a_clean_shutdown_fails_the_start(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    node.log.close()
    _flip(log_files(node)[0], log_files(node)[0].stat().st_size - 1)
    with pytest.raises(UnusableMetadata, match="after a clean shutdown"):
        start(clean_shutdown=True)


def test_c4_an_unknown_record_fails_the_start(start: Callable[..., Node]) -> None:
    node = start()
    staged = node.leader.stage([b"\x01\x7f\x00\x00"], metadata_version=21)
    node.leader.write(staged, timestamp_ms=NOW)
    with pytest.raises(UnusableMetadata, match="record type 127 version 0 is unknown"):
        start()


@pytest.mark.parametrize(
    "contents",
    [b"", b"{", b"{}", b"[]", b'{"leaderId":1,"leaderEpoch":"2","votedId":-1,"data_version":0}', b"\xff"],
)
def test_c4_an_unreadable_quorum_state_fails_the_start(start: Callable[..., Node], contents: bytes) -> None:
    node = start()
    Path(node.root, DIRECTORY, "quorum-state").write_bytes(contents)
    with pytest.raises(UnusableMetadata, match="quorum-state"):
        start()


def test_c4_a_quorum_of_other_voters_fails_the_start(start: Callable[..., Node]) -> None:
    node = start()
    path = Path(node.root, DIRECTORY, "quorum-state")
    path.write_bytes(path.read_bytes().replace(b'"voterId":1', b'"voterId":2'))
    with pytest.raises(UnusableMetadata, match=r"lists the voters \[2\]"):
        start()


def test_a_snapshot_replaces_the_log_before_it(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    snapshot = node.snapshot()
    assert snapshot == SnapshotId(node.image.end_offset, 1)
    node.append(topic_record(2))
    again = start()
    assert again.loaded == node.image
    assert again.log.snapshot_ids == [snapshot]
    first, second = log_files(again)
    assert int(second.stem) == snapshot.end_offset, "a snapshot starts a new segment"
    first.unlink()
    assert start().log.snapshot_ids == [snapshot]


def test_c5_the_previous_snapshot_replaces_a_damaged_one(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    older = node.snapshot()
    node.append(topic_record(2))
    newer = node.snapshot()
    node.append(topic_record(3))
    path = Path(node.root, DIRECTORY, newer.file_name)
    _flip(path, path.stat().st_size // 2)
    again = start()
    assert again.loaded == node.image
    assert again.log.snapshot_ids == [older]
    assert any("using the previous snapshot" in report for report in again.reports)
    assert start().log.snapshot_ids == [older]


@pytest.mark.parametrize("keep", [0, 40, 83, 200])
def test_c5_a_snapshot_without_a_footer_is_ignored(start: Callable[..., Node], keep: int) -> None:
    node = start()
    node.append(*[topic_record(number) for number in range(5)])
    path = Path(node.root, DIRECTORY, node.snapshot().file_name)
    path.write_bytes(path.read_bytes()[:keep])
    again = start()
    assert again.loaded == node.image
    assert again.log.snapshot_ids == []


def test_c5_unfinished_snapshots_are_removed(start: Callable[..., Node]) -> None:
    node = start()
    directory = Path(node.root, DIRECTORY)
    (directory / f"{SnapshotId(9, 1).file_name}.part").write_bytes(b"x")
    (directory / f"{SnapshotId(9, 1).file_name}.deleted").write_bytes(b"x")
    start()
    assert not list(directory.glob("*.checkpoint*"))


def test_c5_a_log_without_its_start_needs_a_snapshot(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    snapshot = node.snapshot()
    node.append(topic_record(2))
    log_files(node)[0].unlink()
    Path(node.root, DIRECTORY, snapshot.file_name).unlink()
    with pytest.raises(UnusableMetadata, match="no complete snapshot reaches it"):
        start()


def test_old_snapshots_and_their_log_are_deleted_by_size(start: Callable[..., Node]) -> None:
    node = start(config=MetadataSettings(metadata_max_retention_bytes=3_000))
    for number in range(12):
        node.append(topic_record(number, padding=200))
        node.snapshot()
    assert 1 <= len(node.log.snapshot_ids) < 12
    assert node.log.log_start_offset == node.log.snapshot_ids[0].end_offset > 0
    assert start().loaded == node.image


def test_old_snapshots_are_deleted_by_age_except_the_newest(start: Callable[..., Node]) -> None:
    node = start(config=MetadataSettings(metadata_max_retention_ms=1_000))
    for number in range(3):
        node.append(topic_record(number))
        node.snapshot()
    far = RealDisk().modified_ms(str(log_files(node)[0])) + 1_000_000
    node.log.clean(timestamp_ms=far, now_ms=0)
    assert node.log.snapshot_ids == [SnapshotId(node.image.end_offset, 1)]
    assert start().loaded == node.image


def test_a_snapshot_is_due_by_new_bytes_or_by_time(start: Callable[..., Node]) -> None:
    config = MetadataSettings(
        metadata_log_max_record_bytes_between_snapshots=2_000, metadata_log_max_snapshot_interval_ms=5_000
    )
    node = start(config=config)
    assert not node.log.snapshot_is_due(now_ms=0)
    assert node.log.snapshot_is_due(now_ms=5_000)
    node.log.note_snapshot(now_ms=5_000)
    assert not node.log.snapshot_is_due(now_ms=50_000), "no new records"
    node.append(topic_record(1, padding=2_000))
    assert node.log.snapshot_is_due(now_ms=5_001)


def test_a_decision_of_several_batches_is_one_transaction(start: Callable[..., Node]) -> None:
    node = start(max_batch_bytes=1_000)
    node.append(*[topic_record(number) for number in range(100)])
    data = log_files(node)[0].read_bytes()
    sizes = [batch.size for batch in batches(data)][2:]
    assert len(sizes) > 4
    assert max(sizes) <= 1_100
    again = start(max_batch_bytes=1_000)
    assert state(again.loaded) == state(node.image)
    assert len(again.image.topics_by_id) == 100
    cut = sum(batch.size for batch in list(batches(data))[:-1])
    log_files(node)[0].write_bytes(data[:cut])  # without the last batch, which has the End record
    torn = start(max_batch_bytes=1_000)
    assert torn.loaded.open_transaction is not None
    assert torn.image.open_transaction is None
    assert torn.image.topics_by_id == {}
    assert torn.image.metadata_version == 21


# -- crashes, on the simulated disk


def _workload(disk: SimulatedDisk, root: str) -> Iterator[Image]:
    """A workload with all operations; yields the image after each acknowledged step."""
    node = Node(disk, root, config=MetadataSettings(metadata_max_retention_bytes=2_500), max_batch_bytes=600)
    yield node.image
    for number in range(6):
        node.append(topic_record(number, padding=50))
        yield node.image
        if number % 2:
            node.snapshot()
    node.append(*[topic_record(100 + number) for number in range(20)])
    yield node.image
    node.log.close()


def _disk() -> SimulatedDisk:
    disk = SimulatedDisk(timestamp_ms=lambda: NOW)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("done", [0.0, 0.6])
def test_c3_d7_k1_acknowledged_decisions_survive_a_crash_at_any_operation(loss: Loss, *, done: float) -> None:
    """The recovered state existed before, and is at least as new as the last acknowledged one."""
    disk = _disk()
    acknowledged = [Image()]
    survivors: list[tuple[Operation, int, SimulatedDisk]] = []

    def crash(operation: Operation) -> None:
        survivor = disk.crash(loss, seed=operation.number, during=operation, done=done)
        survivors.append((operation, len(acknowledged), survivor))

    disk.observer = crash
    acknowledged += _workload(disk, "/data")
    assert len(survivors) > 100
    states = [state(image) for image in acknowledged]
    empty = state(Image())
    for operation, known, survivor in survivors:
        survivor_image = Node(survivor, "/data", max_batch_bytes=600).image
        found = state(survivor_image)
        if found == empty:
            pytest.fail(f"{operation}: an unformatted log after recovery")
        allowed = states[max(known - 1, 1) : known + 1]
        assert found in allowed, f"{operation}: recovered a state that is unknown or too old"
        assert survivor_image.epoch >= acknowledged[known - 1].epoch + (1 if known > 1 else 0), (
            f"{operation}: an epoch was reused"
        )


def test_d13_an_interrupted_recovery_can_be_repeated() -> None:
    disk = _disk()
    *_, last = _workload(disk, "/data")
    torn = disk.crash(Loss.PROCESS_DEATH)
    second: list[SimulatedDisk] = []
    torn.observer = lambda operation: second.append(torn.crash(Loss.PROCESS_DEATH, during=operation))
    Node(torn, "/data", max_batch_bytes=600)
    assert second
    for survivor in second:
        assert state(Node(survivor, "/data", max_batch_bytes=600).image) == state(last)


@pytest.mark.parametrize("name", ["write", "sync"])
def test_d8_d9_a_failed_write_makes_the_log_unusable(name: str) -> None:
    disk = _disk()
    node = Node(disk, "/data")
    disk.inject(Fault(error=5, name=name, path="*.log"))
    with pytest.raises(UnusableMetadata, match="the metadata log cannot be written"):
        node.append(topic_record(1))
    disk.heal()
    with pytest.raises(UnusableMetadata):
        node.append(topic_record(2))  # never retried


def test_snapshot_file_names_are_those_of_kafka() -> None:
    name = "00000000000000000307-0000000004.checkpoint"
    assert SnapshotId(307, 4).file_name == name
    assert snapshot_ids([name, "00000000000000000000-0000000000.checkpoint", "x.checkpoint", name + ".part"]) == [
        SnapshotId(307, 4)
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5_000), max_size=60))
def test_a_snapshot_of_any_size_can_be_read_back(paddings: list[int]) -> None:
    disk = _disk()
    contents = [topic_record(number, padding) for number, padding in enumerate(paddings)]
    write_snapshot(
        disk,
        "/data/00000000000000000009-0000000001.checkpoint",
        contents,
        metadata_version=21,
        epoch=1,
        last_contained_log_timestamp=0,
        timestamp_ms=NOW,
    )
    assert read_snapshot(disk, "/data/00000000000000000009-0000000001.checkpoint") == contents
