"""The pytest plug-in, in runs of pytest of its own: its fixtures, its options, and the report of a failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.testing import broker

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs/pytest.md"

BASICS = """
from kbroker.client.producing import Producer
from wire.compression import Codec
from wire.record_batch import Record

def produce(server, topic, count):
    with Producer(server.client, topic, {}, acks=-1, codec=Codec.NONE, is_idempotent=True) as producer:
        for number in range(count):
            producer.send(Record(timestamp=0, key=None, value=b"v"), partition=0, number=number)
"""


@pytest.fixture(autouse=True)
def _quiet(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_XDIST_WORKER", "KBROKER_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]\n")


def run(pytester: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(BASICS + tests)
    return pytester.runpytest_subprocess("-p", "no:trio", "-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize("flag", [[], ["--kbroker-in-process"]], ids=["process", "thread"])
def test_each_test_starts_without_topics_and_groups(pytester: pytest.Pytester, flag: list[str]) -> None:
    done = run(
        pytester,
        """
def test_own_topics(kbroker):
    topic = kbroker.topic("orders", partitions=2)
    produce(kbroker, topic, 3)
    produce(kbroker, kbroker.create_topic("fixed-name"), 1)
    assert len(kbroker.records(topic)) == 3

def test_later(kbroker):
    assert kbroker.topics() == []
    assert kbroker.create_topic("fixed-name") == "fixed-name"
    assert kbroker.records("fixed-name") == []

def test_same_broker(kbroker, kbroker_server):
    assert kbroker.bootstrap_servers == kbroker_server.bootstrap_servers
""",
        *flag,
    )
    done.assert_outcomes(passed=3)


@pytest.mark.long
def test_a_test_costs_few_requests(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
def test_before(kbroker_server):
    kbroker_server.topics()
    kbroker_server.requests.start_request_tracking()

def test_a_topic(kbroker):
    kbroker.topic()

def test_after(kbroker_server):
    assert [each.api for each in kbroker_server.requests.received()] == ["CreateTopics"]

def test_with_rules(kbroker):
    kbroker.faults.fail("Produce", "INVALID_RECORD", times=None)

def test_without_rules(kbroker):
    produce(kbroker, kbroker.topic(), 1)
    kbroker.nodes[0].pause()

def test_after_a_pause(kbroker):
    kbroker.nodes[0].set_down()

def test_up_again(kbroker):
    kbroker.topic()
""",
    )
    done.assert_outcomes(passed=7)


@pytest.mark.long
@pytest.mark.parametrize("flag", [[], ["--kbroker-in-process"]], ids=["process", "thread"])
def test_what_cannot_be_deleted_fails_its_test(pytester: pytest.Pytester, flag: list[str]) -> None:
    done = run(
        pytester,
        """
def test_before(kbroker_server):
    kbroker_server.create_topic("old")

def test_a_topic(kbroker):
    kbroker.create_topic("new")

def test_nothing(kbroker):
    assert kbroker.topics() == ["new", "old"]
""",
        "--kbroker-setting=delete.topic.enable=false",
        *flag,
    )
    done.assert_outcomes(passed=3, errors=1)
    done.stdout.fnmatch_lines(["*ERROR at teardown of test_a_topic*", "*not deleted after the test: topic new: *"])


@pytest.mark.long
def test_groups_of_every_kind_are_deleted(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
from wire.errors import check
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.leave_group import LeaveGroupRequest
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic

def commit(kbroker, group, topic):
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
    request = OffsetCommitRequest(
        group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
    )

    def read(answer):
        check(answer.topics[0].partitions[0].error_code)

    kbroker.client.ask_coordinator(group, request, read, at_most=8)

def groups(kbroker):
    (node,) = kbroker.nodes
    return node.control({"contents": True})["groups"]

def test_old(kbroker_server):
    commit(kbroker_server, "old", kbroker_server.create_topic("kept"))

def test_groups(kbroker):
    commit(kbroker, "billing", "kept")
    worker = JoinGroupRequest(
        group_id="workers", session_timeout_ms=30_000, rebalance_timeout_ms=30_000, member_id="",
        protocol_type="connect", protocols=[JoinGroupRequestProtocol(name="sessioned", metadata=b"")],
    )
    joined = []
    kbroker.client.ask_coordinator("workers", worker, joined.append, at_most=3)
    check(joined[-1].error_code)
    leave = LeaveGroupRequest(group_id="workers", member_id=joined[-1].member_id)
    kbroker.client.ask_coordinator("workers", leave, lambda _: None, at_most=2)
    assert sorted(groups(kbroker)) == ["billing", "old", "workers"]

def test_later(kbroker):
    assert groups(kbroker) == ["old"]
    assert kbroker.consumer_offset("billing", "kept") is None
    assert kbroker.consumer_offset("old", "kept") == 3
""",
    )
    done.assert_outcomes(passed=3)


@pytest.mark.long
def test_a_cluster_in_place_of_the_session_s_broker_is_emptied(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
import pytest
from kbroker.testing import brokers

@pytest.fixture(scope="session")
def kbroker_server():
    with brokers(2) as servers:
        yield servers
"""
    )
    done = run(
        pytester,
        """
from kbroker.testing.servers import wait_until

def test_before(kbroker):
    produce(kbroker, kbroker.create_topic("same-name"), 2)

def test_later(kbroker):
    # A broker that had not heard of the topic yet may hear of it after the others have heard of its end.
    assert wait_until(lambda: kbroker.topics() == [], 30)
    assert kbroker.records(kbroker.create_topic("same-name")) == []
""",
    )
    done.assert_outcomes(passed=2)


def test_the_examples_of_the_manual_pass(pytester: pytest.Pytester) -> None:
    examples = dict(re.findall(r"^```python\n# (test_\w+)\.py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    pytester.makepyfile(**examples)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", *(f"{name}.py" for name in examples))
    done.assert_outcomes(passed=2)


USED_LATER = """
from pathlib import Path

def test_before(tmp_path_factory):
    print("began:", (tmp_path_factory.getbasetemp() / "kbroker0" / "broker-1.log").exists())
    print("children:", Path("/proc/thread-self/children").read_text())
    assert {passes}

def test_broker(kbroker):
    assert kbroker.nodes[0].is_running
"""


@pytest.mark.long
def test_the_broker_starts_during_the_tests_before_its_first(pytester: pytest.Pytester) -> None:
    done = run(pytester, USED_LATER.format(passes=True), "-s")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*began: True"])


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--collect-only"], ["-kbefore"], ["--setup-plan"]], ids=str)
def test_a_broker_that_no_test_uses_is_not_started(pytester: pytest.Pytester, arguments: list[str]) -> None:
    base = pytester.path / "base"
    done = run(pytester, USED_LATER.format(passes=True), f"--basetemp={base}", *arguments)
    assert done.ret == 0
    assert not (base / "kbroker0").exists()


@pytest.mark.long
def test_a_broker_that_began_for_nothing_ends_with_pytest(pytester: pytest.Pytester) -> None:
    done = run(pytester, USED_LATER.format(passes=False), "-s", "-x")
    done.assert_outcomes(failed=1)
    (pid,) = re.findall(r"children: (\d+)", str(done.stdout))
    assert not Path("/proc", pid).exists()


def test_a_failure_shows_the_log_and_the_state(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
def test_bad(kbroker):
    kbroker.topic("seen-in-the-state")
    kbroker.faults.fail("Produce", "INVALID_RECORD")
    produce(kbroker, kbroker.prefix + "seen-in-the-state", 1)
    assert False

def test_without_a_broker():
    assert False
""",
    )
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*kbroker log*", "*serving pages*", "*kbroker state*", "*seen-in-the-state*"])
    assert re.search(
        r"kbroker requests -*\n.*\n(.*\n)*[\d:.]+ Produce \d+ 'kbroker-testing': INVALID_RECORD", str(done.stdout)
    )
    kept = re.search(r"kbroker data directory -*\n(.+)", str(done.stdout))
    assert kept is not None
    assert Path(kept[1].strip(), "data").is_dir()
    after = str(done.stdout).split("test_without_a_broker")[-1]
    assert "kbroker state" not in after


@pytest.mark.long
def test_a_flag_precedes_the_environment_which_precedes_the_ini_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\nkbroker_setting =\n    num.partitions=2\nkbroker_log_level = debug\n")
    tests = """
def test_partitions(kbroker, pytestconfig):
    kbroker.create_topic("a", partitions=-1)
    (found,) = kbroker.client.metadata(["a"]).topics
    print("partitions:", len(found.partitions))
"""
    run(pytester, tests, "-s").stdout.fnmatch_lines(["*partitions: 2*"])
    monkeypatch.setenv("KBROKER_SETTING", "num.partitions=3;auto.create.topics.enable=false")
    run(pytester, tests, "-s").stdout.fnmatch_lines(["*partitions: 3*"])
    done = run(pytester, tests, "-s", "--kbroker-setting", "num.partitions=4")
    done.stdout.fnmatch_lines(["*partitions: 4*"])


@pytest.mark.long
@pytest.mark.parametrize("flag", ["--kbroker-setting=partitions", "--kbroker-port=http", "--kbroker-log-level=loud"])
def test_an_option_that_cannot_be_read_is_refused(pytester: pytest.Pytester, flag: str) -> None:
    done = run(pytester, "def test_a(kbroker): pass", flag)
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*kbroker: *is not*"])


def test_another_broker_keeps_topics_that_are_not_the_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker() as other:
        monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVERS", other.bootstrap_servers)
        other.create_topic("theirs")
        done = run(
            pytester,
            """
def test_other(kbroker):
    kbroker.topic("mine")
    kbroker.create_topic("made-by-a-colleague")
    assert "theirs" in kbroker.topics()
""",
        )
        done.assert_outcomes(passed=1)
        assert other.topics() == ["made-by-a-colleague", "theirs"]


@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["--kbroker-in-process"]])
def test_a_cluster_and_a_tiered_broker(pytester: pytest.Pytester, flags: list[str]) -> None:
    done = run(
        pytester,
        """
from kbroker.client.operations import EARLIEST_LOCAL, list_offsets
from kbroker.testing.servers import wait_until

def test_cluster(kbroker_cluster):
    cluster = kbroker_cluster(2, {"num.partitions": 4})
    cluster.create_topic("a", partitions=-1, replication_factor=2)
    assert " INFO " not in cluster.log_tail()
    assert len(cluster.client.metadata(["a"]).topics[0].partitions) == 4

def test_tier(kbroker_tiered):
    config = {"remote.storage.enable": "true", "segment.bytes": 1048576, "local.retention.bytes": 1, "retention.ms": -1}
    topic = kbroker_tiered.create_topic("a", config=config)
    with Producer(kbroker_tiered.client, topic, {}, acks=-1, codec=Codec.NONE, is_idempotent=True) as producer:
        for number in range(30):
            producer.send(Record(timestamp=0, key=None, value=bytes(100_000)), partition=0, number=number)
    place = (topic, 0)
    local = lambda: list_offsets(kbroker_tiered.client, {place: EARLIEST_LOCAL})[place].offset
    assert wait_until(lambda: local() > 0, 60)
    assert len(kbroker_tiered.records(topic)) == 30
    assert " INFO " not in kbroker_tiered.log_tail()
""",
        "--kbroker-log-level=warning",
        *flags,
    )
    done.assert_outcomes(passed=2)


@pytest.mark.long
def test_the_state_of_each_node_is_attached_to_a_failure(pytester: pytest.Pytester) -> None:
    done = run(pytester, "def test_cluster(kbroker_cluster): kbroker_cluster(2).create_topic('a'); assert 0")
    done.assert_outcomes(failed=1)
    text = done.stdout.str()
    assert "kbroker state of node 0" in text
    assert "kbroker state of node 1" in text
    assert "kbroker requests of node 0" in text


@pytest.mark.long
def test_clients_of_a_test_are_closed_before_its_groups_are_deleted(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
import pytest

@pytest.fixture(scope="session")
def own(kbroker_server):
    return kbroker_server.producer(library="kafka-python")

def test_a_group(own, kbroker):
    topic = kbroker.topic()
    own.send(topic, b"a").get(timeout=30)
    consumer = kbroker.consumer(topic, group="billing", library="kafka-python")
    assert next(consumer).value == b"a"
    assert kbroker.groups() == ["billing"]

def test_later(own, kbroker):
    assert kbroker.groups() == []
    own.send(kbroker.topic(), b"a").get(timeout=30)
""",
    )
    done.assert_outcomes(passed=2)


@pytest.mark.long
def test_workers_of_xdist_use_ports_of_their_own(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    with broker() as other:
        free = other.port
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
    done = run(
        pytester,
        f"def test_port(kbroker): assert kbroker.port == {free}",
        f"--kbroker-port={free - 3}",
    )
    done.assert_outcomes(passed=1)


@pytest.mark.long
def test_two_workers_of_xdist_have_a_broker_each(pytester: pytest.Pytester) -> None:
    done = run(
        pytester,
        """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_alone(kbroker, worker_id, number):
    assert kbroker.topics() == []
    topic = kbroker.create_topic("same-name")
    produce(kbroker, topic, number)
    assert len(kbroker.records(topic)) == number
""",
        "-n2",
    )
    done.assert_outcomes(passed=4)


def test_plain_asyncio_anyio_and_trio_tests_share_a_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        BASICS
        + """
import asyncio
import pytest
import trio

seen = set()

def note(kbroker):
    seen.add(kbroker.bootstrap_servers)
    return kbroker.topic()

def test_plain(kbroker):
    note(kbroker)

@pytest.mark.asyncio
async def test_asyncio(kbroker):
    topic = await asyncio.to_thread(note, kbroker)
    await asyncio.to_thread(produce, kbroker, topic, 2)
    assert len(await asyncio.to_thread(kbroker.records, topic)) == 2

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_anyio(kbroker, anyio_backend):
    assert kbroker.records(note(kbroker)) == []

@pytest.mark.trio
async def test_trio(kbroker):
    topic = await trio.to_thread.run_sync(note, kbroker)
    await trio.to_thread.run_sync(produce, kbroker, topic, 2)

def test_one_broker():
    assert len(seen) == 1
"""
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=6)
