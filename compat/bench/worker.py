"""The clients of the benchmarks, each in its own process: `python -m compat.bench.worker '{"measure": ...}'`.

They are as light as possible: frames are encoded once, before the clock starts, and of a reply only the error code is
checked. Their remaining cost is the same for both brokers.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from compat.bench.bare_sender import FRAME_BYTES, bare_sender
from compat.bench.frames import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RECORD_BYTES,
    RETRIABLE,
    batch_of_now,
    batch_of_size,
    batch_starts,
    check_produced,
    fetch_frame,
    percentiles,
    produce_frame,
    receive,
)
from compat.bench.group_worker import commits, fill_groups, rebalance
from compat.bench.minio_worker import put_files, read_objects, read_partitions
from compat.bench.spark_filling import fill_day
from compat.bench.tier_worker import cold_read, first_bytes, latency_while_copied
from compat.bench.transaction_worker import (
    fill_producers,
    fill_transactions,
    idempotent,
    join_consumers,
    transactions,
)
from compat.oracle.batches import Item
from compat.oracle.raw import RawConnection
from compat.oracle.schema import decode_response, encode_request

IN_FLIGHT = 5


def latency(servers: str, topic: str, *, count: int, idle_connections: int = 0) -> dict[str, float]:
    """Produce one record of 100 bytes, one in flight, `count` times, with this many idle connections open."""
    idle = [RawConnection(servers, timeout_s=30) for _ in range(idle_connections)]
    for each in idle:
        each.call("ApiVersions", 0, {})
    connection = RawConnection(servers, timeout_s=30).socket
    frame = produce_frame(topic, batch_of_now([Item(b"x" * 100)]))
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        connection.sendall(frame)
        reply = receive(connection)
        times.append(time.perf_counter_ns() - began)
    check_produced(reply)
    for each in idle:
        each.close()
    return percentiles(times)


def throughput(
    servers: str, topic: str, *, batch_bytes: int, count: int, record_bytes: int = RECORD_BYTES
) -> dict[str, float]:
    """Produce `count` batches with five in flight on one connection."""
    connection = RawConnection(servers, timeout_s=60).socket
    batch = batch_of_size(batch_bytes, record_bytes)
    frame = produce_frame(topic, batch)
    pending = b""
    sent = received = 0
    began = time.perf_counter()
    while received < count:
        while sent < count and sent - received < IN_FLIGHT:
            connection.sendall(frame)
            sent += 1
        pending += connection.recv(65536)
        while len(pending) >= 4 and len(pending) >= 4 + struct.unpack_from(">i", pending)[0]:
            size = 4 + struct.unpack_from(">i", pending)[0]
            reply, pending = pending[:size], pending[size:]
            received += 1
    took = time.perf_counter() - began
    check_produced(reply)
    return {"mb_s": count * len(batch) / took / 1e6}


def bursts(servers: str, topic: str, *, batch_bytes: int, count: int, connections: int = 1) -> dict[str, float]:
    """Produce `count` batches over several connections, each of which sends five in one call and waits for the replies.

    Connection N writes to partition N. All replies have one size, so the client counts bytes and parses nothing: with
    two calls for five requests it is not the bottleneck.
    """
    batch = batch_of_size(batch_bytes)
    frames = [produce_frame(topic, batch, partition) for partition in range(connections)]
    sockets = [RawConnection(servers, timeout_s=60).socket for _ in range(connections)]
    for connection, frame in zip(sockets, frames, strict=True):
        connection.sendall(frame)
        reply = receive(connection)
        check_produced(reply)
    expected = IN_FLIGHT * len(reply)
    buffer = bytearray(expected)
    left = count // IN_FLIGHT
    waiting = dict.fromkeys(range(connections), 0)
    poll = select.epoll()
    for connection in sockets:
        connection.setblocking(connections == 1)
        poll.register(connection.fileno(), select.EPOLLIN)
    numbers = {connection.fileno(): index for index, connection in enumerate(sockets)}
    bursts_of = [frame * IN_FLIGHT for frame in frames]
    began = time.perf_counter()
    for index, connection in enumerate(sockets):
        connection.sendall(bursts_of[index])
        left -= 1
    while waiting:
        ready = [0] if connections == 1 else [numbers[descriptor] for descriptor, _ in poll.poll(30)]
        assert ready, "no reply within 30 s"
        for index in ready:
            received = sockets[index].recv_into(buffer)
            assert received, "the broker has closed the connection"
            waiting[index] += received
            if waiting[index] < expected:
                continue
            if left > 0:
                waiting[index] = 0
                sockets[index].sendall(bursts_of[index])
                left -= 1
            else:
                del waiting[index]
    took = time.perf_counter() - began
    sockets[0].setblocking(True)
    sockets[0].sendall(frames[0])
    check_produced(receive(sockets[0]))
    sent = count // IN_FLIGHT * IN_FLIGHT
    return {"requests_s": sent / took, "mb_s": sent * len(batch) / took / 1e6, "requests": sent}


def fill(servers: str, topic: str, *, partitions: int, megabytes: int) -> dict[str, float]:
    """Fill each partition with batches of 16 KiB."""
    connection = RawConnection(servers, timeout_s=60)
    batch = batch_of_size(16 << 10)
    for partition in range(partitions):
        part = {"Index": partition, "Records": batch}
        message = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{"Name": topic, "PartitionData": [part]}]}
        frame = encode_request("Produce", PRODUCE_VERSION, message)
        for _ in range(megabytes * 1_000_000 // len(batch)):
            connection.socket.sendall(frame)
            reply = receive(connection.socket)
        check_produced(reply)
    return {}


def fetch(
    servers: str, topic: str, *, partitions: int, gigabytes: float, connections: int = 1, isolation: int = 0
) -> dict[str, float]:
    """Fetch 1 MiB of a partition at a time, all partitions from beginning to end, repeatedly; each connection has a
    thread, and one request in flight.

    `bytes` counts the first pass too, which finds the offsets.
    """
    connection = RawConnection(servers, timeout_s=60).socket
    frames, found = [], 0
    for partition in range(partitions):
        offset = 0
        while True:
            frame = fetch_frame(topic, partition, offset, 1 << 20, isolation=isolation)
            connection.sendall(frame)
            reply = receive(connection)
            part = decode_response("Fetch", FETCH_VERSION, reply[4:])["Responses"][0]["Partitions"][0]
            records = part["Records"]
            found += len(reply)
            if part["ErrorCode"]:
                # A broker may need a moment until it leads what was just filled.
                assert part["ErrorCode"] in RETRIABLE, f"fetch of partition {partition} answered {part['ErrorCode']}"
                continue
            if len(records) < 900_000:
                break
            frames.append(frame)
            offset += sum(struct.unpack_from(">i", records, at + 23)[0] + 1 for at in batch_starts(records))
    assert frames, f"{found} bytes were found in {partitions} partitions, too few for one complete fetch"
    sockets = [connection, *(RawConnection(servers, timeout_s=60).socket for _ in range(connections - 1))]
    got, took = _fetch_on(sockets, frames, gigabytes)
    return {"mb_s": got / took / 1e6, "bytes": found + got}


def bare_fetch(
    servers: str, topic: str, *, segments: list[str], gigabytes: float, connections: int
) -> dict[str, float]:
    """The same from `bare_sender` instead of a broker, which sends the same segments."""
    del servers, topic
    with bare_sender(segments, connections) as sockets:
        got, took = _fetch_on(sockets, [bytes(FRAME_BYTES)], gigabytes)
    return {"mb_s": got / took / 1e6}


def _fetch_on(sockets: Sequence[socket.socket], frames: list[bytes], gigabytes: float) -> tuple[int, float]:
    """Fetch this much over all connections. Returns the bytes, and the seconds that it took."""
    wanted = gigabytes * 1e9 / len(sockets)
    began = time.perf_counter()
    with ThreadPoolExecutor(len(sockets)) as threads:
        got = sum(threads.map(lambda number: _fetch_all(sockets[number], frames, number, wanted), range(len(sockets))))
    return got, time.perf_counter() - began


def _fetch_all(connection: socket.socket, frames: list[bytes], place: int, wanted: float) -> int:
    """Fetch with one frame after the other until there are `wanted` bytes; returns their number."""
    buffer = memoryview(bytearray(4 << 20))
    got = 0
    while got < wanted:
        connection.sendall(frames[place % len(frames)])
        place += 1
        size = connection.recv_into(buffer)
        end = 4 + struct.unpack_from(">i", buffer)[0]
        while size < end:
            size += connection.recv_into(buffer[size:end])
        got += size
    return got


def end_to_end(servers: str, topic: str, *, count: int) -> dict[str, float]:
    """The time of one record from librdkafka's producer to its consumer."""
    from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: PLC0415

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": "all"})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    producer.produce(topic, b"first")
    assert producer.flush(30) == 0
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(30) is not None
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        producer.produce(topic, b"x" * 100)
        message = consumer.poll(10)
        times.append(time.perf_counter_ns() - began)
        assert message is not None
        assert message.error() is None, message.error()
        producer.poll(0)
    producer.flush(10)
    consumer.close()
    return percentiles(times)


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    each.__name__: each
    for each in (
        *(latency, throughput, bursts, fill, fetch, bare_fetch, end_to_end, rebalance, commits, fill_groups),
        *(cold_read, first_bytes, latency_while_copied),
        *(idempotent, transactions, fill_transactions, fill_producers, join_consumers),
        *(put_files, read_objects, read_partitions, fill_day),
    )
}


def main() -> None:
    """Run one measurement and print its figures as JSON."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    gc.disable()
    print(json.dumps(MEASURES[job.pop("measure")](**job)))


if __name__ == "__main__":
    main()
