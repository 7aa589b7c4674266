"""Shared by the clients of the benchmarks: pre-encoded requests, and replies as bytes."""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from compat.oracle.batches import Batch, Item
from compat.oracle.schema import decode_response, encode_request

# The version of each request is one that every broker serves and most clients send.
PRODUCE_VERSION, FETCH_VERSION = 7, 11
RECORD_BYTES = 1000
RETRIABLE = (3, 5, 6, 75, 78)
_FORK: Final = multiprocessing.get_context("fork")
"""A forked client can repeat any action, also one that cannot be pickled."""


def produce_frame(topic: str, batch: bytes, partition: int = 0) -> bytes:
    """A Produce of one batch with acks=all."""
    data = {"Index": partition, "Records": batch}
    message = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{"Name": topic, "PartitionData": [data]}]}
    return encode_request("Produce", PRODUCE_VERSION, message)


def batch_of_now(items: list[Item]) -> bytes:
    """A batch with the current time, so that retention keeps it."""
    return Batch(items, base_timestamp=int(time.time() * 1000)).encode()


def batch_of_size(size: int, record_bytes: int = RECORD_BYTES) -> bytes:
    """A batch of about `size` bytes of records of `record_bytes`; if only one fits, one record that fills the batch."""
    count = max(size // (record_bytes + 16), 1)
    value = bytes(range(256)) * 4
    return batch_of_now([Item(value[: min(record_bytes, size - 100)]) for _ in range(count)])


def fetch_frame(topic: str, partition: int, offset: int, limit: int, *, isolation: int = 0) -> bytes:
    """A Fetch of one partition without a session; isolation 1 is read_committed."""
    wanted = {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": limit}
    topics = [{"Topic": topic, "Partitions": [wanted]}]
    message = {
        "ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "IsolationLevel": isolation, "SessionEpoch": -1,
        "Topics": topics,
    }  # fmt: skip
    return encode_request("Fetch", FETCH_VERSION, message)


def receive(connection: socket.socket) -> bytes:
    """One small reply."""
    data = connection.recv(65536)
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        more = connection.recv(65536)
        assert more, "the broker has closed the connection"
        data += more
    return data


def check_produced(reply: bytes) -> None:
    """Assert that the error code of the only partition is 0."""
    answer = decode_response("Produce", PRODUCE_VERSION, reply[4:])
    assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, answer


def percentiles(times_ns: Sequence[int]) -> dict[str, float]:
    """p50, p99 and the mean, in microseconds."""
    ordered = sorted(times_ns)
    return {
        "p50_us": statistics.median(ordered) / 1000,
        "p99_us": ordered[int(len(ordered) * 0.99)] / 1000,
        "mean_us": statistics.fmean(ordered) / 1000,
    }


def batch_starts(records: bytes) -> list[int]:
    """The start of each batch, including an incomplete last one."""
    starts, position = [], 0
    while position + 61 <= len(records):
        starts.append(position)
        position += 12 + struct.unpack_from(">i", records, position + 8)[0]
    return starts


def rate(act: Callable[[], object], seconds: float, *, clients: int) -> float:
    """How often a second `clients` processes together repeat an action.

    Threads of one process would wait for its lock, and measure the client. Errors: AssertionError if a client fails.
    """
    counts = _FORK.SimpleQueue()
    began = time.perf_counter()
    end = began + seconds

    def repeat() -> None:
        count = 0
        while time.perf_counter() < end:
            act()
            count += 1
        counts.put(count)

    processes = [_FORK.Process(target=repeat) for _ in range(clients)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    took = time.perf_counter() - began
    assert all(one.exitcode == 0 for one in processes), "a client has failed"
    return sum(int(counts.get()) for _ in processes) / took
