"""A node as a process: start, stop, kill, and starts that must fail with a clear message."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kbroker.client.blocking import Connection
from kbroker.node import NodeFailed
from kbroker.testing.disk import Fault
from kbroker.testing.memory_node import memory_broker
from tests.broker_process import BrokerProcess, connect, serve_and_fail
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, batches, build_batch


def create(client: Connection, name: str, *, partitions: int = 1) -> CreateTopicsResponse:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    return client.ask(CreateTopicsRequest(topics=[topic]), version=5)


def produce(client: Connection, topic: str, value: bytes) -> int:
    batch = build_batch([Record(0, 1_000, None, value)])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
    answer = client.ask(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=data), version=7)
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code == 0
    return partition.base_offset


def consume(client: Connection, topic: str) -> list[bytes | None]:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=topic, partitions=[partition])])
    answer = client.ask(request, version=11).responses[0].partitions[0]
    assert answer.error_code == 0
    assert isinstance(answer.records, memoryview)
    return [record.value for batch in batches(answer.records) for record in batch.records()]


def leader_epoch(client: Connection, topic: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return client.ask(request, version=9).topics[0].partitions[0].leader_epoch


def test_it_listens_at_its_address_and_stops_within_five_seconds(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        create(client, "t")
        assert produce(client, "t", b"one") == 0
        code, seconds = broker.stop()
    assert code == 0
    assert seconds < 5
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_parked_fetch_does_not_delay_the_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        create(client, "t")
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="t", partitions=[partition])]
        client.send(FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics), version=11)
        code, seconds = broker.stop()
    assert code == 0
    assert seconds < 5


def test_records_and_topics_survive_a_clean_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            create(client, "t")
            produce(client, "t", b"one")
            epoch = leader_epoch(client, "t")
        broker.stop()
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        assert consume(client, "t") == [b"one"]
        assert produce(client, "t", b"two") == 1
        assert leader_epoch(client, "t") > epoch


def test_d1_records_survive_kill_9(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        create(client, "t")
        for number in range(50):
            produce(client, "t", b"%d" % number)
        assert broker.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        assert consume(client, "t") == [b"%d" % number for number in range(50)]
        assert produce(client, "t", b"more") == 50


def test_d13_a_killed_recovery_is_restarted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        create(client, "t")
        for number in range(200):
            produce(client, "t", b"%d" % number)
        broker.stop(signal.SIGKILL)
    for _ in range(3):
        BrokerProcess(tmp_path / "data").__exit__()
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        assert len(consume(client, "t")) == 200


def test_d12_a_directory_in_use_is_refused_unchanged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        code, errors = serve_and_fail(tmp_path / "data")
        assert code == 1
        assert "another broker is running" in errors
        assert "Traceback" not in errors
        with broker.client() as client:
            create(client, "t")
            assert produce(client, "t", b"still here") == 0


def test_d12_a_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.stop()
    code, errors = serve_and_fail(tmp_path / "data", "--override", "node.id=7")
    assert code == 1
    assert "belongs to node 1" in errors
    assert "Traceback" not in errors


def test_logs_without_a_metadata_log_stay_unchanged(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker, broker.client() as client:
        create(client, "t")
        produce(client, "t", b"one")
        broker.stop()
    shutil.move(data / "__cluster_metadata-0", tmp_path / "kept")
    code, errors = serve_and_fail(data)
    assert code == 1
    assert f"{data}/__cluster_metadata-0 is missing" in errors
    assert "Traceback" not in errors
    shutil.move(tmp_path / "kept", data / "__cluster_metadata-0")
    with BrokerProcess(data) as broker, broker.client() as client:
        assert consume(client, "t") == [b"one"]


def test_d14_an_empty_metadata_log_refuses_the_start_in_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker, broker.client() as client:
        create(client, "t")
        produce(client, "t", b"one")
        broker.stop(signal.SIGKILL)
    shutil.copytree(data / "__cluster_metadata-0", tmp_path / "kept")
    for path in (data / "__cluster_metadata-0").iterdir():
        path.unlink()
    code, errors = serve_and_fail(data)
    assert code == 1
    assert "__cluster_metadata-0 holds no records" in errors
    assert "restore __cluster_metadata-0 from a backup" in errors
    assert "Traceback" not in errors
    shutil.rmtree(data / "__cluster_metadata-0")
    shutil.move(tmp_path / "kept", data / "__cluster_metadata-0")
    with BrokerProcess(data) as broker, broker.client() as client:
        assert consume(client, "t") == [b"one"]


@pytest.mark.parametrize("taken_address", ["first listener", "second listener", "localhost", "pages"])
@pytest.mark.parametrize("was_used", [False, True], ids=["new directory", "used directory"])
def test_a_taken_port_gives_one_line_and_changes_nothing(tmp_path: Path, taken_address: str, was_used: bool) -> None:
    data = tmp_path / "parent" / "data"
    if was_used:
        with BrokerProcess(data) as broker:
            broker.stop()
    before = everything_in(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listeners = {
            "first listener": [f"PLAINTEXT://{address}", "B://127.0.0.1:0"],
            "second listener": ["PLAINTEXT://127.0.0.1:0", f"B://{address}"],
            "localhost": [f"PLAINTEXT://localhost:{taken.getsockname()[1]}"],
            "pages": ["PLAINTEXT://127.0.0.1:0"],
        }[taken_address]
        overrides = {
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        if taken_address == "pages":
            overrides["kbroker.http.listener"] = address
        arguments = [each for key, value in overrides.items() for each in ("--override", f"{key}={value}")]
        code, errors = serve_and_fail(data, *arguments, listen=None)
    assert code == 1
    assert "cannot listen on " in errors
    assert address.rpartition(":")[2] in errors
    assert "Traceback" not in errors
    assert everything_in(tmp_path) == before


def everything_in(directory: Path) -> dict[Path, bytes | None]:
    return {path: None if path.is_dir() else path.read_bytes() for path in directory.rglob("*")}


def test_connections_are_refused_until_the_logs_are_recovered(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        create(client, "t")
        produce(client, "t", b"one")
        address = broker.host, broker.port
        broker.stop(signal.SIGKILL)
    checkpoint = tmp_path / "data" / "t-0" / "leader-epoch-checkpoint"
    checkpoint.unlink(missing_ok=True)
    os.mkfifo(checkpoint)  # recovery waits for a writer, as if the disk did not answer
    with ExitStack() as started:
        recovering = started.push(BrokerProcess(tmp_path / "data", listen=f"127.0.0.1:{address[1]}"))
        while not _holds(recovering.process.pid, "__cluster_metadata-0"):  # the address is bound before that
            assert recovering.process.poll() is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        other = started.push(BrokerProcess(tmp_path / "other", listen=f"127.0.0.1:{address[1]}"))
        assert other.process.wait(timeout=20) == 1
        assert f"127.0.0.1:{address[1]}" in other.stop_and_read_errors()


def _holds(process: int, path: str) -> bool:
    """Whether a process has a file open."""
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            if path in os.readlink(descriptor):
                return True
    return False


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("log.retention.mss=1", "log.retention.ms"),
        ("num.partitions=many", "num.partitions"),
        ("num.partitions=0", "num.partitions"),
        ("advertised.listeners=nonsense", "nonsense"),
    ],
)
def test_a_bad_setting_is_named_and_creates_nothing(tmp_path: Path, override: str, said: str) -> None:
    code, errors = serve_and_fail(tmp_path / "data", "--override", override)
    assert code == 1
    assert said in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "data").exists()


def test_a_settings_file_in_kafkas_format_is_read(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# as Kafka's\nnum.partitions = 3\nlog.retention.hours: 1\n")
    with BrokerProcess(tmp_path / "data", "--config", str(file)) as broker, broker.client() as client:
        request = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[], configs=[])
        answer = client.ask(CreateTopicsRequest(topics=[request]), version=5)
        assert answer.topics[0].num_partitions == 3


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """The first signal cannot finish while the process is stopped; both are then delivered together."""
    with BrokerProcess(tmp_path / "data") as broker:
        broker.process.send_signal(signal.SIGSTOP)
        broker.process.send_signal(signal.SIGTERM)
        broker.process.send_signal(signal.SIGINT)
        broker.process.send_signal(signal.SIGCONT)
        code = broker.process.wait(timeout=10)
    assert code in (130, 143)


def advertised(client: Connection) -> list[tuple[str, int]]:
    brokers = client.ask(MetadataRequest(topics=[]), version=9).brokers
    return [(broker.host, broker.port) for broker in brokers]


def test_localhost_is_served_by_both_of_its_addresses(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", listen="localhost:0") as broker:
        for host in ("127.0.0.1", "::1"):
            with connect(host, broker.port) as client:
                assert advertised(client) == [("localhost", broker.port)]


def test_a_wildcard_listener_is_advertised_as_localhost_with_a_warning(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", listen="0.0.0.0:0") as broker:
        with connect("127.0.0.1", broker.port) as client:
            assert advertised(client) == [("localhost", broker.port)]
        assert "clients on other machines can connect" in broker.stop_and_read_errors()


def test_clients_get_the_advertised_address(tmp_path: Path) -> None:
    reported = "advertised.listeners=PLAINTEXT://broker.example:1234"
    with BrokerProcess(tmp_path / "data", "--override", reported) as broker, broker.client() as client:
        assert advertised(client) == [("broker.example", 1234)]


def test_logs_are_json_lines_when_asked(tmp_path: Path) -> None:
    import json

    with BrokerProcess(tmp_path / "data", "--log-format", "json") as broker:
        broker.stop()
        errors = broker.stop_and_read_errors()
    assert [json.loads(line)["event"] for line in errors.splitlines()][-1] == "stopped"


def test_a_signal_ends_a_start_that_hangs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.mkfifo(data / "meta.properties")  # opening it blocks until there is a writer, as if the disk did not answer
    starting = BrokerProcess(data)
    try:
        while not _handles(starting.process.pid, signal.SIGTERM):
            assert starting.process.poll() is None
        code, seconds = starting.stop()
        assert code == 128 + signal.SIGTERM
        assert seconds < 5
    finally:
        starting.stop_and_read_errors()


def _handles(process: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (number - 1) & 1)


def test_an_impossible_data_directory_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    code, errors = serve_and_fail(tmp_path / "file" / "below" / "data")
    assert code == 1
    assert f"cannot use {tmp_path / 'file' / 'below' / 'data'}" in errors
    assert "Traceback" not in errors


async def test_d8_a_directory_that_fails_during_the_start_ends_it(autojump_clock: MockClock) -> None:
    del autojump_clock
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        await client.ask(CreateTopicsRequest(topics=[topic]), version=5)
        batch = build_batch([Record(0, 1_000, None, b"one")])
        data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
        await client.ask(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=data), version=7)
    disk = broker.disk.crash()
    disk.inject(Fault(error=errno.EIO, name="read", path="*/t-0/*.log"))
    with trio.fail_after(60), pytest.RaisesGroup(NodeFailed, flatten_subgroups=True):
        async with memory_broker(disk):
            await trio.sleep_forever()
