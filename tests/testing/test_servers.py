"""Real brokers for tests: `kbroker.testing.servers`, with a process or a thread for each broker."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.producing import Producer
from kbroker.testing import Server, broker, brokers, node_process
from kbroker.testing.control import last_requests
from kbroker.testing.servers import wait_until
from tests.broker_process import connect
from wire.compression import Codec
from wire.errors import ErrorCode, KafkaError
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.record_batch import Record

HOUR_S = 3_600


@pytest.fixture(scope="module", params=[False, True], ids=["process", "thread"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with broker(in_process=request.param) as running:
        yield running


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    yield server.create_topic(f"topic-{abs(hash(request.node.name))}", partitions=2)
    server.faults.clear()


def produce(server: Server, topic: str, *values: bytes) -> None:
    with Producer(server.client, topic, {}, acks=-1, codec=Codec.NONE, is_idempotent=True) as producer:
        for number, value in enumerate(values):
            producer.send(Record(timestamp=0, key=None, value=value), partition=number % 2, number=number)


def test_records_are_read_in_order_of_partitions(server: Server, topic: str) -> None:
    assert server.records(topic) == []
    produce(server, topic, b"a", b"b", b"c")
    assert [(each.partition, each.offset, each.value) for each in server.records(topic)] == [
        (0, 0, b"a"), (0, 1, b"c"), (1, 0, b"b")
    ]  # fmt: skip


def test_helpers_run_in_several_threads_at_once(server: Server, topic: str) -> None:
    produce(server, topic, b"a", b"b")

    async def look() -> None:
        for _ in range(5):
            assert len(await asyncio.to_thread(server.records, topic)) == 2
            rule = await asyncio.to_thread(server.faults.observe, "Metadata")
            await asyncio.to_thread(server.topics)
            assert await asyncio.to_thread(getattr, rule, "hits") > 0

    async def look_often() -> None:
        await asyncio.gather(*(look() for _ in range(4)))

    asyncio.run(look_often())


def test_assert_produces_sees_only_records_of_its_block(server: Server, topic: str) -> None:
    produce(server, topic, b"before")
    with server.assert_produces(topic, count=2) as found:
        produce(server, topic, b"a", b"b")
    assert [each.value for each in found] == [b"a", b"b"]
    with pytest.raises(AssertionError, match="expected 1 records"), server.assert_produces(topic, count=1):
        produce(server, topic, b"a", b"b")
    with pytest.raises(TimeoutError, match="a record in absent"), server.assert_produces("absent", timeout=0.1):
        pass


def test_the_state_and_the_log_are_those_of_the_broker(server: Server, topic: str) -> None:
    assert topic in server.state()
    server.delete_topics([topic])
    assert wait_until(lambda: topic in server.log_tail(), 60), "the deletion is a line of the log"


def test_a_rule_fails_requests_as_often_as_it_says(server: Server, topic: str) -> None:
    rule = server.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    produce(server, topic, b"a")
    rule.wait(2)
    assert rule.hits == 2
    assert len(server.records(topic)) == 1


def test_requests_that_an_older_rule_fails_are_observed(server: Server, topic: str) -> None:
    rule = server.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    seen = server.faults.observe("Produce")
    produce(server, topic, b"a")
    assert (rule.hits, seen.hits) == (1, 2)


def test_a_rule_fails_the_partitions_of_a_fetch(server: Server, topic: str) -> None:
    server.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER")
    wanted = FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[wanted])
    answer = server.client.ask(request, at_most=12)
    assert answer.error_code == ErrorCode.NONE
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert server.client.ask(request, at_most=12).responses[0].partitions[0].error_code == ErrorCode.NONE


def metadata_of(server: Server, topic: str) -> Any:
    (found,) = server.client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
    return found


def test_a_pushed_leader_is_in_the_next_metadata_of_its_partition(server: Server, topic: str) -> None:
    stale = server.faults.push_leader_response(topic, 1, leader_id=7, leader_epoch=3)
    later = server.faults.push_leader_response(topic, 1, leader_id=8, leader_epoch=4)
    server.client.ask(MetadataRequest(topics=[]))
    assert stale.hits == 0, "that response did not have the partition"
    leaders = [
        {part.partition_index: (part.leader_id, part.leader_epoch) for part in metadata_of(server, topic).partitions}
        for _ in range(3)
    ]
    assert [each[1] for each in leaders] == [(7, 3), (8, 4), leaders[2][0]]
    assert leaders[0][0] == leaders[2][0]
    assert (stale.hits, later.hits) == (1, 1)


def test_fields_of_responses_are_changed_after_the_request_is_done(server: Server, topic: str) -> None:
    code = f"responses[name={topic}].partition_responses[index=1].error_code"
    rule = server.faults.change_response("Produce", {code: "REQUEST_TIMED_OUT"})
    produce(server, topic, b"a", b"b")  # a request for each of the partitions
    produce(server, topic, b"c", b"d")
    assert rule.hits == 1
    assert [(each.partition, each.value) for each in server.records(topic)] == [
        (0, b"a"), (0, b"c"), (1, b"b"), (1, b"d")
    ]  # fmt: skip


def test_fields_of_a_response_with_records_are_changed(server: Server, topic: str) -> None:
    produce(server, topic, b"a")
    wanted = FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[wanted])
    path = f"responses[topic={topic}].partitions[partition_index=0].high_watermark"
    rule = server.faults.change_response("Fetch", {path: 7}, skip=1)
    found = [server.client.ask(request, at_most=12).responses[0].partitions[0] for _ in range(3)]
    assert [each.high_watermark for each in found] == [1, 7, 1]
    assert all(each.records for each in found)
    assert rule.hits == 1


def test_a_changed_error_code_may_be_one_that_nobody_knows(server: Server, topic: str) -> None:
    server.faults.change_response("Metadata", {"topics.error_code": 9_999})
    assert metadata_of(server, topic).error_code == 9_999


def test_a_response_of_the_test_takes_the_place_of_the_broker_s(server: Server, topic: str) -> None:
    answer = FindCoordinatorResponse(error_code=0, node_id=9, host="elsewhere", port=1)
    rule = server.faults.respond(answer, times=2)
    asked = FindCoordinatorRequest(key="billing")
    found = server.client.ask(asked, at_most=3)
    assert (found.node_id, found.host) == (9, "elsewhere")
    with pytest.raises(KafkaError, match="connection"):
        server.client.ask(FindCoordinatorRequest(coordinator_keys=["billing"]))  # version 4 has no field for it
    assert "FindCoordinatorResponse has no node_id" in server.log_tail(3)
    assert rule.hits == 2
    assert server.client.ask(asked, at_most=3).node_id != 9


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (
            "topics.partitions.leeder_id",
            1,
            "MetadataResponsePartition has no field 'leeder_id'; did you mean leader_id",
        ),
        ("topics[nam=a].error_code", 1, "has no field 'nam'; did you mean name"),
        ("topics.partitions", 1, "not a field with one value"),
        ("topics[name=a]partitions", 1, "is not a path"),
        ("topics.name.first", 1, "the type string has no field 'first'"),
        ("topics.error_code", "UNKNOWN_TOPIC", "did you mean UNKNOWN_TOPIC_ID"),
        ("topics.error_code", 40_000, "has the type int16 and cannot be 40000"),
        ("topics.partitions.leader_id", True, "cannot be True"),
        ("topics.is_internal", 1, "has the type bool and cannot be 1"),
    ],
)
def test_a_change_that_no_response_can_have_is_refused(
    server: Server, path: str, value: object, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        server.faults.change_response("Metadata", {path: value})
    with pytest.raises(ValueError, match="not a response"):
        server.faults.respond(MetadataRequest(topics=[]))


def test_a_rule_skips_the_requests_before_its_first(server: Server, topic: str) -> None:
    rule = server.faults.fail("Metadata", "INVALID_REQUEST", skip=2)
    codes = [metadata_of(server, topic).error_code for _ in range(4)]
    assert codes == [0, 0, ErrorCode.INVALID_REQUEST, 0]
    assert rule.hits == 1


def test_a_broker_that_is_down_closes_connections_and_comes_back(server: Server, topic: str) -> None:
    produce(server, topic, b"a")
    (node,) = server.nodes
    node.set_down()
    with pytest.raises(KafkaError):
        server.client.ask(MetadataRequest(topics=[]), timeout_ms=300)
    assert node.is_running
    node.set_up()
    assert len(server.records(topic)) == 1


def test_the_last_requests_have_what_became_of_them(server: Server, topic: str) -> None:
    (node,) = server.nodes
    server.contents()  # as a test begins
    produce(server, topic, b"a")
    server.faults.fail("Metadata", "INVALID_REQUEST")
    metadata_of(server, topic)
    server.faults.drop_reply("ListOffsets")
    server.records(topic)
    server.faults.change_response("FindCoordinator", {"node_id": 9})
    with pytest.raises(KafkaError, match="connection"):
        server.client.ask(FindCoordinatorRequest(coordinator_keys=["billing"]))  # version 4 has no field for it
    lines = last_requests(node).splitlines()
    found = [re.sub(r"^[\d:.]{12} (\w+) \d+ ", r"\1 ", line) for line in lines]
    assert "Produce 'kbroker-testing': ok" in found
    assert "Metadata 'kbroker-testing': INVALID_REQUEST" in found
    assert "ListOffsets 'kbroker-testing': a rule of the test: drop_reply" in found
    assert any("FindCoordinatorResponse has no node_id" in line for line in found)
    assert "CreateTopics 'kbroker-testing': ok" not in found, "that was before"


def test_records_that_cannot_be_fetched_are_a_timeout(server: Server, topic: str) -> None:
    produce(server, topic, b"a")
    server.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=None)
    with pytest.raises(TimeoutError, match=f"{topic}-0 after offset 0; it ends at 1"):
        server.records(topic, timeout=0.3)


def test_pushed_errors_are_used_one_each(server: Server, topic: str) -> None:
    seen = server.faults.observe("Produce")
    first, let_through, last = server.faults.push_request_errors(
        "Produce", "NOT_ENOUGH_REPLICAS", "NONE", "INVALID_RECORD"
    )
    produce(server, topic, b"a")
    assert (first.hits, let_through.hits, last.hits, seen.hits) == (1, 1, 0, 2)
    produce(server, topic, b"b")
    assert last.hits == 1


def test_tracked_requests_have_api_version_and_client(server: Server, topic: str) -> None:
    server.requests.start_request_tracking()
    produce(server, topic, b"a")
    found = [each for each in server.requests.received() if each.api == "Produce"]
    assert [each.client_id for each in found] == ["kbroker-testing"]
    assert found[0].version >= 3
    assert found[0].outcome == "ok"


def test_the_round_trip_time_delays_every_request(server: Server, topic: str) -> None:
    env = server.client.env
    server.faults.set_rtt(0.1)
    began_ms = env.now_ms()
    server.client.ask(MetadataRequest(topics=[]))
    server.client.ask(MetadataRequest(topics=[]))
    assert env.now_ms() - began_ms >= 200
    server.faults.clear()


def test_a_request_whose_reply_is_dropped_is_done(server: Server, topic: str) -> None:
    rule = server.faults.drop_reply("Produce")
    produce(server, topic, b"a")
    assert rule.hits == 1
    assert len(server.records(topic)) == 1, "the retry is recognized"


def test_a_closed_connection_does_nothing_else(server: Server, topic: str) -> None:
    rule = server.faults.close_connection("CreateTopics")
    with pytest.raises(KafkaError):
        server.create_topic(f"{topic}-more")
    assert rule.hits == 1
    assert f"{topic}-more" not in server.topics()


def test_a_delayed_request_is_answered_later(server: Server, topic: str) -> None:
    env = server.client.env
    server.faults.delay("Metadata", 0.3)
    began_ms = env.now_ms()
    server.client.ask(MetadataRequest(topics=[]))
    assert env.now_ms() - began_ms >= 300


def test_a_rule_can_be_for_one_client_and_can_be_removed(server: Server, topic: str) -> None:
    other = server.faults.fail("Produce", "INVALID_RECORD", client_id="another", times=None)
    removed = server.faults.fail("Produce", "INVALID_RECORD", times=None)
    removed.remove()
    produce(server, topic, b"a")
    assert other.hits == 0


@pytest.mark.parametrize(
    ("api", "error", "complaint"),
    [
        ("Fecth", "NONE", "did you mean Fetch"),
        ("Fetch", "NOT_LEADER_OR_FOLOWER", "did you mean NOT_LEADER_OR_FOLLOWER"),
    ],
)
def test_a_misspelled_name_is_refused(server: Server, api: str, error: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        server.faults.fail(api, error)


def test_an_advanced_clock_makes_retention_due(server: Server) -> None:
    topic = server.create_topic("old", partitions=2, config={"retention.ms": HOUR_S * 1000, "segment.ms": 60_000})
    produce(server, topic, b"a")
    server.clock.advance(2 * HOUR_S)
    assert wait_until(lambda: not server.records(topic), 60)


def test_an_advanced_clock_leaves_other_threads_their_connections(server: Server) -> None:
    """The broker closes idle connections; each thread notices it before it asks the next time."""
    topic = server.create_topic("kept", partitions=2, config={"retention.ms": -1})
    produce(server, topic, b"a")
    with ThreadPoolExecutor(1) as other:
        client = other.submit(lambda: server.client).result()
        other.submit(server.records, topic).result()
        server.clock.advance(HOUR_S)
        assert len(server.records(topic)) == 1
        assert len(other.submit(server.records, topic).result()) == 1
        assert other.submit(lambda: server.client).result() is client


def test_a_group_is_waited_for(server: Server) -> None:
    with pytest.raises(TimeoutError, match="it is Dead with 0 members"):
        server.wait_for_group("nobody", timeout=0.1)
    assert server.consumer_offset("nobody", "topic") is None


@pytest.mark.parametrize("library", [trio, asyncio], ids=["trio", "asyncio"])
def test_a_broker_runs_inside_async_with(library: object, tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with broker(data_dir=tmp_path) as running:
            running.create_topic("a")
            return running.topics()

    found = trio.run(main) if library is trio else asyncio.run(main())
    assert found == ["a"]
    assert (tmp_path / "data").is_dir(), "a directory that was given is kept"


def test_a_cancelled_start_under_asyncio_leaves_no_broker(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(broker(data_dir=tmp_path).__aenter__())
        while not (tmp_path / "broker-1.log").exists():  # noqa: ASYNC110  (the start has no event for it)
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with broker(data_dir=tmp_path) as again:  # refused while another broker has the directory
        assert again.topics() == []


def test_brokers_in_this_process_have_logs_of_their_own(tmp_path: Path) -> None:
    with broker(in_process=True) as first, broker(in_process=True, log_level="warning") as second:
        first.create_topic("a")
        assert "serving pages" in first.log_tail()
        assert second.log_tail() == ""
        assert second.state() != "", "pages do not depend on the log"
    with broker(in_process=True, data_dir=tmp_path / "1") as first:
        with broker(in_process=True, data_dir=tmp_path / "2") as second:
            assert str(second.nodes[0].http) in second.log_tail()
        assert str(second.nodes[0].http) not in first.log_tail()
        assert str(first.nodes[0].http) not in second.log_tail()


def test_a_late_answer_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with broker() as server:
        (node,) = server.nodes
        rule = server.faults.observe("Metadata")
        monkeypatch.setattr(node_process, "_ANSWER_S", 0.05)
        os.kill(node.pid, signal.SIGSTOP)
        with pytest.raises(RuntimeError, match="does not answer"):
            server.faults.observe("Produce")
        node.pause()
        with pytest.raises(RuntimeError, match="is paused"):
            server.faults.observe("Produce")
        node.resume()
        monkeypatch.undo()
        assert rule.hits == 0


def test_a_broker_that_cannot_start_says_why() -> None:
    with broker() as first, pytest.raises(RuntimeError, match="in use"), broker(port=first.port):
        pass
    with pytest.raises(RuntimeError, match=r"num\.partitions"), broker({"num.partitions": "few"}):
        pass


def test_a_broker_that_is_not_ours_takes_no_faults() -> None:
    with pytest.raises(RuntimeError, match="a broker that the test has started"):
        _ = Server("localhost:1").faults


@pytest.mark.long
def test_a_killed_broker_of_a_cluster_comes_back() -> None:
    with brokers(2) as cluster:
        topic = cluster.create_topic("a", partitions=2, replication_factor=2)
        produce(cluster, topic, b"a", b"b")
        first, second, _ = cluster.nodes
        leaders = [part.leader_id for part in metadata_of(cluster, topic).partitions]
        second.set_down()
        reached = Server(first.address)
        assert [part.leader_id for part in metadata_of(reached, topic).partitions] == leaders
        reached.disconnect()
        host, _, port = second.address.rpartition(":")
        with connect(host, int(port)) as connection, pytest.raises(ConnectionError):
            connection.negotiate()
        second.set_up()
        cluster.disconnect()
        second.kill()
        second.restart()
        assert len(cluster.records(topic)) == 2
        cluster.clock.advance(HOUR_S)
        cluster.create_topic("b")
        assert len(cluster.bootstrap_servers.split(",")) == 2


def test_a_cluster_that_starts_only_in_part_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third process cannot be started: the machine has no more of them, or no memory."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def third_fails(*words: Any, **named: Any) -> subprocess.Popen[bytes]:
        if len(started) == 2:
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        started.append(start(*words, **named))
        return started[-1]

    monkeypatch.setattr(node_process.subprocess, "Popen", third_fails)
    with pytest.raises(BlockingIOError), brokers(3, data_dir=tmp_path):
        pass
    assert [each.returncode for each in started] == [-signal.SIGKILL] * 2


def test_pages_are_imported_when_they_are_asked_for() -> None:
    program = (
        "from kbroker.testing import broker; import sys\n"
        "with broker(in_process=True) as b:\n"
        "    b.create_topic('a'); assert 'h11' not in sys.modules and 'prometheus_client' not in sys.modules\n"
        "    assert 'a' in b.state() and 'h11' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_broker_ends_with_the_process_of_its_test() -> None:
    program = (
        "from kbroker.testing import broker; import sys, time\n"
        "with broker() as b: print(b.nodes[0].pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as test:
        assert test.stdout is not None
        pid = int(test.stdout.readline())
        test.send_signal(signal.SIGKILL)
        test.wait(60)

        def has_ended() -> bool:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            return False

        assert wait_until(has_ended, 60)
