"""The cost of checking produced batches: `python -m tests.bench.bench_validation` prints one line for each kind of
batch.

Times are CPU time of this process, the best of several rounds. "each" is the record-by-record walk alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from kbroker.storage.log_config import LogConfig
from kbroker.storage.validation import is_cheap, validate_produced
from wire.compression import Codec
from wire.record_batch import Record, RecordBatch, build_batch
from wire.record_walk import RecordWalk

NOW = 1_700_000_000_000


def records(count: int, size: int, *, varied: bool = False, keyed: bool = False, headers: bool = False) -> list[Record]:
    """Records of `size` bytes (varied: normally distributed by a third); every twentieth is a millisecond later."""
    source = random.Random(1)
    timestamp = NOW
    made = []
    for index in range(count):
        timestamp += varied and source.random() < 0.05
        length = max(10, int(source.gauss(size, size / 3))) if varied else size
        key = b"key-%d" % source.randrange(10**6) if keyed else None
        made.append(Record(index, timestamp, key, source.randbytes(length), (("trace", b"abcdef"),) if headers else ()))
    return made


def kinds() -> Iterator[tuple[str, bytes]]:
    yield "1 x 100 B", build_batch(records(1, 100))
    yield "1 KiB of 100 B", build_batch(records(9, 105, varied=True))
    yield "16 KiB of 1 KiB", build_batch(records(16, 1013, varied=True))
    yield "16 KiB of 100 B", build_batch(records(140, 105, varied=True))
    yield "900 KiB of 1 KiB, one size", build_batch(records(900, 1013))
    yield "900 KiB of 1 KiB", build_batch(records(900, 1013, varied=True))
    yield "900 KiB of 100 B, one size", build_batch(records(8000, 105))
    yield "900 KiB of 100 B", build_batch(records(8000, 105, varied=True))
    yield "900 KiB of 100 B, keys", build_batch(records(8000, 95, varied=True, keyed=True))
    yield "900 KiB of 100 B, headers", build_batch(records(7000, 90, varied=True, keyed=True, headers=True))
    text = [r._replace(value=b'{"level": "info", "request": %d, "path": "/index"}' % r.offset) for r in records(300, 1)]
    for codec in list(Codec)[1:]:
        yield f"300 x 50 B, {codec.name.lower()}", build_batch(text, codec=codec)


def best(task: Callable[[], object], rounds: int) -> float:
    """Microseconds of one run."""
    times = []
    for _ in range(9):
        start = time.process_time()
        for _ in range(rounds):
            task()
        times.append((time.process_time() - start) / rounds)
    return min(times) * 1e6


def main() -> None:
    config = LogConfig()
    print(f"{'batch':28} {'bytes':>7} {'validate':>9} {'walk':>9} {'each':>9} {'ns/record':>9}  cheap")
    for name, built in kinds():
        data = memoryview(bytearray(built))
        batch = RecordBatch(data)
        payload = bytes(batch.payload)
        count = batch.record_count
        rounds = max(1, min(5000, 20_000 // count))
        whole = best(lambda data=data: validate_produced(data, api_version=9, config=config, timestamp_ms=NOW), rounds)
        walk = each = 0.0
        if batch.codec is Codec.NONE:
            walk = best(lambda count=count, payload=payload: RecordWalk(count).feed(payload), rounds)
            each = best(lambda count=count, payload=payload: each_record(count, payload), rounds)
        cheap = is_cheap(data, config)
        print(f"{name:28} {len(data):7} {whole:9.1f} {walk:9.1f} {each:9.1f} {whole * 1e3 / count:9.0f}  {cheap}")


def each_record(count: int, payload: bytes) -> None:
    walk = RecordWalk(count)
    walk.failures = 1 << 30
    walk.feed(payload)


if __name__ == "__main__":
    main()
