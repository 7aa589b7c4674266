"""The clients of the tiered storage benchmarks."""

from __future__ import annotations

import random
import socket
import statistics
import struct
import time

from compat.bench.frames import batch_of_now, check_produced, fetch_frame, percentiles, produce_frame, receive
from compat.oracle.batches import Item
from compat.oracle.raw import RawConnection

FETCH_BYTES = 1 << 20
_ANY_OFFSET = 0x0102030405060708
LATEST_TIERED, LIST_VERSION = -5, 9
CHECK_EACH_S = 0.1


class Reader:
    """Fetches one partition, and reads only the headers of some batches.

    Note  its request is pre-encoded: the first encoding takes as long as fetching many megabytes
    """

    def __init__(self, servers: str, topic: str, *, partition: int = 0, max_bytes: int = FETCH_BYTES) -> None:
        self.socket = RawConnection(servers, timeout_s=60).socket
        # With a time-out set, Python's MSG_WAITALL would not wait for all bytes.
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
        self.empty = 0
        self.first_byte_s = 0.0
        self._buffer = memoryview(bytearray(max_bytes + (3 << 20)))
        self._frame = bytearray(fetch_frame(topic, partition, _ANY_OFFSET, max_bytes))
        self._offset_at = self._frame.index(struct.pack(">q", _ANY_OFFSET))
        # Offsets in a version 11 reply with one topic and one partition: its error code, and its records.
        self._error_at = 4 + 4 + 4 + 2 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4
        self._records_at = self._error_at + 2 + 8 + 8 + 8 + 4 + 4 + 4

    def fetch(self, offset: int) -> tuple[int, int]:
        """Fetch from an offset until there is data; returns the next offset, and the size of the reply."""
        while True:
            struct.pack_into(">q", self._frame, self._offset_at, offset)
            size = self._exchange(self._frame)
            (error,) = struct.unpack_from(">h", self._buffer, self._error_at)
            assert error == 0, f"error {error} at {offset}"
            (records,) = struct.unpack_from(">i", self._buffer, self._records_at - 4)
            if records > 0:
                return self._following(self._records_at + records), size
            self.empty += 1

    def _exchange(self, frame: bytearray) -> int:
        began = time.perf_counter()
        self.socket.sendall(frame)
        got = self.socket.recv_into(self._buffer)
        self.first_byte_s = time.perf_counter() - began
        if got < 4:
            got += self._received(got, 4)
        whole = 4 + struct.unpack_from(">i", self._buffer)[0]
        return got + self._received(got, whole)

    def _received(self, begin: int, end: int) -> int:
        """The number of received bytes. One call for all of them, because the client's work takes CPU from the
        broker.
        """
        more = self.socket.recv_into(self._buffer[begin:end], 0, socket.MSG_WAITALL) if begin < end else 0
        assert more == max(0, end - begin), "the broker has closed the connection"
        return more

    def _following(self, end: int) -> int:
        """The offset after the last complete batch. Most batches have the same size, so it first looks where the last
        one would be: walking all of them costs as much as the broker needs to check them.
        """
        position, offset = self._records_at, -1
        first = self._batch(position, end)
        assert first is not None, "not even one complete batch"
        size, base, following = first
        more = (end - position) // size - 1
        alike = self._batch(position + more * size, end)
        if alike == (size, base + more * (following - base), following + more * (following - base)):
            position, offset = position + (more + 1) * size, alike[2]
        while (batch := self._batch(position, end)) is not None:
            position, offset = position + batch[0], batch[2]
        return offset

    def _batch(self, position: int, end: int) -> tuple[int, int, int] | None:
        """The size of the batch at a position, its first offset, and its next offset; None if it is incomplete."""
        if position + 61 > end:
            return None
        base, length = struct.unpack_from(">qi", self._buffer, position)
        if position + 12 + length > end:
            return None
        return 12 + length, base, base + struct.unpack_from(">i", self._buffer, position + 23)[0] + 1


def cold_read(servers: str, topic: str, *, end: int) -> dict[str, float]:
    """Read a partition from its beginning to `end`, one request in flight."""
    reader, offset, got = Reader(servers, topic), 0, 0
    began = time.perf_counter()
    while offset < end:
        offset, size = reader.fetch(offset)
        got += size
    return {"mb_s": got / (time.perf_counter() - began) / 1e6, "bytes": got, "empty": reader.empty}


def first_bytes(servers: str, topic: str, *, end: int, count: int, seed: int) -> dict[str, float]:
    """Seek to `count` offsets, each in another part of the log: the time until the first byte of the reply."""
    reader, times = Reader(servers, topic), []
    places = list(range(count))
    draws = random.Random(seed)
    draws.shuffle(places)
    for place in places:
        offset = (place * end + draws.randrange(end)) // count
        began = time.perf_counter()
        reader.fetch(offset)
        # Empty replies are part of the wait; the rest of the last reply is not.
        times.append(reader.first_byte_s if not reader.empty else time.perf_counter() - began)
        reader.empty = 0
    return {"p50_ms": statistics.median(times) * 1000, "max_ms": max(times) * 1000}


def latency_while_copied(servers: str, topic: str, *, moving: str, end: int) -> dict[str, float]:
    """Produce one record at a time, as `latency` does, until the tier holds another topic up to `end`."""
    connection = RawConnection(servers, timeout_s=60)
    watching = RawConnection(servers, timeout_s=60)
    frame, times = produce_frame(topic, batch_of_now([Item(b"x" * 100)])), []
    began = checked = time.perf_counter()
    copied = -1
    while copied < end:
        times.append(_timed(connection.socket, frame))
        if time.perf_counter() - checked > CHECK_EACH_S:
            copied = _copied(watching, moving)
            checked = time.perf_counter()
    check_produced(receive_after(connection.socket, frame))
    return {**percentiles(times), "seconds": time.perf_counter() - began, "count": len(times)}


def _timed(connection: socket.socket, frame: bytes) -> int:
    began = time.perf_counter_ns()
    connection.sendall(frame)
    receive(connection)
    return time.perf_counter_ns() - began


def receive_after(connection: socket.socket, frame: bytes) -> bytes:
    """The reply to one more request."""
    connection.sendall(frame)
    return receive(connection)


def _copied(connection: RawConnection, topic: str) -> int:
    asked = [{"PartitionIndex": 0, "Timestamp": LATEST_TIERED}]
    request = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": asked}]}
    found = connection.call("ListOffsets", LIST_VERSION, request)["Topics"][0]["Partitions"][0]
    return int(found["Offset"])
