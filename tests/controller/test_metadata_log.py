"""The metadata log on a disk: its state after a shutdown, and after damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.config.sasl import SCRAM_SECRET
from kbroker.controller import records
from kbroker.controller.metadata_log import DIRECTORY
from kbroker.controller.quorum_state import parse_quorum_state
from kbroker.controller.replay import LogSegment, Replay
from kbroker.controller.snapshots import write_snapshot
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.metadata.snapshot import image_records
from kbroker.runtime.disk import RealDisk
from tests.controller.metadata_node import NOW, Node, flip, log_files, state, topic_record
from wire.record_batch import RecordBatch, batches
from wire.stored.control import KRaftVersionFeature, KRaftVersionRecord, VotersRecord, VotersVoter
from wire.stored.metadata import (
    BeginTransactionRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    UserScramCredentialRecord,
)

FIXTURES = Path(__file__).parent / "fixtures"


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
    begin, level, groups, end = records.batch_records(first)
    assert begin == BeginTransactionRecord(name="Bootstrap records")
    assert level == FeatureLevelRecord(name="metadata.version", feature_level=21)
    assert groups == FeatureLevelRecord(name="group.version", feature_level=1)
    assert type(end).__name__ == "EndTransactionRecord"
    directory = path.parent
    quorum = parse_quorum_state((directory / "quorum-state").read_bytes(), "quorum-state")
    assert (quorum.leader_id, quorum.leader_epoch, quorum.voters) == (1, 1, (1,))
    assert (directory / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"


def test_bootstrap_log_and_file_equal_kafkas_except_for_timestamps(start: Callable[..., Node], tmp_path: Path) -> None:
    """Byte for byte those of a node that Kafka's own tool formatted for release 3.9, except for timestamps and CRCs."""
    node = start(bootstrap=str(FIXTURES / "kafka-4.3.1-bootstrap.checkpoint"))
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


def test_users_of_kafkas_format_tool_get_the_secret_for_users_that_do_not_exist(
    start: Callable[..., Node], tmp_path: Path
) -> None:
    path = str(tmp_path / "bootstrap.checkpoint")
    user = UserScramCredentialRecord(
        name="amy", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    given = [FeatureLevelRecord(name="metadata.version", feature_level=20), user]
    options = {"metadata_version": 20, "epoch": 0, "last_contained_log_timestamp": 0, "timestamp_ms": NOW}
    write_snapshot(RealDisk(), path, given, **options)
    secret = UUID(int=7).hex * 2
    node = start(bootstrap=path)
    assert node.image.broker_configs(None) == {SCRAM_SECRET: secret}
    end_offset = node.log.log_end_offset
    again = start()
    assert again.loaded.broker_configs(None) == {SCRAM_SECRET: secret}
    assert again.log.log_end_offset == end_offset + 1, "only the LeaderChange of the new epoch"


def test_k12_an_unsupported_bootstrap_version_fails_the_start(start: Callable[..., Node], tmp_path: Path) -> None:
    path = str(tmp_path / "bootstrap.checkpoint")
    given = [FeatureLevelRecord(name="metadata.version", feature_level=31)]
    options = {"metadata_version": 30, "epoch": 0, "last_contained_log_timestamp": 0, "timestamp_ms": NOW}
    write_snapshot(RealDisk(), path, given, **options)
    with pytest.raises(UnusableMetadata, match=r"has metadata\.version=31 \(supported: 7 to 30\)"):
        start(bootstrap=path)


def test_k12_a_log_with_unsupported_features_fails_the_start_unchanged(start: Callable[..., Node]) -> None:
    node = start()
    for name, level in (("metadata.version", 31), ("eligible.leader.replicas.version", 1)):
        node.append(FeatureLevelRecord(name=name, feature_level=level))
    path = log_files(node)[0]
    before = path.read_bytes()
    wrong = (
        r"has eligible\.leader\.replicas\.version=1 \(supported: 0 to 0\), metadata\.version=31 \(supported: 7 to 30\),"
        r" which a controller .*: format .* 3\.9`, and start Apache Kafka .* downgrade --feature eligible\."
    )
    with pytest.raises(UnusableMetadata, match=wrong):
        start()
    assert path.read_bytes() == before, "another broker can go on with it"


def dynamic_quorum(root: Path, *voters: int) -> None:
    """The first snapshot of a directory that Kafka's tool has formatted for a dynamic quorum (KIP-853)."""
    feature = KRaftVersionFeature(min_supported_version=0, max_supported_version=1)
    listed = [
        VotersVoter(
            voter_id=voter, voter_directory_id=UUID(int=500 + voter), endpoints=[], kraft_version_feature=feature
        )
        for voter in voters
    ]
    quorum = [KRaftVersionRecord(version=0, kraft_version=1), VotersRecord(version=0, voters=listed)]
    directory = root / "__cluster_metadata-0"
    directory.mkdir()
    options = {"metadata_version": 30, "epoch": 0, "last_contained_log_timestamp": 0, "timestamp_ms": NOW}
    path = str(directory / "00000000000000000000-0000000000.checkpoint")
    write_snapshot(RealDisk(), path, [], quorum=quorum, **options)


def test_the_only_voter_of_a_dynamic_quorum_begins_an_epoch(start: Callable[..., Node], tmp_path: Path) -> None:
    dynamic_quorum(tmp_path, 1)
    for _ in range(2):
        node = start()
        assert node.image.levels["kraft.version"] == 1
        assert node.image.voters is not None
        assert node.image.voters.voters[0].voter_directory_id == UUID(int=501)


@pytest.mark.parametrize("voters", [(2,), (1, 2, 3), ()])
def test_a_voter_of_several_begins_no_epoch(
    start: Callable[..., Node], tmp_path: Path, voters: tuple[int, ...]
) -> None:
    """Alone it would write another history than the majority."""
    dynamic_quorum(tmp_path, *voters)
    with pytest.raises(UnusableMetadata, match=r"lists the voters \[.*\]; this node, 1, must be the only voter"):
        start()
    assert not (tmp_path / "__cluster_metadata-0" / "quorum-state").exists()


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


@pytest.mark.parametrize("at", [8, 16, 20, 70])  # length, magic, CRC, a record
def test_c4_k12_damage_before_a_complete_batch_fails_the_start(start: Callable[..., Node], at: int) -> None:
    node = start()
    node.append(topic_record(1))
    position = log_files(node)[0].stat().st_size
    node.append(topic_record(2))
    node.append(topic_record(3))
    flip(log_files(node)[0], position + at)
    with pytest.raises(UnusableMetadata, match="a committed batch is lost"):
        start()


def test_c4_damage_after_a_clean_shutdown_fails_the_start(start: Callable[..., Node]) -> None:
    node = start()
    node.append(topic_record(1))
    node.log.close()
    flip(log_files(node)[0], log_files(node)[0].stat().st_size - 1)
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
