"""Record the requests of stock clients to Apache Kafka and its responses: `python -m compat.clients.capture`.

The pairs of frames go to tests/wire/fixtures/captured/, one file per client: the smallest request of each API and
version, with its response if that is small too. Neither `wire` nor this package has made these bytes.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from compat.brokers import free_port
from compat.clients import aio, confluent, kafka_python
from compat.clients.samples import Client, samples
from compat.frame_proxy import Frame, FrameProxy
from compat.kafka import KafkaNode, run_tool
from compat.oracle.conftest import await_leaders

TARGET = Path(__file__).parents[2] / "tests" / "wire" / "fixtures" / "captured"
LARGEST_REQUEST, LARGEST_RESPONSE = 2_000, 3_000


class Recorder(FrameProxy):
    """Records requests and responses under the current label."""

    def __init__(self, port: int, upstream: tuple[str, int]) -> None:
        self.label = ""
        self.found: dict[tuple[str, int, int], tuple[Frame, Frame | None]] = {}
        super().__init__(port, upstream)

    def on_request(self, frame: Frame) -> tuple[str, Frame]:
        return self.label, frame

    def on_response(self, remembered: tuple[str, Frame], frame: Frame) -> bool:
        label, request = remembered
        api_key, version = struct.unpack_from(">hh", request)
        key = label, api_key, version
        known = self.found.get(key)
        if len(request) <= LARGEST_REQUEST and (known is None or len(request) < len(known[0])):
            self.found[key] = request, frame if len(frame) <= LARGEST_RESPONSE else None
        return True


def python_clients(servers: str, recorder: Recorder) -> None:
    """Write with every codec and read, by assignment and in a group."""
    from kafka import KafkaConsumer  # noqa: PLC0415

    modules: list[Any] = [kafka_python, confluent, aio]
    for client in modules:
        module: Client = client
        recorder.label = module.name
        records = samples(11, seed=1, null_headers=module.null_headers)[:7]
        for idempotent, codec in ((True, "gzip"), (False, "zstd")):
            topic = f"captured-{module.name}-{codec}"
            module.produce(servers, topic, 0, records, codec, idempotent=idempotent)
            module.consume(servers, topic, {0: len(records)})
    recorder.label = kafka_python.name
    with closing(
        KafkaConsumer(
            "captured-kafka-python-zstd", bootstrap_servers=servers, group_id="python", auto_offset_reset="earliest"
        )
    ) as consumer:
        assert consumer.poll(timeout_ms=20_000)
        consumer.commit()
    recorder.label = confluent.name
    member = confluent.consumer(servers, **{"auto.offset.reset": "earliest"})
    member.subscribe(["captured-confluent-kafka-zstd"])
    message = member.poll(20)
    assert message is not None
    member.commit(message=message, asynchronous=False)
    member.close()


def admin_clients(servers: str, recorder: Recorder) -> None:
    """The admin calls of each client."""
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # noqa: PLC0415
    from kafka import KafkaAdminClient  # noqa: PLC0415
    from kafka.admin import ConfigResource as PythonConfigResource  # noqa: PLC0415

    recorder.label = kafka_python.name
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics({"captured-admin": {"num_partitions": 1}}, wait_for_metadata=True)
        admin.create_partitions({"captured-admin": 2})
        admin.alter_configs([PythonConfigResource("TOPIC", "captured-admin", {"retention.ms": "5000"})])
        admin.describe_configs([PythonConfigResource("TOPIC", "captured-admin", {"retention.ms": None})])
        admin.describe_cluster()
        admin.delete_topics(["captured-admin"])
    recorder.label = confluent.name
    other = AdminClient({"bootstrap.servers": servers})
    other.create_topics([NewTopic("captured-other", 1, 1)], operation_timeout=10)["captured-other"].result(10)
    resource = ConfigResource(ResourceType.TOPIC, "captured-other")
    other.describe_configs([resource])[resource].result(10)
    other.describe_cluster().result(10)
    other.delete_topics(["captured-other"], operation_timeout=10)["captured-other"].result(10)


def kcat(servers: str, recorder: Recorder) -> None:
    """kcat's modes."""
    recorder.label = "kcat"
    for arguments, text in (
        (
            ["-P", "-t", "captured-kcat", "-z", "lz4", "-K", ":", "-H", "a=b", "-X", "enable.idempotence=true"],
            b"key:value\n",
        ),
        (["-P", "-t", "captured-kcat", "-X", "acks=1"], b"value\n"),
        (["-L"], None),
        (["-C", "-t", "captured-kcat", "-e", "-o", "beginning"], None),
        (["-Q", "-t", "captured-kcat:0:0"], None),
        (["-G", "kcat", "-e", "-X", "auto.offset.reset=earliest", "captured-kcat"], None),
    ):
        subprocess.run(["kcat", "-b", servers, *arguments], input=text, capture_output=True, timeout=30, check=True)


def java(servers: str, recorder: Recorder) -> None:
    """Kafka's own clients, through its tools."""
    recorder.label = "java"
    at = ("--bootstrap-server", servers)
    tools = "org.apache.kafka.tools."
    await_leaders(servers, "captured-kcat", 1)
    for main_class, arguments, text in (
        (f"{tools}TopicCommand", ["--create", "--topic", "captured-java", "--partitions", "2"], None),
        (f"{tools}TopicCommand", ["--describe", "--topic", "captured-java"], None),
        (f"{tools}TopicCommand", ["--alter", "--topic", "captured-java", "--partitions", "3"], None),
        (
            "kafka.admin.ConfigCommand",
            ["--alter", "--topic", "captured-java", "--add-config", "retention.ms=700000"],
            None,
        ),
        (f"{tools}ConsoleProducer", ["--topic", "captured-java", "--compression-codec", "snappy"], "one\ntwo\n"),
        (
            f"{tools}consumer.ConsoleConsumer",
            ["--topic", "captured-kcat", "--from-beginning", "--max-messages", "1"],
            None,
        ),
        (f"{tools}GetOffsetShell", ["--topic", "captured-java", "--time", "-6"], None),
        (f"{tools}BrokerApiVersionsCommand", [], None),
        (f"{tools}TopicCommand", ["--delete", "--topic", "captured-java"], None),
    ):
        done = run_tool(main_class, *at, *arguments, input=text)
        assert done.returncode == 0, f"{main_class}: {done.stdout}{done.stderr}"


def main() -> int:
    """Start a node with the recorder in front of it, run the clients, write the files."""
    directory = Path(tempfile.mkdtemp(prefix="kbroker-capture-"))
    port = free_port()
    node = KafkaNode(directory, overrides={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    recorder = Recorder(port, ("127.0.0.1", node.port))
    try:
        node.start()
        servers = f"127.0.0.1:{port}"
        for scenario in (python_clients, admin_clients, kcat, java):
            scenario(servers, recorder)
    finally:
        recorder.close()
        node.discard()
        shutil.rmtree(directory, ignore_errors=True)
    TARGET.mkdir(parents=True, exist_ok=True)
    for label in sorted({label for label, _, _ in recorder.found if label}):
        pairs = [
            {
                "api_key": api_key,
                "version": version,
                "request": request.hex(),
                "response": None if response is None else response.hex(),
            }
            for (client, api_key, version), (request, response) in sorted(recorder.found.items())
            if client == label
        ]
        (TARGET / f"{label}.json").write_text(json.dumps(pairs, indent=1) + "\n")
        print(f"{label}: {len(pairs)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
