"""`kbroker dump-log` decodes the records of internal logs."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.cli._payloads import text
from kbroker.controller import records
from kbroker.controller.snapshots import SnapshotId, write_snapshot
from kbroker.runtime.disk import RealDisk
from tests.cli.conftest import Done, Run
from wire.record_batch import Record, build_batch
from wire.stored import groups, metadata, tiered, transactions
from wire.stored.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition
from wire.stored.frame import encode_key, encode_record, encode_value

TOPIC_ID = UUID(int=1)
TOPIC_ID_TEXT = "AAAAAAAAAAAAAAAAAAAAAQ"
LOG = "00000000000000000000.log"


def dump(run: Run, path: Path, flag: str, *values: Record) -> Done:
    path.write_bytes(build_batch(values))
    return run("dump-log", flag, "--files", path)


def payloads(done: Done) -> list[str]:
    return [line.partition(" payload: ")[2] for line in done.lines if line.startswith("| offset")]


def test_the_metadata_log_and_its_snapshots_are_decoded(run: Run, tmp_path: Path) -> None:
    topic = metadata.TopicRecord(name="orders", topic_id=TOPIC_ID)
    change = metadata.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=2, isr=[2, 1])
    log = tmp_path / LOG
    log.write_bytes(
        records.leader_change_batch(voter_id=1, base_offset=0, epoch=4, timestamp_ms=5)
        + records.data_batch(
            [records.encode_value(each, 21) for each in (topic, change)], base_offset=1, epoch=4, timestamp_ms=6
        )
    )
    snapshot = tmp_path / SnapshotId(3, 4).file_name
    write_snapshot(
        RealDisk(), str(snapshot), [topic], metadata_version=21, epoch=4, last_contained_log_timestamp=6, timestamp_ms=7
    )
    done = run("dump-log", "--cluster-metadata-decoder", "--files", log, snapshot)
    assert (done.code, done.err) == (0, "")
    shown = [line.partition("headerKeys: [] ")[2] for line in done.lines if line.startswith("| offset")]
    topic_text = f'{{"type":"TOPIC_RECORD","version":0,"data":{{"name":"orders","topicId":"{TOPIC_ID_TEXT}"}}}}'
    assert shown == [
        'LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":1}],"grantingVoters":[{"voterId":1}]}',
        f"payload: {topic_text}",
        (
            'payload: {"type":"PARTITION_CHANGE_RECORD","version":1,"data":{"partitionId":0,'
            f'"topicId":"{TOPIC_ID_TEXT}","isr":[2,1],"leader":2}}}}'
        ),
        'SnapshotHeader {"version":0,"lastContainedLogTimestamp":6}',
        f"payload: {topic_text}",
        'SnapshotFooter {"version":0}',
    ]
    assert "Snapshot end offset: 3, epoch: 4" in done.lines


def test_metadata_are_dumped_without_secrets(run: Run, tmp_path: Path) -> None:
    canary = "canary-4711"
    secret = metadata.ConfigRecord(
        resource_type=4, resource_name="1", name="listener.name.a.ssl.key.password", value=canary
    )
    deleted = metadata.ConfigRecord(resource_type=4, resource_name="1", name="ssl.key.password", value=None)
    public = metadata.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="5")
    credential = metadata.UserScramCredentialRecord(
        name="alice",
        mechanism=1,
        salt=canary.encode(),
        stored_key=canary.encode(),
        server_key=canary.encode(),
        iterations=4096,
    )
    values = [encode_record(each, 0) for each in (secret, deleted, public, credential)]
    for words in ((), ("--format", "json")):
        (tmp_path / LOG).write_bytes(build_batch([Record(-1, 1, None, value) for value in values]))
        done = run("dump-log", "--cluster-metadata-decoder", *words, "--files", tmp_path / LOG)
        assert done.code == 0
        assert canary not in done.out
        assert b64encode(canary.encode()).decode() not in done.out
    assert [json.loads(line)["value"]["data"] for line in done.lines if '"kind":"record"' in line] == [
        {
            "resourceType": 4,
            "resourceName": "1",
            "name": "listener.name.a.ssl.key.password",
            "value": "(redacted)",
        },
        {"resourceType": 4, "resourceName": "1", "name": "ssl.key.password", "value": None},
        {"resourceType": 2, "resourceName": "orders", "name": "retention.ms", "value": "5"},
        {
            "name": "alice",
            "mechanism": 1,
            "salt": "(redacted)",
            "storedKey": "(redacted)",
            "serverKey": "(redacted)",
            "iterations": 4096,
        },
    ]


def test_json_holds_decoded_records_as_objects(run: Run, tmp_path: Path) -> None:
    value = encode_record(metadata.FeatureLevelRecord(name="metadata.version", feature_level=21), 0)
    (tmp_path / LOG).write_bytes(build_batch([Record(-1, 1, None, value)]))
    done = run("dump-log", "--cluster-metadata-decoder", "--format", "json", "--files", tmp_path / LOG)
    found = json.loads(done.lines[-1])
    assert found["value"]["data"] == {"name": "metadata.version", "featureLevel": 21}


def test_the_bootstrap_snapshot_is_announced(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(records.snapshot_header_batch(last_contained_log_timestamp=1, epoch=1, timestamp_ms=1))
    assert run("dump-log", "--files", path).lines[1] == "KRaft bootstrap snapshot"


def test_committed_offsets_and_groups_are_decoded(run: Run, tmp_path: Path) -> None:
    subscription = ConsumerProtocolSubscription(topics=["orders"], owned_partitions=[])
    assignment = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic="orders", partitions=[0, 2])])
    member: dict[str, Any] = {"client_id": "c", "client_host": "/h", "session_timeout": 9}
    members = [
        groups.MemberMetadata(
            member_id="m",
            subscription=encode_value(subscription, 1),
            assignment=encode_value(assignment, 0),
            **member,
        ),
        groups.MemberMetadata(member_id="n", subscription=b"\x7f\xff", assignment=b"", **member),
    ]
    group = groups.GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="m", members=members
    )
    offset = groups.OffsetCommitValue(offset=42, leader_epoch=1, metadata="", commit_timestamp=8)
    key = groups.OffsetCommitKey(group="g", topic="orders", partition=2)
    done = dump(
        run,
        tmp_path / LOG,
        "--offsets-decoder",
        Record(-1, 1, encode_key(key), encode_value(offset, 3)),
        Record(-1, 1, encode_key(key), None),
        Record(-1, 1, encode_key(groups.GroupMetadataKey(group="g")), encode_value(group, 1)),
        Record(-1, 1, b"\x03\xe7later", b"\x00\x00"),
    )
    assert (done.code, done.err) == (0, "")
    shown = [line.partition("headerKeys: [] ")[2] for line in done.lines[3:]]
    key_text = 'key: {"type":"1","data":{"group":"g","topic":"orders","partition":2}}'
    assert shown[:2] == [
        (
            f'{key_text} payload: {{"version":"3","data":{{"offset":42,"leaderEpoch":1,"metadata":"",'
            '"commitTimestamp":8}}'
        ),
        f"{key_text} payload: <DELETE>",
    ]
    data = json.loads(shown[2].partition("payload: ")[2])["data"]
    assert data["members"][0]["subscription"] == {"topics": ["orders"], "userData": None, "ownedPartitions": []}
    assert data["members"][0]["assignment"] == {
        "assignedPartitions": [{"topic": "orders", "partitions": [0, 2]}],
        "userData": None,
    }
    assert (data["members"][1]["subscription"], data["members"][1]["assignment"]) == ("f/8=", "")
    assert shown[3] == "key: Unknown record type 999 at offset 3, skipping."


def test_transactions_are_decoded(run: Run, tmp_path: Path) -> None:
    value = transactions.TransactionLogValue(
        producer_id=6, producer_epoch=0, transaction_timeout_ms=60_000, transaction_status=0,
        transaction_partitions=None, transaction_last_update_timestamp_ms=1, transaction_start_timestamp_ms=-1,
    )  # fmt: skip
    key = encode_key(transactions.TransactionLogKey(transactional_id="t1"))
    done = dump(run, tmp_path / LOG, "--transaction-log-decoder", Record(-1, 1, key, encode_value(value, 1)))
    assert done.lines[-1].endswith(
        'key: {"type":"0","data":{"transactionalId":"t1"}} payload: {"version":"1","data":{"producerId":6,'
        '"producerEpoch":0,"transactionTimeoutMs":60000,"transactionStatus":0,"transactionPartitions":null,'
        '"transactionLastUpdateTimestampMs":1,"transactionStartTimestampMs":-1}}'
    )


def test_remote_log_metadata_is_decoded_as_kafka_prints_it(run: Run, tmp_path: Path) -> None:
    partition = tiered.TopicIdPartitionEntry(name="orders", id=TOPIC_ID, partition=3)
    segment = tiered.RemoteLogSegmentIdEntry(topic_id_partition=partition, id=UUID(int=2))
    stored = [
        tiered.RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=segment, start_offset=0, end_offset=9, broker_id=1, max_timestamp_ms=5,
            event_timestamp_ms=6, segment_leader_epochs=[tiered.SegmentLeaderEpochEntry(leader_epoch=0, offset=0)],
            segment_size_in_bytes=99, custom_metadata=b"abc", remote_log_segment_state=0, txn_index_empty=True,
        ),
        tiered.RemoteLogSegmentMetadataUpdateRecord(
            remote_log_segment_id=segment, broker_id=1, event_timestamp_ms=7, remote_log_segment_state=1
        ),
        tiered.RemotePartitionDeleteMetadataRecord(
            topic_id_partition=partition, broker_id=1, event_timestamp_ms=8, remote_partition_delete_state=2
        ),
    ]  # fmt: skip
    values = [Record(-1, 1, None, encode_record(each, 0)) for each in stored]
    id_text = f"RemoteLogSegmentId{{topicIdPartition={TOPIC_ID_TEXT}:orders-3, id=AAAAAAAAAAAAAAAAAAAAAg}}"
    assert payloads(dump(run, tmp_path / LOG, "--remote-log-metadata-decoder", *values)) == [
        (
            f"RemoteLogSegmentMetadata{{remoteLogSegmentId={id_text}, startOffset=0, endOffset=9, brokerId=1, "
            "maxTimestampMs=5, eventTimestampMs=6, segmentLeaderEpochs={0=0}, segmentSizeInBytes=99, "
            "customMetadata=Optional[CustomMetadata{3 bytes}], state=COPY_SEGMENT_STARTED, txnIdxEmpty=true}"
        ),
        (
            f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={id_text}, customMetadata=Optional.empty, "
            "state=COPY_SEGMENT_FINISHED, eventTimestampMs=7, brokerId=1}"
        ),
        (
            f"RemotePartitionDeleteMetadata{{topicPartition={TOPIC_ID_TEXT}:orders-3, state=DELETE_PARTITION_FINISHED, "
            "eventTimestampMs=8, brokerId=1}"
        ),
    ]


@pytest.mark.parametrize(
    "flag",
    ["--offsets-decoder", "--transaction-log-decoder", "--cluster-metadata-decoder", "--remote-log-metadata-decoder"],
)
@pytest.mark.parametrize("key", [None, b"\x00\x00garbage"])
@pytest.mark.parametrize("value", [None, b"", b"\x01\x63\x00", b"\x00\x01\xff\xff"])
def test_a_record_of_another_log_is_reported_and_skipped(
    run: Run, tmp_path: Path, flag: str, key: bytes | None, value: bytes | None
) -> None:
    done = dump(run, tmp_path / LOG, flag, Record(-1, 1, key, value), Record(-1, 1, key, value))
    assert len(done.lines) == 5
    assert "Traceback" not in done.err
    if done.code:
        assert done.lines[-1].partition("payload: ")[2].startswith("Error at offset 1, skipping. ")


def test_transaction_markers_are_printed(run: Run, tmp_path: Path) -> None:
    marks = [
        build_batch(
            [Record(-1, 1, bytes([0, 0, 0, kind]), b"\x00\x00\x00\x00\x00\x07")],
            base_offset=kind, producer_id=1, producer_epoch=0, is_transactional=True, is_control=True,
        )
        for kind in (0, 1)
    ]  # fmt: skip
    unknown = build_batch([Record(-1, 1, b"\x00\x00\x00\x63", b"")], base_offset=2, is_control=True)
    path = tmp_path / LOG
    path.write_bytes(b"".join([*marks, unknown]))
    done = run("dump-log", "--deep-iteration", "--files", path)
    assert [line.partition("headerKeys: [] ")[2] for line in done.lines if line.startswith("|")] == [
        "endTxnMarker: ABORT coordinatorEpoch: 7",
        "endTxnMarker: COMMIT coordinatorEpoch: 7",
        "controlType: UNKNOWN(99)",
    ]


def test_kafkas_decoders_are_known_and_others_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / LOG
    path.write_bytes(build_batch([Record(-1, 1, b"\xff\xff\xff\xfe", b"\x00\x01")]))
    package = "org.apache.kafka.tools.api"
    flags = ["--key-decoder-class", f"{package}.IntegerDecoder", "--value-decoder-class", f"{package}.DefaultDecoder"]
    assert run("dump-log", *flags, "--files", path).lines[-1].endswith("key: -2 payload: 0001")
    wrong = run("dump-log", "--value-decoder-class", f"{package}.LongDecoder", "--files", path)
    assert wrong.code == 1
    assert "2 bytes, where an integer of 8 is due" in wrong.err
    refused = run("dump-log", "--value-decoder-class", "com.acme.AvroDecoder", "--files", path)
    assert (refused.code, refused.out) == (2, "")
    assert "com.acme.AvroDecoder is an unsupported JVM class" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--files"],
        ["--files", "x", "--offsets-decoder", "--cluster-metadata-decoder"],
        ["--files", "x", "--max-bytes", "0"],
    ],
)
def test_wrong_usage_exits_with_2(run: Run, words: list[str]) -> None:
    assert run("dump-log", *words).code == 2


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xff", "\ufffd"),
        (b"a\xed\xa0\x80b", "a\ufffdb"),  # an encoded surrogate is one malformed sequence to Java, three to Python
        (b"\xed\xa6r", "\ufffdr"),
        (b"\xf0\x90", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        ("\u20ac\U0001f600".encode(), "\u20ac\U0001f600"),
    ],
)
def test_invalid_text_is_shown_as_in_java(data: bytes, shown: str) -> None:
    assert text(data) == shown
