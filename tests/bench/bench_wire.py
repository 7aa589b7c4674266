"""The cost of the wire protocol: codec, frames, start-up. Run it: `python -m tests.bench.bench_wire`.

Figures are microseconds, the best of five rounds, so that they measure the code and not the load of the machine.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from wire.codec import decode, encode, encode_parts
from wire.framing import FrameBuffer, decode_request_header, encode_request_frame, encode_response_frame
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.structs import compile_builder, compile_parser, construct_for

TOPIC_ID = UUID("e4bea0de-74a1-4fe7-8c0a-d2bef97f3ab3")


@dataclass
class FileRange:
    size: int


def microseconds(work: Callable[[], object], number: int = 20_000) -> float:
    """The cost of one call."""
    return min(timeit.repeat(work, number=number, repeat=5)) / number * 1e6


def show(what: str, cost: float, target: float | None = None) -> None:
    print(f"{what:70} {cost:8.2f}" + (f"   (at most {target:g})" if target else ""))


def produce_request(version: int) -> ProduceRequest:
    name = {"name": "orders"} if version < 13 else {"topic_id": TOPIC_ID}
    topic = TopicProduceData(partition_data=[PartitionProduceData(index=0, records=bytes(180))], **name)
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response(version: int) -> ProduceResponse:
    partition = PartitionProduceResponse(index=0, base_offset=5, log_append_time_ms=-1, log_start_offset=0)
    name = {"name": "orders"} if version < 13 else {"topic_id": TOPIC_ID}
    return ProduceResponse(responses=[TopicProduceResponse(partition_responses=[partition], **name)])


def fetch_request(version: int) -> FetchRequest:
    name = {"topic": "orders"} if version < 13 else {"topic_id": TOPIC_ID}
    partitions = [FetchPartition(partition=i, fetch_offset=100, partition_max_bytes=1 << 20) for i in range(4)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(partitions=partitions, **name)])


def fetch_response(version: int, records: Any) -> FetchResponse:
    name = {"topic": "orders"} if version < 13 else {"topic_id": TOPIC_ID}
    partitions = [
        PartitionData(partition_index=i, high_watermark=9, aborted_transactions=None, records=records) for i in range(4)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(partitions=partitions, **name)])


def metadata_response(topics: int) -> MetadataResponse:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
    )
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
        cluster_id="5L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=[
            MetadataResponseTopic(name=f"t{i}", topic_id=TOPIC_ID, partitions=[partition] * 6) for i in range(topics)
        ],
    )


def bench_codec() -> None:
    for version, target in ((3, None), (7, 5.0), (9, 5.0), (13, None)):
        data = memoryview(encode(produce_request(version), version))
        show(
            f"decode Produce v{version}, one partition",
            microseconds(partial(decode, ProduceRequest, version, data)),
            target,
        )
    for version, target in ((3, None), (7, 5.0), (9, 5.0), (13, None)):
        response = produce_response(version)
        show(
            f"encode Produce response v{version}",
            microseconds(partial(encode, response, version)),
            target,
        )
    show("make a Produce response", microseconds(lambda: produce_response(7)))
    for version, target in ((4, 7.0), (11, None), (12, None), (17, None)):
        data = memoryview(encode(fetch_request(version), version))
        show(
            f"decode Fetch v{version}, four partitions",
            microseconds(partial(decode, FetchRequest, version, data)),
            target,
        )
    for version in (4, 11, 12, 17):
        held = fetch_response(version, FileRange(1 << 20))
        show(
            f"encode Fetch response v{version}, four partitions of file ranges",
            microseconds(partial(encode_parts, held, version)),
        )
    hundred = metadata_response(100)
    show("encode Metadata response v12, 100 topics of 6 partitions", microseconds(lambda: encode(hundred, 12), 100))


def bench_frames() -> None:
    (frame,) = encode_request_frame(produce_request(9), 9, correlation_id=7, client_id="rdkafka")
    assert isinstance(frame, bytes)
    buffer = FrameBuffer(100 << 20)

    def one_frame() -> memoryview | None:
        buffer.feed(frame)
        return buffer.next_frame()

    show("one frame in one receive", microseconds(one_frame), 1.0)
    received = one_frame()
    assert received is not None
    show("decode a request header v2", microseconds(lambda: decode_request_header(received)))
    response = produce_response(9)
    show("encode a Produce response v9 with its frame", microseconds(lambda: encode_response_frame(7, response, 9)))

    size = 1 << 20
    whole = memoryview(bytes(size))
    first, rest = struct.pack(">i", size) + bytes(60_000), whole[60_000:]

    def large_frame() -> None:
        buffer.feed(first)
        buffer.next_frame()
        position = 0
        while (room := buffer.room()) is not None:
            room[:] = rest[position : position + len(room)]
            position += len(room)
            buffer.filled(len(room))
        assert buffer.next_frame() is not None

    show("one frame of 1 MiB, copied into its room", microseconds(large_frame, 200))
    show(
        "  of that, the mere copy of 1 MiB",
        microseconds(lambda: memoryview(bytearray(size)).__setitem__(slice(None), whole), 200),
    )


EVERY_MESSAGE = """
import importlib, pkgutil, wire.framing, wire.messages
for module in pkgutil.iter_modules(wire.messages.__path__):
    importlib.import_module(f"wire.messages.{module.name}")
"""


def bench_start() -> None:
    for cls, version in ((ProduceRequest, 9), (FetchRequest, 17), (FetchResponse, 17), (MetadataResponse, 12)):
        construct = construct_for(cls, version)
        show(f"compile the parser of {cls.__name__} v{version}", microseconds(partial(compile_parser, construct), 5))
        show(f"compile the builder of {cls.__name__} v{version}", microseconds(partial(compile_builder, construct), 5))
    for what, code in (  # each in its own process
        ("python alone", "pass"),
        ("import construct", "import construct"),
        ("import wire.framing", "import wire.framing"),
        ("import every message", EVERY_MESSAGE),
    ):
        run = partial(subprocess.run, [sys.executable, "-c", code], check=True)
        show(f"start: {what}", microseconds(run, 3))


if __name__ == "__main__":
    print(f"{'wire':70} {'us':>8}")
    bench_codec()
    bench_frames()
    bench_start()
