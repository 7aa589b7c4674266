"""`kbroker health`: which brokers are healthy, and that the check never hangs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

import kbroker.testing
from kbroker.config.client_properties import parse_server
from kbroker.config.values import ConfigError
from kbroker.testing.servers import wait_until
from tests.broker.test_tier_settings import NeverReady
from tests.cli.conftest import Run
from tests.cli.scripted import Scripted
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.messages.describe_cluster import DescribeClusterResponse
from wire.messages.describe_log_dirs import DescribeLogDirsResponse, DescribeLogDirsResult
from wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

METADATA, API_VERSIONS, LOG_DIRS, CLUSTER, OFFSETS = 3, 18, 35, 60, 2
KNOWS = ApiVersionsResponse(
    api_keys=[
        ApiVersion(api_key=key, min_version=lowest, max_version=highest)
        for key, lowest, highest in ((METADATA, 0, 9), (API_VERSIONS, 0, 3), (LOG_DIRS, 1, 4))
    ]
)
CONTROLLER_KNOWS = ApiVersionsResponse(
    api_keys=[
        ApiVersion(api_key=key, min_version=0, max_version=highest)
        for key, highest in ((API_VERSIONS, 3), (CLUSTER, 1))
    ]
)
SOUND_DIRECTORY = DescribeLogDirsResponse(results=[DescribeLogDirsResult(error_code=0, log_dir="/a", topics=[])])


def metadata(*leaders: int) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=[1], isr_nodes=[1])
        for index, leader in enumerate(leaders)
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)],
        cluster_id="c",
        topics=[MetadataResponseTopic(name="orders", partitions=partitions)],
    )


def test_a_broker_that_serves_is_healthy_in_one_line(run: Run, broker: str) -> None:
    done = run("health", "-b", broker)
    assert (done.code, done.err) == (0, "")
    assert len(done.lines) == 1
    assert done.out.startswith("healthy: cluster ")
    printed = json.loads(run("health", "--bootstrap-servers", broker, "--format", "json").out)
    assert printed["is_healthy"] is True
    assert printed["leaderless"] == printed["offline_directories"] == printed["unread_tiers"] == []


def test_the_first_reachable_broker_is_checked(run: Run, broker: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        down = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run("health", "-b", f"{down},{broker}").code == 0
        done = run("health", "-b", down)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"kbroker health: no broker answers at {down}: Connection refused\n"


def test_partitions_without_a_leader_are_named(run: Run) -> None:
    answers = {API_VERSIONS: KNOWS, METADATA: metadata(1, -1, -1, 1, -1, -1), LOG_DIRS: SOUND_DIRECTORY}
    with Scripted(answers) as peer:
        done = run("health", "-b", peer.address)
    assert (done.code, done.out) == (1, "")
    said = "4 of 6 partitions have no leader: orders-1, orders-2, orders-4, ..."
    assert done.err == f"kbroker health: {said}\n"


def test_an_offline_directory_is_named(run: Run) -> None:
    directories = [
        DescribeLogDirsResult(error_code=0, log_dir="/a", topics=[]),
        DescribeLogDirsResult(error_code=56, log_dir="/b", topics=[]),
    ]
    answers = {API_VERSIONS: KNOWS, METADATA: metadata(1), LOG_DIRS: DescribeLogDirsResponse(results=directories)}
    with Scripted(answers) as peer:
        done = run("health", "-b", peer.address, "--format", "json")
    assert done.code == 1
    assert json.loads(done.out)["offline_directories"] == ["/b"]
    assert done.err == "kbroker health: offline log directories: /b\n"


def test_a_broker_that_has_not_read_the_tiers_metadata_is_unhealthy(run: Run) -> None:
    """By the knowledge of /health, until the metadata are read."""
    tiered = {"remote.storage.enable": "true"}
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.manager.class.name": f"{NeverReady.__module__}:{NeverReady.__name__}",
        "kbroker.http.listener": "127.0.0.1:0",
    }
    with kbroker.testing.broker(settings, in_process=True) as server:
        server.create_topic("local")
        assert run("health", "-b", server.bootstrap_servers).code == 0
        server.create_topic("orders", partitions=5, config=tiered)
        # The tier begins with the first tiered topic, shortly after the topic is created.
        assert wait_until(lambda: run("health", "-b", server.bootstrap_servers).code == 1, 20)
        done = run("health", "-b", server.bootstrap_servers, "--format", "json")
        assert len(json.loads(done.out)["unread_tiers"]) == 5
        server.delete_topics(["orders"])
        assert wait_until(lambda: run("health", "-b", server.bootstrap_servers).code == 0, 20)
    said = "partitions wait until the broker has read the tier's metadata: orders-0, orders-1, orders-2, ..."
    assert done.err.endswith(f"{said}\n")


@pytest.mark.parametrize(("count", "requests"), [(1, 1), (2_000, 1), (2_001, 2)])
def test_only_unread_metadata_of_the_tier_count(run: Run, count: int, requests: int) -> None:
    """Other brokers' partitions have errors too. A request has a bounded number of partitions."""
    asked: list[ListOffsetsRequest] = []

    def offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked.append(request)
        codes = {0: ErrorCode.REQUEST_TIMED_OUT, 1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        partitions = [
            ListOffsetsPartitionResponse(
                partition_index=one.partition_index, error_code=codes.get(one.partition_index, ErrorCode.NONE)
            )
            for one in request.topics[0].partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=partitions)])

    keys = [*KNOWS.api_keys, ApiVersion(api_key=OFFSETS, min_version=1, max_version=11)]
    answers = {
        API_VERSIONS: ApiVersionsResponse(api_keys=keys),
        METADATA: metadata(*[1] * count),
        LOG_DIRS: SOUND_DIRECTORY,
        OFFSETS: offsets,
    }
    with Scripted(answers) as peer:
        done = run("health", "-b", peer.address)
    said = f"1 of {count} partitions wait until the broker has read the tier's metadata: orders-0"
    assert (done.code, done.err) == (1, f"kbroker health: {said}\n")
    assert len(asked) == requests
    assert {(one.replica_id, part.timestamp) for one in asked for part in one.topics[0].partitions} == {(-2, -5)}


def test_a_broker_without_describe_log_dirs_can_be_healthy(run: Run) -> None:
    old = ApiVersionsResponse(api_keys=[ApiVersion(api_key=METADATA, min_version=0, max_version=0)])
    with Scripted({API_VERSIONS: old, METADATA: metadata(1)}) as peer:
        assert run("health", "-b", peer.address).code == 0


@pytest.mark.parametrize(
    ("controller", "code", "text"), [(7, 0, "active controller 7"), (-1, 1, "no active controller")]
)
def test_a_controller_is_healthy_if_it_knows_an_active_one(run: Run, controller: int, code: int, text: str) -> None:
    """It does not serve Metadata."""
    answer = DescribeClusterResponse(endpoint_type=2, cluster_id="c", controller_id=controller, brokers=[])
    with Scripted({API_VERSIONS: CONTROLLER_KNOWS, CLUSTER: answer}) as node:
        done = run("health", "-b", node.address)
    assert done.code == code
    assert text in done.out + done.err


def test_a_refusal_of_a_controller_is_named(run: Run) -> None:
    answer = DescribeClusterResponse(error_code=31, endpoint_type=2, cluster_id="c", brokers=[])
    with Scripted({API_VERSIONS: CONTROLLER_KNOWS, CLUSTER: answer}) as node:
        done = run("health", "-b", node.address)
    assert done.code == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in done.err


@pytest.mark.parametrize("answers", [{}, {API_VERSIONS: KNOWS}], ids=["at all", "Metadata"])
def test_a_broker_that_does_not_answer_in_time_is_unhealthy(run: Run, answers: dict[int, object]) -> None:
    with Scripted(answers) as peer:
        done = run("health", "-b", peer.address, "--timeout", 200)
    assert done == (1, "", "kbroker health: no answer within 200 ms\n")


def test_a_server_with_another_protocol_is_an_error(run: Run) -> None:
    with Scripted({}, greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as peer:
        done = run("health", "-b", peer.address)
    assert done.code == 1
    assert "an HTTP server answers there" in done.err


def test_an_error_in_api_versions_is_reported(run: Run) -> None:
    with Scripted({API_VERSIONS: ApiVersionsResponse(error_code=35, api_keys=[])}) as peer:
        done = run("health", "-b", peer.address)
    assert (done.code, done.err) == (
        1,
        f"kbroker health: {peer.address}: the broker answers ApiVersions with UNSUPPORTED_VERSION\n",
    )


def test_a_check_imports_neither_a_client_nor_the_broker(broker: str) -> None:
    program = (
        f"import sys\nfrom kbroker.cli import main\nassert main(['health', '-b', '{broker}']) == 0\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'trio', 'kafka', 'asyncio'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("text", "found"),
    [("a:1", ("a", 1)), ("a", ("a", 9092)), ("[::1]:5", ("::1", 5)), ("[::1]", ("::1", 9092)), ("::1", ("::1", 9092))],
)
def test_a_server_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert parse_server(text) == found


@pytest.mark.parametrize("text", ["", ":1", "a:b", "a:65536", "a:-1", "a:", "[::1", "[::1:5"])
def test_an_invalid_server_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form host:port"):
        parse_server(text)


@pytest.mark.parametrize("words", [["--timeout", "0"], ["--timeout", "soon"], ["--format", "xml"], ["extra"]])
def test_wrong_usage_exits_with_2(run: Run, words: list[str]) -> None:
    assert run("health", *words).code == 2
