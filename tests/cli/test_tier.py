"""`kbroker tier ls`, `cat`, `flush` and `why`, on brokers with a tier in a directory, running and stopped."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from tests.cli.conftest import Done, Run, Verify, run_apart
from tests.cli.directories import findings
from tests.cli.tiered import (
    COLD,
    GONE,
    PLAIN,
    QUICK,
    RECORDS,
    SMALL,
    TIERED,
    WARM,
    Served,
    Site,
    TieredBroker,
    append_to_metadata,
    fill,
    value_of,
)
from wire.types import uuid_from_text

COLD_RECORDS = RECORDS + 600


def objects_of(done: Done) -> list[dict[str, Any]]:
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.lines]


def listed(run: Run, site: Site, *words: str) -> list[dict[str, Any]]:
    return objects_of(run("tier", "ls", "--data-dir", site.data, "--format", "json", *words))


# --- ls ---


def test_the_segments_of_a_topic_are_those_of_the_store(run: Run, tiered_site: Site) -> None:
    found = listed(run, tiered_site, "--topic", f"{COLD}:0")
    assert [each["start_offset"] for each in found] == [0, *(each["end_offset"] + 1 for each in found[:-1])]
    assert found[-1]["end_offset"] == COLD_RECORDS - 1
    assert len(found) >= 4
    assert {each["state"] for each in found} == {"COPY_SEGMENT_FINISHED"}
    assert [len(each["leader_epochs"]) for each in found] == [1] * len(found)
    epochs = {each["start_offset"]: each["leader_epochs"][0]["leader_epoch"] for each in found}
    assert epochs[0] == 0 < epochs[RECORDS]
    of_partition = [path for path in tiered_site.objects(COLD, "log") if path.parent.name == "0"]
    assert [each["size_bytes"] for each in found] == [path.stat().st_size for path in of_partition]
    assert [f"{each['start_offset']:020d}-{each['segment_id']}.log" for each in found] == [
        path.name for path in of_partition
    ]


def test_a_running_broker_and_its_directory_give_the_same_result(run: Run, tiered: Served) -> None:
    for words in (["--all"], ["--topic", COLD], ["--offsets"]):
        after = run("tier", "ls", "--data-dir", tiered.site.data, "--format", "json", *words)
        while True:  # until the broker changes nothing between two looks
            before = after
            from_broker = run("tier", "ls", "-b", tiered.address, "--format", "json", *words)
            after = run("tier", "ls", "--data-dir", tiered.site.data, "--format", "json", *words)
            if before == after:
                break
        assert from_broker.code == 0
        assert from_broker.lines
        assert after == from_broker


def test_deleted_segments_are_listed_on_request(run: Run, tiered_site: Site) -> None:
    shown, everything = listed(run, tiered_site), listed(run, tiered_site, "--all")
    assert {each["topic"] for each in shown} == {COLD, WARM, SMALL}
    deleted = [each for each in everything if each["state"] == "DELETE_SEGMENT_FINISHED"]
    assert {each["topic"] for each in deleted} == {QUICK, GONE}
    assert len(everything) == len(shown) + len(deleted)
    assert listed(run, tiered_site, "--all", "--topic", GONE)
    assert listed(run, tiered_site, "--topic", GONE) == []


def test_partitions_are_listed_with_their_offsets_in_both_tiers(run: Run, tiered_site: Site) -> None:
    cold, *_ = listed(run, tiered_site, "--offsets", "--topic", f"{COLD}:0")
    assert cold == {
        "topic": COLD,
        "partition": 0,
        "log_start_offset": 0,
        "local_log_start_offset": COLD_RECORDS,
        "highest_offset_in_remote_storage": COLD_RECORDS - 1,
        "log_end_offset": COLD_RECORDS,
        "segment_count": cold["segment_count"],
        "size_bytes": sum(path.stat().st_size for path in tiered_site.tier.glob(f"{COLD}-*/0/*.log")),
    }
    (warm,) = listed(run, tiered_site, "--offsets", "--topic", WARM)
    assert (warm["local_log_start_offset"], warm["highest_offset_in_remote_storage"]) == (0, RECORDS - 1)
    assert warm["log_end_offset"] == RECORDS + 5
    (quick,) = listed(run, tiered_site, "--offsets", "--topic", QUICK)
    assert (quick["segment_count"], quick["log_start_offset"]) == (0, quick["local_log_start_offset"])
    assert quick["log_start_offset"] > 0


def test_text_output_has_columns(run: Run, tiered_site: Site) -> None:
    heading, *rows = run("tier", "ls", "--data-dir", tiered_site.data).lines
    assert heading.split()[:4] == ["TOPIC", "PARTITION", "START", "END"]
    assert rows[0].split()[:5] == [COLD, "0", "0", rows[0].split()[3], "0@0"]


def test_unreadable_metadata_are_counted_and_skipped(run: Run, site: Site) -> None:
    with TieredBroker(site) as served:
        assert run("tier", "flush", "-b", served.address, "-t", WARM).code == 0
        before = listed(run, site, "--all")
    append_to_metadata(site, b"\x01\x63garbage")
    with TieredBroker(site) as served:
        for words in (["-b", served.address], ["--data-dir", site.data]):
            done = run("tier", "ls", "--all", "--format", "json", *words)
            assert [json.loads(line) for line in done.lines] == before
            assert done.err == "kbroker tier: 1 records of the metadata topic cannot be read\n"


def test_without_tiered_topics_the_list_is_empty(run: Run, broker: str) -> None:
    assert run("tier", "ls", "-b", broker, "--format", "json") == (0, "", "")


# --- cat ---


def test_every_record_can_be_read_from_the_store(run: Run, tiered_site: Site) -> None:
    number = 0
    for segment in listed(run, tiered_site, "--topic", f"{COLD}:0"):
        words = ["--segment", segment["segment_id"], "--format", "json"]
        for record in objects_of(run("tier", "cat", "--data-dir", tiered_site.data, *words)):
            assert (record["topic"], record["partition"], record["offset"]) == (COLD, 0, number)
            assert (record["key"], record["value"]) == (f"k{number}", value_of(number).decode())
            assert (record["timestamp"], record["timestamp_type"]) == (1_000 + number, "CreateTime")
            number += 1
        assert number == segment["end_offset"] + 1
    assert number == COLD_RECORDS


@pytest.mark.parametrize("offset", [0, 1, 777, 1_500, RECORDS - 1, RECORDS, COLD_RECORDS - 1])
def test_reading_can_start_at_any_offset(run: Run, tiered: Served, offset: int) -> None:
    words = ["-t", COLD, "-o", str(offset), "-c", "1", "-f", "%o %k %s"]
    found = run("tier", "cat", "-b", tiered.address, "--data-dir", tiered.site.data, *words)
    assert found == (0, f"{offset} k{offset} {value_of(offset).decode()}", "")


def test_values_are_printed_between_delimiters(run: Run, tiered_site: Site) -> None:
    words = ["-t", SMALL, "-o", "1", "-D", ";"]
    done = run("tier", "cat", "--data-dir", tiered_site.data, *words)
    assert done.out == f"{value_of(1).decode()};{value_of(2).decode()};"


def test_a_dump_equals_that_of_the_local_file(run: Run, tiered_site: Site, tmp_path: Path) -> None:
    (stored,) = tiered_site.objects(SMALL, "log")
    copied = tmp_path / f"{stored.name[:20]}.log"
    shutil.copyfile(stored, copied)
    _, *expected = run("dump-log", "--files", copied, "--print-data-log").lines
    done = run("tier", "cat", "--data-dir", tiered_site.data, "-t", SMALL, "-o", "0", "--format", "dump")
    assert (done.code, done.lines[1:]) == (0, expected)
    assert len([line for line in expected if "payload: " in line]) == 3


@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint"])
def test_bytes_are_printed_as_they_are_stored(tiered_site: Site, kind: str) -> None:
    stored = tiered_site.objects(WARM, kind)[1]
    offset = stored.name[:20]
    words = ["--format", "raw"] if kind == "log" else ["--index", kind]
    command = [sys.executable, "-m", "kbroker", "tier", "cat", "--data-dir", str(tiered_site.data)]
    done = subprocess.run([*command, "-t", WARM, "-o", offset, *words], capture_output=True, check=True)
    assert done.stdout == stored.read_bytes()


def test_a_segment_can_be_named_by_a_uuid(run: Run, tiered_site: Site) -> None:
    (segment,) = listed(run, tiered_site, "--topic", SMALL)
    uuid = uuid_from_text(segment["segment_id"])
    assert run("tier", "cat", "--data-dir", tiered_site.data, "-s", uuid, "-f", "%o ").out == "0 1 2 "


def test_the_store_can_be_named_by_a_file_of_settings(run: Run, tiered: Served, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"rsm.config.dir={tiered.site.tier}\nlog.dirs={tmp_path / 'other'}\n")
    words = ["-b", tiered.address, "-t", COLD, "-o", "5", "-c", "1", "-f", "%k"]
    assert run("tier", "cat", "--config", config, *words).out == "k5"
    missing = run("tier", "cat", "--config", config, "--override", f"rsm.config.dir={tmp_path}", *words)
    assert missing.code == 1
    assert "No such file or directory" in missing.err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ([], 2, "one of --segment or --topic with --offset is required"),
        (["-t", COLD], 2, "--topic requires --offset"),
        (["-t", COLD, "-o", "0", "-s", "A" * 22], 2, "one of --segment or --topic"),
        (["-s", "garbage"], 2, "'garbage' is not a segment id"),
        (["-t", COLD, "-o", "-1"], 2, "-1"),
        (["-t", COLD, "-o", "0", "--format", "raw", "-c", "1"], 2, "not with whole files"),
        (["-t", COLD, "-o", "0", "--format", "json", "-f", "%s"], 2, "cannot be used with --format json"),
        (
            ["-t", COLD, "-o", "0", "--format", "json", "--index", "index"],
            2,
            "--index cannot be used with --format json",
        ),
        (["-t", COLD, "-o", "0", "-f", "%x"], 2, "%x is unknown"),
        (["-t", COLD, "-o", "999999"], 1, "no finished segment of cold-0 in the tier contains offset 999999"),
        (["-t", "nowhere", "-o", "0"], 1, "no finished segment of nowhere-0"),
        (["-s", "A" * 22], 1, "the metadata have no segment with this id"),
        (["-t", COLD, "-o", "0", "--index", "txnindex"], 1, "the store: "),
        (["-t", COLD, "-o", "0", "--config", "/nowhere/x"], 1, "cannot read /nowhere/x: No such file or directory"),
        (["-t", COLD, "-o", "0", "--override", "nonsense=1"], 1, "nonsense"),
        (["-t", COLD, "-o", "0", "--override", "rsm.config.buckett=b"], 1, "buckett"),
        (["-t", COLD, "-o", "0", "--override", "remote.log.storage.manager.class.name=none"], 1, "no such manager"),
    ],
)
def test_an_impossible_request_is_an_error(
    run: Run, tiered_site: Site, words: list[str], code: int, reason: str
) -> None:
    done = run("tier", "cat", "--data-dir", tiered_site.data, *words)
    assert (done.code, done.out) == (code, "")
    assert reason in done.err
    assert code == 2 or len(done.err.splitlines()) <= 2


@pytest.mark.parametrize("part", ["ls", "cat", "scrub", "why"])
def test_a_directory_without_a_broker_is_an_error(run: Run, tmp_path: Path, part: str) -> None:
    words = ["-s", "A" * 22] if part == "cat" else []
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    assert f"{missing} does not exist" in run("tier", part, "--data-dir", missing, *words).err
    done = run("tier", part, "--data-dir", empty, *words)
    assert done.code == 1
    assert f"{empty} is not a broker's data directory" in done.err


@pytest.mark.parametrize("part", ["ls", "scrub", "why"])
def test_a_missing_topic_is_an_error(run: Run, tiered_site: Site, part: str) -> None:
    def said(topic: str) -> str:
        done = run("tier", part, "--data-dir", tiered_site.data, "--topic", topic)
        assert (done.code, done.out) == (1, "")
        return done.err

    assert said("nowhere") == "kbroker tier: topic 'nowhere' does not exist\n"
    assert said(f"{COLD}:0,7") == "kbroker tier: topic 'cold' has no partition 7\n"
    assert run("tier", part, "--data-dir", tiered_site.data, "--topic", "a b").code == 2


def test_it_is_an_error_if_no_broker_answers(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=300\n")
    done = run_apart("tier", "ls", "-b", "127.0.0.1:1", "--command-config", config)
    assert done == (
        1,
        "",
        "kbroker tier: no broker answers at 127.0.0.1:1: Connection refused; `kbroker serve` starts a broker\n",
    )


def test_the_store_must_be_specified(run: Run, tiered: Served) -> None:
    for words in (["cat", "-t", COLD, "-o", "0"], ["scrub"]):
        done = run("tier", *words, "-b", tiered.address)
        assert (done.code, done.out) == (2, "")
        assert "the store is not specified" in done.err


# --- flush ---


def test_a_flush_copies_the_active_segment_too(run: Run, tiered: Served) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=tiered.address)) as admin:
        admin.create_topics({"flushed": {"num_partitions": 2, "replication_factor": 1, "configs": TIERED}})
        for first in (0, 7):
            fill(tiered, "flushed", first=first, count=7)
            (done, empty) = objects_of(run("tier", "flush", "-b", tiered.address, "-t", "flushed", "--format", "json"))
            assert (done["high_watermark"], done["highest_offset_in_remote_storage"]) == (first + 7, first + 6)
            assert (empty["high_watermark"], empty["is_done"]) == (0, True)
        again = run("tier", "flush", "-b", tiered.address, "-t", "flushed")
        assert (again.code, again.lines[1].split()) == (0, ["flushed", "0", "14", "13", "yes"])
        assert len(objects_of(run("tier", "ls", "-b", tiered.address, "-t", "flushed", "--format", "json"))) == 2
        admin.delete_topics(["flushed"])


def test_a_flush_that_could_never_finish_is_refused(run: Run, tiered: Served) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=tiered.address)) as admin:
        configs = {**TIERED, "remote.log.copy.disable": "true"}
        admin.create_topics({"uncopied": {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
        for topic, reason in (
            (PLAIN, "topic 'plain' is not tiered: its setting remote.storage.enable is not true"),
            ("uncopied", "topic 'uncopied' is not copied: its setting remote.log.copy.disable is true"),
            ("nowhere", "topic 'nowhere' does not exist"),
        ):
            assert run("tier", "flush", "-b", tiered.address, "-t", topic) == (1, "", f"kbroker tier: {reason}\n")
        assert run("tier", "flush", "-b", tiered.address).code == 2
        admin.delete_topics(["uncopied"])


# --- why ---


def reasons(run: Run, site: Site, topic: str, *words: str) -> list[tuple[str, bool, str]]:
    done = run("tier", "why", "--data-dir", site.data, "--topic", topic, "--format", "json", *words)
    return [(each["why"], each["is_copied"], each["text"]) for each in objects_of(done)]


def test_why_explains_each_local_segment(run: Run, tiered: Served) -> None:
    for words in ([], ["--http", tiered.http]):
        *closed, active = reasons(run, tiered.site, WARM, *words)
        assert {each[:2] for each in closed} == {("kept for ever", True)}
        assert len(closed) >= 2
        assert active[:2] == ("active", False)
        assert [each[0] for each in reasons(run, tiered.site, f"{COLD}:0", *words)] == ["active"]
        *closed, active = reasons(run, tiered.site, PLAIN, *words)
        assert {each[:2] for each in closed} == {("within retention", False)}
    whole = run("tier", "why", "--data-dir", tiered.site.data)
    assert {line.split()[0] for line in whole.lines if not line.startswith("TOPIC")} == {COLD, WARM, SMALL, QUICK}


def test_unreachable_pages_are_an_error(run: Run, tiered_site: Site) -> None:
    done = run("tier", "why", "--data-dir", tiered_site.data, "--http", "127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert "127.0.0.1:1: " in done.err


def test_failing_copies_are_reported_everywhere(run: Run, tmp_path: Path) -> None:
    """KAFKA-19995: lags were not reported while copies failed. Complaint 7: why a segment is still local."""
    site = Site(tmp_path / "data")
    obstacle = tmp_path / "no-directory"
    obstacle.write_text("")
    with TieredBroker(site, "--override", f"rsm.config.dir={obstacle}/tier") as served:
        with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
            configs = {**TIERED, "local.retention.bytes": "1"}
            admin.create_topics({"stuck": {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
        fill(served, "stuck")
        done = run("tier", "flush", "-b", served.address, "-t", "stuck", "--timeout-ms", "500")
        assert done.code == 1
        assert "stuck-0 not in the tier within 500 ms" in done.err
        served.until("the failure is noted", lambda: served.state()["stuck", 0]["remote"]["last_error"] is not None)
        state = served.state()["stuck", 0]
        waiting = [segment for segment in state["segments"] if segment["kept"] == "copy pending"]
        assert state["remote"]["copy_lag_segments"] == len(waiting) >= 3
        assert state["remote"]["copy_lag_bytes"] == sum(segment["size_bytes"] for segment in waiting)
        assert state["remote"]["highest_offset_in_remote_storage"] == -1
        assert state["local_log_start_offset"] == state["log_start_offset"] == 0
        first, *_ = reasons(run, site, "stuck", "--http", served.http)
        assert first[0] == "copy pending"
        # Each attempt is a new segment with a new id.
        for message in (state["remote"]["last_error"], first[2]):
            assert re.search(r"looking at \S+/no-directory/tier: Not a directory", message)
        metrics = served.metrics()
        assert metrics["remotecopylagsegments", "stuck"] == len(waiting)
        assert metrics["remotecopylagbytes", "stuck"] == state["remote"]["copy_lag_bytes"]
        for topic in (None, "stuck"):
            assert metrics["remotecopyerrors_total", topic] >= 1
            assert metrics["remotecopybytes_total", topic] == 0


# --- the other commands ---


def test_verify_accepts_a_directory_with_a_tier(verify: Verify, site: Site) -> None:
    done = verify(site.data)
    assert (done.code, findings(done)) == (0, [])
    registry = site.data / "remote-partitions"
    registry.write_text(registry.read_text().replace("0\n", "1\n", 1))
    done = verify(site.data)
    assert done.code == 3
    assert findings(done) == [
        f"{registry}: cannot be read: it does not begin with version 0 and a count, or is cut short"
    ]
