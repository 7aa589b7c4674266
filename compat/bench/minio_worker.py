"""The clients of the MinIO benchmarks: the broker's topics, and the same objects without a broker.

Keys come from the environment, as for the broker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from minio import Minio

from compat.bench.tier_worker import Reader

Each = TypeVar("Each")
RANGE_BYTES = 4 << 20
ACCESS_KEY, SECRET_KEY = "KBROKER_MINIO_ACCESS_KEY", "KBROKER_MINIO_SECRET_KEY"


def read_partitions(servers: str, topic: str, *, ends: Sequence[int]) -> dict[str, float]:
    """Read all partitions from beginning to end concurrently, with one request in flight for each."""

    readers = [Reader(servers, topic, partition=partition, max_bytes=RANGE_BYTES) for partition in range(len(ends))]

    def read(partition: int) -> int:
        reader, offset, got = readers[partition], 0, 0
        while offset < ends[partition]:
            offset, size = reader.fetch(offset)
            got += size
        return got

    return _all_at_once(read, range(len(ends)))


def read_objects(servers: str, topic: str, *, endpoint: str, bucket: str, prefixes: Sequence[str]) -> dict[str, float]:
    """Read all segments below each prefix by ranges of 4 MiB, with one connection for each prefix."""
    del servers, topic
    store = client(endpoint)
    listed = [
        [
            (stored.object_name or "", stored.size or 0)
            for stored in store.list_objects(bucket, prefix=prefix, recursive=True)
            if (stored.object_name or "").endswith(".log")
        ]
        for prefix in prefixes
    ]

    def read(objects: list[tuple[str, int]]) -> int:
        got = 0
        for name, size in objects:
            for start in range(0, size, RANGE_BYTES):
                response = store.get_object(bucket, name, offset=start, length=min(RANGE_BYTES, size - start))
                got += len(response.read())
                response.close()
                response.release_conn()
        return got

    return _all_at_once(read, listed)


def put_files(servers: str, topic: str, *, endpoint: str, bucket: str, paths: Sequence[str]) -> dict[str, float]:
    """Put files as objects, one after the other, in the simplest way."""
    del servers
    store, put = client(endpoint), 0
    began = time.perf_counter()
    for path in paths:
        size = Path(path).stat().st_size
        with open(path, "rb") as file:
            store.put_object(bucket, f"plain/{topic}/{Path(path).name}", file, size)
        put += size
    return {"mb_s": put / (time.perf_counter() - began) / 1e6, "bytes": put}


def client(endpoint: str) -> Minio:
    """The package's client with its defaults."""
    address = endpoint.removeprefix("http://")
    return Minio(address, os.environ[ACCESS_KEY], os.environ[SECRET_KEY], secure=False, region="us-east-1")


def _all_at_once(read: Callable[[Each], int], each: Sequence[Each]) -> dict[str, float]:
    began = time.perf_counter()
    with ThreadPoolExecutor(len(each)) as threads:
        got = sum(threads.map(read, each))
    return {"mb_s": got / (time.perf_counter() - began) / 1e6, "bytes": got}
