"""Costs of the log's hot paths, in microseconds: `python tests/bench/bench_storage.py [directory]`."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kbroker.runtime.disk import RealDisk, raise_descriptor_limit
from kbroker.storage.files import FilePool
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from wire.record_batch import Record, build_batch


def measure(name: str, action: Callable[[], object], rounds: int, *, size: int = 0) -> None:
    """Print the best of five runs of `rounds` calls."""
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(rounds):
            action()
        best = min(best, (time.perf_counter() - begun) / rounds)
    rate = f"{size / best / 1e6:10,.0f} MB/s" if size else ""
    print(f"{name:52} {best * 1e6:10.2f} us {rate}")


def batch_of(size: int, **header: int) -> bytearray:
    return bytearray(build_batch([Record(0, 1_000_000, None, b"v" * size)], **header))


def bench_append(directory: Path, disk: RealDisk) -> None:
    log = Log(str(directory), disk=disk, config=LogConfig(), topic="bench", partition=0, clean_shutdown=True)
    small = batch_of(100)
    measure("append 100 B: plan + write + commit", lambda: log.append(small, leader_epoch=0, timestamp_ms=0), 20_000)
    plan = log.plan_append(small, leader_epoch=0, timestamp_ms=0)
    measure("  plan", lambda: log.plan_append(small, leader_epoch=0, timestamp_ms=0), 20_000)
    measure("  write", lambda: log.write(plan), 20_000)

    def append_idempotent() -> None:
        sequence = log.producers.producers[7].last_sequence + 1 if 7 in log.producers.producers else 0
        batch = bytearray(small)
        batch[43:57] = (7).to_bytes(8, "big") + b"\0\0" + sequence.to_bytes(4, "big")
        log.append(batch, leader_epoch=0, timestamp_ms=0)

    measure("append 100 B of an idempotent producer", append_idempotent, 20_000)
    for size in (16 << 10, 900 << 10):
        batch = batch_of(size)
        rounds = max(20, (32 << 20) // size)
        measure(
            f"append {size >> 10} KiB", lambda b=batch: log.append(b, leader_epoch=0, timestamp_ms=0), rounds, size=size
        )
    for _ in range(100):
        log.append(small, leader_epoch=0, timestamp_ms=0)
    end = log.log_end_offset
    measure("read at the tail: last batch", lambda: log.read(end - 1, max_bytes=1 << 20, end_offset=end), 20_000)
    measure("read at the tail: nothing new", lambda: log.read(end, max_bytes=1 << 20, end_offset=end), 20_000)
    log.close()


def bench_cold_reads(directory: Path, disk: RealDisk) -> None:
    log = Log(
        str(directory),
        disk=disk,
        config=LogConfig(segment_bytes=64 << 20),
        topic="bench",
        partition=0,
        clean_shutdown=True,
    )
    batch = batch_of(1000)
    for _ in range(200_000):
        log.append(batch, leader_epoch=0, timestamp_ms=0)
    log.close()
    begun = time.perf_counter()
    log = Log(str(directory), disk=disk, config=LogConfig(), topic="bench", partition=0, clean_shutdown=True)
    print(f"{'load 200 MB after a clean stop':52} {(time.perf_counter() - begun) * 1e6:10.2f} us")
    position = 0

    def read_on() -> None:
        nonlocal position
        found = log.read(position, max_bytes=1 << 20)
        position += found.size // len(batch)
        if position >= log.log_end_offset:
            position = 0

    measure("read 1 MiB, consumer reads on", read_on, 400)
    offset = 0

    def read_anywhere() -> None:
        nonlocal offset
        offset = (offset + 77_777) % log.log_end_offset
        log.read(offset, max_bytes=1 << 20)

    measure("read 1 MiB, anywhere", read_anywhere, 2_000)
    measure("offset for timestamp", lambda: log.offset_for_timestamp(1_000_000), 500)
    begun = time.perf_counter()
    Log(str(directory), disk=disk, config=LogConfig(), topic="bench", partition=0, clean_shutdown=False)
    seconds = time.perf_counter() - begun
    print(f"{'recover 215 MB of 1 KiB batches':52} {seconds * 1e6:10.0f} us {215 / seconds:10,.0f} MB/s")


def bench_producers(directory: Path, disk: RealDisk, *, segments: int, producers: int) -> None:
    """The cost of idempotent producers with five batches each: at a roll, and at the start after either kind of
    stop.
    """
    path = str(directory)
    batch, batches = batch_of(100, producer_id=0, producer_epoch=0, base_sequence=0), 5 * producers
    config = LogConfig(segment_bytes=len(batch) * -(-batches // segments))

    def load(*, is_clean: bool) -> Log:
        # A broker syncs rolled segments, so that recovery reads only the active segment.
        point = max(int(log.stem) for log in directory.glob("*.log")) if not is_clean else 0
        return Log(
            path, disk=disk, config=config, topic="b", partition=0, clean_shutdown=is_clean, recovery_point=point
        )

    log = load(is_clean=True)
    for number in range(batches):
        sequence, producer_id = divmod(number, producers)
        batch[43:57] = producer_id.to_bytes(8, "big") + b"\0\0" + sequence.to_bytes(4, "big")
        log.append(batch, leader_epoch=0, timestamp_ms=0)
    name = f"{len(log.segments)} segments, {producers:,} producers"
    begun = time.perf_counter()
    log.roll(timestamp_ms=0)
    print(f"{f'{name}: roll':52} {(time.perf_counter() - begun) * 1e3:10.1f} ms")
    log.append(batch_of(100), leader_epoch=0, timestamp_ms=0)
    log.close()
    size = max(directory.glob("*.snapshot")).stat().st_size
    for is_clean in (True, False):
        best = float("inf")
        for _ in range(3):
            begun = time.perf_counter()
            load(is_clean=is_clean)
            best = min(best, time.perf_counter() - begun)
        title = f"{name}: load after a {'clean stop' if is_clean else 'crash'}"
        print(f"{title:52} {best * 1e3:10.1f} ms, snapshots of {size:,} B")


def bench_many(directory: Path, disk: RealDisk, count: int) -> None:
    config = LogConfig()
    paths = [str(directory / f"many-{number}") for number in range(count)]
    batch = batch_of(100)
    files = FilePool(disk, 4096)
    for path in paths:
        disk.make_directory(path)
        log = Log(path, disk=disk, config=config, topic="many", partition=0, clean_shutdown=True, pool=files)
        log.append(batch, leader_epoch=0, timestamp_ms=0)
        log.recovery_point = 1  # spare the bench 2,000 fsyncs
        for segment in log.segments:
            segment.has_unsynced_files = False
            segment.add_time_entry()
            segment.write_indexes()
        log.producers.snapshot_offset = 1
        log.close()
    files.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    logs = [
        Log(path, disk=disk, config=config, topic="many", partition=0, clean_shutdown=True, pool=files)
        for path in paths
    ]
    seconds = time.perf_counter() - begun
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{f'load {len(logs)} partitions after a clean stop':52} {seconds * 1e3:10.0f} ms, {grown} KiB more")


def main() -> None:
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        root = Path(name)
        for number, bench in enumerate((bench_append, bench_cold_reads)):
            directory = root / str(number)
            directory.mkdir()
            bench(directory, RealDisk())
        for segments, producers in ((200, 10_000), (1, 10_000), (1, 100_000)):
            directory = root / f"{segments}-{producers}"
            directory.mkdir()
            bench_producers(directory, RealDisk(), segments=segments, producers=producers)
        bench_many(root, RealDisk(), 2_000)


if __name__ == "__main__":
    main()
