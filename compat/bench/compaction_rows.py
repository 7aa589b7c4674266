"""How much of a log a cleaner compacts for each second of processor time.

As in `recovery_rows`, the segments are written directly: 128 MiB of random keys, of which a quarter of the records is
the last one of its key. The topic is not cleaned until its min.cleanable.dirty.ratio falls. Then the broker cleans all
closed segments in one pass, and `cleaner-offset-checkpoint` shows the end. The figure is the size of these segments
divided by the processor time of the broker and its child processes until then. The first topic only warms Kafka's
compiler up.
"""

from __future__ import annotations

import random
import struct
import time
from functools import partial
from pathlib import Path

import lz4.frame

from compat.bench.rivals import Rival, rivals
from compat.bench.sizes import Figures, Row, at_least_times
from compat.oracle.batches import LZ4, Batch, Item
from compat.oracle.raw import connected
from compat.waiting import MEASURE_S, until

SEGMENTS, SEGMENT_BYTES = 8, 16 << 20
BATCH_BYTES = 16 << 10
_CLEANED = "cleaner-offset-checkpoint"
_WORKLOADS = {"compaction-1000": (1000, 0), "compaction-100": (100, 0), "compaction-lz4": (100, LZ4)}

COMPACTION_ROWS = [
    Row("compaction-1000", "compaction, records of 1,000 B", "MB/CPU s", ">= 0.7 x", at_least_times(0.7)),
    Row("compaction-100", "compaction, records of 100 B", "MB/CPU s", ">= 0.7 x", at_least_times(0.7)),
    Row("compaction-lz4", "compaction, records of 100 B, lz4", "MB/CPU s", ">= 0.7 x", at_least_times(0.7)),
]


def compaction(directory: Path, which: set[str], *, rounds: int) -> dict[str, list[Figures]]:
    """Give each broker the same logs, and let it clean them one after the other."""
    found: dict[str, list[Figures]] = {}
    directory.mkdir(parents=True, exist_ok=True)
    logs = {name: _segments(*workload) for name, workload in _WORKLOADS.items()}
    with rivals(directory, which=which) as started:
        for rival in started:
            rival.timed_start()
            configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}
            topics = [
                {name: rival.topic(name, configs={**configs, "segment.bytes": str(SEGMENT_BYTES)}) for name in logs}
                for _ in range(rounds + 1)
            ]
            rival.broker.stop()
            for round_ in topics:
                for name, topic in round_.items():
                    _write(rival, topic, logs[name])
            rival.broker.start()
            _look_often(rival)
            for number, round_ in enumerate(topics):
                figures = {name: _clean(rival, topic, logs[name]) for name, topic in round_.items()}
                if number:
                    found.setdefault(rival.name, []).append(figures)
            rival.broker.kill()
    return found


def _segments(value_bytes: int, codec: int) -> list[tuple[int, bytes]]:
    """(base offset, content) of each segment, and a small active one."""
    rng = random.Random(value_bytes + codec)
    count = max(1, BATCH_BYTES // (value_bytes + 30))
    keys = SEGMENTS * SEGMENT_BYTES // (value_bytes + 30) // 4
    words = [rng.randbytes(8).hex().encode() for _ in range(256)]
    segments: list[tuple[int, bytes]] = []
    offset = 0
    for _ in range(SEGMENTS):
        base, parts, size = offset, list[bytes](), 0
        while size < SEGMENT_BYTES - 2 * BATCH_BYTES:
            items = [
                Item((rng.choice(words) * (value_bytes // 16 + 1))[:value_bytes], key=b"key-%09d" % rng.randrange(keys))
                for _ in range(count * (4 if codec else 1))
            ]
            batch = bytearray(_batch(items, codec))
            struct.pack_into(">q", batch, 0, offset)
            struct.pack_into(">i", batch, 12, 0)
            offset += len(items)
            parts.append(bytes(batch))
            size += len(batch)
        segments.append((base, b"".join(parts)))
    last = bytearray(_batch([Item(b"v", key=b"last")], 0))
    struct.pack_into(">q", last, 0, offset)
    struct.pack_into(">i", last, 12, 0)
    return [*segments, (offset, bytes(last))]


def _batch(items: list[Item], codec: int) -> bytes:
    body = None
    if codec:
        plain = b"".join(item.encode(place) for place, item in enumerate(items))
        body = lz4.frame.compress(plain, block_linked=False)
    return Batch(items, codec=codec, body=body, base_timestamp=int(time.time() * 1000)).encode()


def _write(rival: Rival, topic: str, segments: list[tuple[int, bytes]]) -> None:
    assert rival.broker.log_directory is not None
    path = rival.broker.log_directory / f"{topic}-0"
    for one in path.glob("0*"):
        one.unlink()
    for base_offset, content in segments:
        (path / f"{base_offset:020d}.log").write_bytes(content)


def _look_often(rival: Rival) -> None:
    change = {"Name": "log.cleaner.backoff.ms", "ConfigOperation": 0, "Value": "100"}
    resource = {"ResourceType": 4, "ResourceName": "", "Configs": [change]}
    with connected(rival.servers) as connection:
        connection.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})


def _clean(rival: Rival, topic: str, segments: list[tuple[int, bytes]]) -> float:
    """MB for each second of processor time."""
    began = rival.cpu_seconds()
    rival.alter(topic, {"min.cleanable.dirty.ratio": "0.0"})
    until(partial(_is_clean, rival, topic, segments[-1][0]), each_s=0.01, patience_s=MEASURE_S)
    took = rival.cpu_seconds() - began
    rival.alter(topic, {"min.cleanable.dirty.ratio": "1.0"})
    return sum(len(content) for _, content in segments) / 1e6 / took


def _is_clean(rival: Rival, topic: str, end: int) -> bool:
    assert rival.broker.log_directory is not None
    try:
        lines = (rival.broker.log_directory / _CLEANED).read_text().splitlines()
    except FileNotFoundError:
        return False
    return f"{topic} 0 {end}" in lines
