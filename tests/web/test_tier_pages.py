"""The pages about the tier of a broker process, compared with the tier's directory."""

from __future__ import annotations

import json
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from kbroker.cli import main

with warnings.catch_warnings():
    # The client reads its schemas with a function that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka.admin import KafkaAdminClient
    from kafka.structs import TopicPartition

    from tests.cli.tiered import TIERED, Served, Site, TieredBroker, fill

COUNTERS = [
    f"remote{what}_total"
    for what in (
        "copybytes", "copyrequests", "copyerrors", "fetchbytes", "fetchrequests", "fetcherrors", "deleterequests",
        "deleteerrors",
    )
]  # fmt: skip
GAUGES = [
    f"remote{what}"
    for what in (
        "copylagbytes", "copylagsegments", "deletelagbytes", "deletelagsegments", "logsizebytes", "logmetadatacount",
    )
]  # fmt: skip


def create(served: Served, topic: str, **configs: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
        settings = {**TIERED, **configs}
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1, "configs": settings}})


def read_all(served: Served, topic: str, count: int) -> None:
    with closing(KafkaConsumer(bootstrap_servers=served.address)) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        while consumer.position(partition) < count:
            consumer.poll(timeout_ms=100)


def test_tier_operations_are_counted_by_topic_and_in_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site(tmp_path / "data")
    with TieredBroker(site) as served:
        before = served.metrics()
        assert {before[name, None] for name in COUNTERS} == {0}
        for topic in ("a", "b"):
            create(served, topic, **{"local.retention.bytes": "0"})
            fill(served, topic)
            assert main(["tier", "flush", "-b", served.address, "-t", topic]) == 0
        served.until("the local disk is empty", lambda: served.state()["a", 0]["local_log_start_offset"] == 3_000)
        read_all(served, "a", 3_000)
        found = served.metrics()
        for topic in ("a", "b"):
            sizes = [path.stat().st_size for path in site.objects(topic, "log")]
            assert found["remotecopybytes_total", topic] == found["remotelogsizebytes", topic] == sum(sizes)
            assert found["remotecopyrequests_total", topic] == found["remotelogmetadatacount", topic] == len(sizes)
        assert found["remotefetchbytes_total", "a"] >= found["remotecopybytes_total", "a"]
        assert found["remotefetchrequests_total", "a"] >= 1
        for name in ("copyerrors_total", "fetcherrors_total", "deleteerrors_total"):
            assert found[f"remote{name}", None] == 0
        assert {found[f"remotecopylag{what}", topic] for what in ("bytes", "segments") for topic in ("a", "b")} == {0}
        assert not [name for name in GAUGES if (name, None) in found], "a sum over the series would count twice"
        for name in COUNTERS:
            assert found[name, None] == found[name, "a"] + found[name, "b"], name

        with closing(KafkaAdminClient(bootstrap_servers=served.address)) as admin:
            admin.delete_topics(["a"])
        served.until("the deleted topic leaves the tier", lambda: not site.objects("a", "log"))
        after = served.metrics()
        assert not [topic for _, topic in after if topic == "a"]
        for name in ("copybytes", "copyrequests", "fetchbytes", "fetchrequests"):
            assert after[f"remote{name}_total", None] == found[f"remote{name}_total", None], name
        assert after["remotedeleterequests_total", None] == found["remotelogmetadatacount", "a"]
        assert after["remotelogsizebytes", "b"] == found["remotelogsizebytes", "b"]
    capsys.readouterr()


def test_the_state_has_the_offsets_of_both_tiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site(tmp_path / "data")
    with TieredBroker(site) as served:
        create(served, "kept")
        fill(served, "kept")
        assert main(["tier", "flush", "-b", served.address, "-t", "kept"]) == 0
        fill(served, "kept", first=3_000, count=2)
        state = served.state()
        capsys.readouterr()
        assert main(["tier", "ls", "-b", served.address, "--offsets", "-t", "kept:0", "--format", "json"]) == 0
        health = json.loads(capsys.readouterr().out)
        assert main(["tier", "why", "--data-dir", str(site.data), "-t", "kept:0", "--format", "json"]) == 0
        reasons = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        create(served, "local", **{"remote.storage.enable": "false"})
        plain = served.state()["local", 0]
    one = state["kept", 0]
    assert one["remote"]["highest_offset_in_remote_storage"] == health["highest_offset_in_remote_storage"] == 2_999
    assert one["remote"]["size_bytes"] == health["size_bytes"] > 2_000_000
    assert one["remote"]["segment_count"] == health["segment_count"] >= 3
    assert (one["log_start_offset"], one["local_log_start_offset"], one["log_end_offset"]) == (0, 0, 3_002)
    assert (one["remote"]["copies"], one["remote"]["last_error"]) == (True, None)
    assert [
        (each["base_offset"], each["kept"], each["kept_because"], each["is_copied"]) for each in one["segments"]
    ] == [(each["base_offset"], each["why"], each["text"], each["is_copied"]) for each in reasons]
    assert [each["kept"] for each in one["segments"]] == ["kept for ever"] * (len(reasons) - 1) + ["active"]
    assert state["kept", 1]["remote"]["highest_offset_in_remote_storage"] == -1
    assert plain["remote"] is None
    assert "kept" not in plain["segments"][0]
