"""Ways to walk the records of batches and to convert them to Arrow columns: `python -m tests.bench.spark_walk`.

* one by one: wire's own decoder, a Python object for each record, then lists
* numpy: the way of kbroker.spark, a loop that hops from record to record (compiled or not, see
  `make compiled`), and the rest vectorized
* numba, hop: the same with that loop compiled
* numba, all: one compiled loop that reads all fields and copies keys and values to their places in Arrow buffers

Figures are nanoseconds of CPU time per record, the best of five rounds over 8 MiB in memory, CRCs checked. The start-up
cost of a compiled loop is measured in fresh processes, because Spark starts its Python workers when a job begins, so a
job of seconds pays it. `--rounds N`; `numba` is measured if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from kbroker.spark.arrow import binary_column, number_column
from kbroker.spark.columns import COLUMNS, TYPES, RowsBuilder
from kbroker.spark.pieces import TailPiece
from kbroker.spark.walk import read_fields
from wire.batch_header import HEADER_SIZE
from wire.record_batch import Record, RecordBatch, batches, build_batch
from wire.types import ZERO_UUID

TOTAL_BYTES = 8 << 20

COMPILED = """
import numba as nb
import numpy as np

READ_ONLY = nb.types.Array(nb.uint8, 1, "C", readonly=True)
INT, INTS, INT32S, BYTES = nb.int64, nb.int64[::1], nb.int32[::1], nb.uint8[::1]


@nb.njit(inline="always")
def varint(data, at, end):
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= np.uint64(byte & 127) << shift
        shift += np.uint64(7)
        if byte < 128:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
    return np.int64(0), np.int64(-1)


@nb.njit(INT(READ_ONLY, INT, INT, INT, INTS, INT), cache=True, nogil=True)
def hop(data, at, end, count, starts, row):
    for index in range(count):
        starts[row + index] = at
        size, at = varint(data, at, end)
        if at < 0 or size < 0 or size > end - at:
            return -1
        at += size
    return at


@nb.njit(INT(READ_ONLY, INT, INT, INT, INT, INT, INT, INTS, INTS, BYTES, INT32S, BYTES, INT32S), cache=True, nogil=True)
def walk(data, at, end, count, base, timestamp, row, offsets, timestamps, keys, key_ends, values, value_ends):
    key_at, value_at = np.int64(key_ends[row]), np.int64(value_ends[row])
    for _ in range(count):
        size, at = varint(data, at, end)
        if at < 0 or size < 0 or size > end - at:
            return -1
        record_end = at + size
        timestamp_delta, at = varint(data, at + 1, record_end)
        if at < 0:
            return -1
        offset_delta, at = varint(data, at, record_end)
        if at < 0:
            return -1
        size, at = varint(data, at, record_end)
        if at < 0 or size > record_end - at or size > len(keys) - key_at:
            return -1
        if size > 0:
            keys[key_at : key_at + size] = data[at : at + size]
            at += size
            key_at += size
        size, at = varint(data, at, record_end)
        if at < 0 or size > record_end - at or size > len(values) - value_at:
            return -1
        if size > 0:
            values[value_at : value_at + size] = data[at : at + size]
            at += size
            value_at += size
        headers, at = varint(data, at, record_end)
        if at != record_end:
            return -1
        offsets[row] = base + offset_delta
        timestamps[row] = (timestamp + timestamp_delta) * 1000
        row += 1
        key_ends[row] = key_at
        value_ends[row] = value_at
    return at
"""

Way = Callable[[bytes], int]


def one_by_one(data: bytes) -> int:
    rows = [record for batch in batches(data) if batch.crc_is_valid() for record in batch.records()]
    pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in rows], pa.binary()),
            pa.array([record.value for record in rows], pa.binary()),
            pa.array([record.offset for record in rows], pa.int64()),
            pa.array([record.timestamp * 1000 for record in rows], TYPES["timestamp"]),
        ],
        names=["key", "value", "offset", "timestamp"],
    )
    return len(rows)


def with_numpy(data: bytes) -> int:
    def error_at(kind: type[Exception], what: str, offset: int) -> Exception:
        return kind(what)

    rows = RowsBuilder(TailPiece("bench", ZERO_UUID, 0, 0, 1 << 62), COLUMNS, error_at=error_at)  # type: ignore[arg-type]
    for batch in batches(data):
        assert batch.crc_is_valid()
        rows.add(batch)
    return sum(made.num_rows for made in rows.take())


def whole(data: bytes) -> list[RecordBatch]:
    return [batch for batch in batches(data) if batch.crc_is_valid()]


def compiled_ways(module: object) -> dict[str, Way]:
    hop, walk = module.hop, module.walk  # type: ignore[attr-defined]

    def with_hop(data: bytes) -> int:
        view = np.frombuffer(data, np.uint8)
        found = whole(data)
        counts = [batch.record_count for batch in found]
        starts = np.empty(sum(counts), np.int64)
        row = 0
        for batch in found:
            end = batch.position + batch.size
            assert hop(view, batch.position + HEADER_SIZE, end, batch.record_count, starts, row) == end
            row += batch.record_count
        fields = read_fields(view, starts)
        binary_column(data, fields.key_positions, fields.key_sizes)
        binary_column(data, fields.value_positions, fields.value_sizes)
        number_column(TYPES["offset"], np.repeat([b.base_offset for b in found], counts) + fields.offset_deltas)
        timestamps = np.repeat([b.base_timestamp for b in found], counts) + fields.timestamp_deltas
        number_column(TYPES["timestamp"], timestamps * 1000)
        return row

    def with_walk(data: bytes) -> int:
        view = np.frombuffer(data, np.uint8)
        found = whole(data)
        total = sum(batch.record_count for batch in found)
        offsets, timestamps = np.empty(total, np.int64), np.empty(total, np.int64)
        key_ends, value_ends = np.zeros(total + 1, np.int32), np.zeros(total + 1, np.int32)
        key_buffer, value_buffer = pa.allocate_buffer(len(data)), pa.allocate_buffer(len(data))
        keys, values = np.frombuffer(key_buffer, np.uint8), np.frombuffer(value_buffer, np.uint8)
        row = 0
        for batch in found:
            start, end = batch.position + HEADER_SIZE, batch.position + batch.size
            columns = offsets, timestamps, keys, key_ends, values, value_ends
            about = batch.record_count, batch.base_offset, batch.base_timestamp
            assert walk(view, start, end, *about, row, *columns) == end
            row += batch.record_count
        pa.Array.from_buffers(pa.binary(), total, [None, pa.py_buffer(key_ends), key_buffer])
        pa.Array.from_buffers(pa.binary(), total, [None, pa.py_buffer(value_ends), value_buffer])
        number_column(TYPES["offset"], offsets)
        number_column(TYPES["timestamp"], timestamps)
        return row

    return {"numba, hop": with_hop, "numba, all": with_walk}


def data_of(record_bytes: int, per_batch: int, chance: random.Random) -> bytes:
    """Records of various sizes around `record_bytes`, about TOTAL_BYTES in all."""
    made, offset, size = [], 0, 0
    while size < TOTAL_BYTES:
        records = [
            Record(
                -1, 1000 + number, b"key-%06d" % number, bytes(chance.randint(record_bytes // 2, record_bytes * 3 // 2))
            )
            for number in range(per_batch)
        ]
        made.append(build_batch(records, base_offset=offset))
        offset += per_batch
        size += len(made[-1])
    return b"".join(made)


def best(way: Way, data: bytes, rounds: int) -> float:
    """Nanoseconds of CPU time per record."""
    figures = []
    for _ in range(rounds):
        start = time.process_time()
        count = way(data)
        figures.append((time.process_time() - start) * 1e9 / count)
    return min(figures)


def fresh(directory: str, statement: str) -> float:
    """Seconds that a statement takes in a new process that has already imported the modules of Spark's workers."""
    program = (
        f"import sys, time; sys.path.insert(0, {directory!r}); import numpy, pyarrow\n"
        f"start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    )
    return min(
        float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
        for _ in range(5)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    ways: dict[str, Way] = {"one by one": one_by_one, "numpy": with_numpy}
    with tempfile.TemporaryDirectory() as directory:
        if importlib.util.find_spec("numba") is not None:
            (Path(directory) / "compiled_walk.py").write_text(COMPILED)
            sys.path.insert(0, directory)
            start = time.perf_counter()
            import compiled_walk  # type: ignore[import-not-found]

            print(f"numba: import and compile, once a machine {time.perf_counter() - start:6.2f} s")
            print(f"numba: import and load what is compiled   {fresh(directory, 'import compiled_walk'):6.2f} s")
            print(f"numba: import alone                       {fresh(directory, 'import numba'):6.2f} s")
            ways |= compiled_ways(compiled_walk)
        print(f"kbroker.spark.columns: import             {fresh('.', 'import kbroker.spark.columns'):6.2f} s")
        shapes = {"100 B, 150 a batch": (100, 150), "1 KiB, 15 a batch": (1024, 15), "1 KiB, 900 a batch": (1024, 900)}
        print(f"{'ns a record':20}" + "".join(f"{name:>14}" for name in ways))
        for name, shape in shapes.items():
            data = data_of(*shape, random.Random(1))
            print(f"{name:20}" + "".join(f"{best(way, data, rounds):14.0f}" for way in ways.values()))


if __name__ == "__main__":
    main()
