"""The cost of the server itself: `python -m tests.bench.bench_server [SCENARIO ...]`.

The server runs in its own process with handlers that do nothing; the client is a blocking socket, so that the figures
measure the server. `bare` is the floor: the same bytes through two blocking sockets. Client and server are each pinned
to a CPU. Otherwise the scheduler sometimes puts both on one, which halves every latency and makes runs incomparable.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from kbroker.config import Settings
from kbroker.handlers import Context, handles
from kbroker.handlers.api_versions import api_versions
from kbroker.runtime.env import RealEnv
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import SocketOptions
from kbroker.runtime.ports import File
from kbroker.runtime.purgatory import Purgatory
from kbroker.runtime.turns import Turns
from kbroker.server.dispatch import Dispatcher
from kbroker.server.tcp import Server
from wire.framing import encode_request_frame
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

MIB = 1024 * 1024
AVAILABLE_CPUS = os.sched_getaffinity(0)


class FileRange:
    """The answer to a Fetch, here always the same range."""

    def __init__(self, file: File, size: int) -> None:
        self.file = file
        self.position = 0
        self.size = size


class Bell:
    """Blocks a request until another one rings."""

    def __init__(self) -> None:
        self.purgatory = Purgatory()
        self.rung = 0

    def ring(self) -> None:
        self.rung += 1
        self.purgatory.wake("bell")


class Broker:
    """The minimal broker for the handlers here."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.bell = Bell()


@handles(HeartbeatRequest, versions="0-4")
async def heartbeat(request: HeartbeatRequest, broker: Broker, context: Context) -> HeartbeatResponse:
    """Return at once; for the group "wait", when a heartbeat of the group "ring" arrives."""
    bell = broker.bell
    if request.group_id == "wait":
        before = bell.rung
        await context.wait(bell.purgatory, "bell", until=lambda: bell.rung > before, max_wait_ms=1000)
    elif request.group_id == "ring":
        bell.ring()
    return HeartbeatResponse(error_code=0)


@handles(ProduceRequest, versions="3-11", on_error=lambda request, code: None)
async def produce(request: ProduceRequest, broker: object, context: Context) -> ProduceResponse:
    """Acknowledge everything without appending."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=p.index, base_offset=0) for p in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


@handles(FetchRequest, versions="4-17", on_error=lambda request, code: None)
async def fetch(request: FetchRequest, broker: Broker, context: Context) -> FetchResponse:
    """Send the first bytes of the file, up to the partition's limit."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=p.partition,
                        high_watermark=1,
                        aborted_transactions=None,
                        records=FileRange(broker.file, p.partition_max_bytes),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _serve() -> None:
    env = RealEnv()
    with tempfile.TemporaryDirectory() as directory:
        file = env.disk.open(f"{directory}/data", create=True)
        file.pwrite(bytes(64 * MIB), 0)
        metrics = Metrics()
        handlers = {handler.api_key: handler for handler in (api_versions, heartbeat, produce, fetch)}
        turns, settings = Turns(env.now_ns), Settings.load()
        dispatcher = Dispatcher(handlers, Broker(file), metrics=metrics, env=env, turns=turns, limits=settings.limits)
        server = Server(env, dispatcher, metrics=metrics, settings=settings)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            listener = await env.listen("127.0.0.1", 0, SocketOptions(backlog=1024))
            server.add(listener, name="PLAINTEXT")
            gc.freeze()
            print(listener.port, flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            await server.stop(grace_ms=1000)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{usage.ru_utime + usage.ru_stime:.3f} {usage.ru_maxrss / 1024:.1f}", flush=True)


class ServerProcess:
    """The server, its CPU time and its memory."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bench_server", "--serve", str(max(AVAILABLE_CPUS))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def connect(self) -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", self.port))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def cpu_s(self) -> float:
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        out, _ = self.process.communicate("\n")
        cpu, memory = out.split()
        print(f"  the server used {cpu} CPU s, {memory} MiB at most")


@contextmanager
def serving() -> Iterator[ServerProcess]:
    server = ServerProcess()
    try:
        yield server
    finally:
        server.stop()


def frame(message: object, version: int) -> bytes:
    return b"".join(encode_request_frame(message, version, correlation_id=1, client_id="bench"))  # type: ignore[arg-type]


SMALL = frame(HeartbeatRequest(group_id="g" * 40, generation_id=1, member_id="m" * 40), 2)


def receive_some(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size)
    if not data:
        raise SystemExit("the server closed the connection")
    return data


def receive_frame(connection: socket.socket) -> int:
    head = b""
    while len(head) < 4:
        head += receive_some(connection, 65536)
    rest = int.from_bytes(head[:4], "big") + 4 - len(head)
    size = rest + len(head)
    while rest > 0:
        rest -= len(receive_some(connection, MIB))
    return size


def round_trips(connection: socket.socket, request: bytes, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        connection.sendall(request)
        receive_some(connection, 65536)
        times.append(time.perf_counter() - begun)
    return times


def show(what: str, times: list[float]) -> None:
    times.sort()
    print(
        f"{what}: p50 {statistics.median(times) * 1e6:.1f} us, p99 {times[int(len(times) * 0.99)] * 1e6:.0f} us "
        f"({len(times)} round trips)"
    )


def bare() -> None:
    """The floor: blocking sockets on both sides."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {max(AVAILABLE_CPUS)})
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(65536):
            connection.sendall(data[:14])
        os._exit(0)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        round_trips(connection, SMALL, 1000)
        show("bare blocking sockets", round_trips(connection, SMALL, 10_000))
    os.waitpid(child, 0)


def echo() -> None:
    """One small request in flight."""
    with serving() as server, server.connect() as connection:
        round_trips(connection, SMALL, 2000)
        cpu = server.cpu_s()
        times = round_trips(connection, SMALL, 20_000)
        print(f"  {(server.cpu_s() - cpu) / 20_000 * 1e6:.1f} us of CPU a request")
        show("one small request in flight", times)


def idle() -> None:
    """The same, with 500 idle connections."""
    with serving() as server, server.connect() as connection:
        round_trips(connection, SMALL, 2000)
        show("without idle connections", round_trips(connection, SMALL, 10_000))
        others = [server.connect() for _ in range(500)]
        for other in others:
            round_trips(other, SMALL, 1)
        show("with 500 idle connections", round_trips(connection, SMALL, 10_000))
        for other in others:
            other.close()


def wake() -> None:
    """A request that waits until another connection's request satisfies it: the time from sending the latter to the
    reply of the first.
    """
    waiting = frame(HeartbeatRequest(group_id="wait", generation_id=1, member_id="m"), 2)
    ringing = frame(HeartbeatRequest(group_id="ring", generation_id=1, member_id="m"), 2)
    with serving() as server, server.connect() as waiter, server.connect() as ringer:
        times = []
        for _ in range(3000):
            waiter.sendall(waiting)
            round_trips(ringer, SMALL, 3)  # by then the other one waits
            begun = time.perf_counter()
            ringer.sendall(ringing)
            receive_some(waiter, 65536)
            times.append(time.perf_counter() - begun)
            receive_some(ringer, 65536)
        show("woken by another connection's request", times)


def pipelined() -> None:
    """Small requests, 100 in flight."""
    with serving() as server, server.connect() as connection:
        batch, count = SMALL * 50, 400
        size = len(SMALL) and receive_size(connection)
        begun = time.perf_counter()
        connection.sendall(batch)
        for _ in range(count):
            connection.sendall(batch)
            receive_exactly(connection, 50 * size)
        receive_exactly(connection, 50 * size)
        took = time.perf_counter() - begun
        print(f"small requests, 100 in flight: {50 * (count + 1) / took:,.0f} a second")


def receive_size(connection: socket.socket) -> int:
    connection.sendall(SMALL)
    return receive_frame(connection)


def receive_exactly(connection: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(receive_some(connection, min(size, MIB)))


def large() -> None:
    """Produce requests of 900 KiB, 5 in flight."""
    records = bytes(900 * 1024)
    request = frame(
        ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])],
        ),
        7,
    )
    count = 1000
    with serving() as server, server.connect() as connection:
        window = threading.Semaphore(5)

        def send() -> None:
            for _ in range(count):
                window.acquire()
                connection.sendall(request)

        cpu = server.cpu_s()
        begun = time.perf_counter()
        sender = threading.Thread(target=send)
        sender.start()
        received = 0
        one = 0
        while received < count:
            one += len(receive_some(connection, 65536))
            while one >= REPLY_SIZE:
                one -= REPLY_SIZE
                received += 1
                window.release()
        took = time.perf_counter() - begun
        sender.join()
        rate = count * len(request) / took / 1e6
        cpu_per_gigabyte = (server.cpu_s() - cpu) / (count * len(request) / 1e9)
        print(f"900 KiB requests, 5 in flight: {rate:,.0f} MB/s, {cpu_per_gigabyte:.2f} CPU s/GB")


REPLY_SIZE = 4 + 4 + 4 + 2 + 1 + 4 + 4 + 2 + 8 + 8 + 8 + 4


def sendfile() -> None:
    """Fetch of 1 MiB from the page cache."""
    for size in (16 * 1024, MIB, 8 * MIB):
        request = frame(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                topics=[
                    FetchTopic(
                        topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size)]
                    )
                ],
            ),
            11,
        )
        count = min(20_000, 4096 * MIB // size)
        with serving() as server, server.connect() as connection:
            connection.sendall(request)
            whole = receive_frame(connection)
            buffer = bytearray(4 * MIB)
            cpu = server.cpu_s()
            begun = time.perf_counter()
            for _ in range(count):
                connection.sendall(request)
                rest = whole
                while rest:
                    received = connection.recv_into(buffer, min(rest, len(buffer)), socket.MSG_WAITALL)
                    assert received, "the server closed the connection"
                    rest -= received
            took = time.perf_counter() - begun
            gigabytes = count * whole / 1e9
            print(
                f"fetch of {size // 1024} KiB: {gigabytes / took * 1000:,.0f} MB/s, "
                f"{(server.cpu_s() - cpu) / gigabytes:.2f} CPU s/GB"
            )


SCENARIOS: dict[str, Callable[[], None]] = {
    scenario.__name__: scenario for scenario in (bare, echo, idle, wake, pipelined, large, sendfile)
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        os.sched_setaffinity(0, {int(sys.argv[2])})
        trio.run(_serve)
    else:
        os.sched_setaffinity(0, {min(AVAILABLE_CPUS)})
        for name in sys.argv[1:] or SCENARIOS:
            SCENARIOS[name]()
