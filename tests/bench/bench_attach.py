"""How long `kbroker tier attach` takes: `python -m tests.bench.bench_attach [segments]`.

The target is 10 s and 100 MiB for 10,000 segments that have 1 TB by their sizes. The logs are sparse files without
batches: attaching reads names, sizes, manifests and the checkpoints of the newest segments, and no records.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kbroker.storage.leader_epoch import format_epochs
from kbroker.storage.producer_state import format_snapshot
from kbroker.testing.remote_metadata import FINISHED, segment_metadata
from kbroker.testing.remote_segments import partition_named
from kbroker.tiered.layout import MANIFEST, SEGMENT, Manifest, StoredFile, object_name
from tests.broker_process import BrokerProcess
from wire.crc32c import crc32c

PARTITIONS, SEGMENT_BYTES, RECORDS = 10, 100_000_000, 1_000
EPOCHS = format_epochs([(3, 0)]).encode()
INDEXES = {
    "index": b"\x00\x00\x03\xe7\x00\x00\x10\x00",
    "timeindex": (1).to_bytes(8, "big") + bytes(4),
    "snapshot": bytes(format_snapshot(())),
    "leader-epoch-checkpoint": EPOCHS,
}


def make_store(root: Path, segments: int) -> None:
    """Write the objects of the segments."""
    stored = {kind: StoredFile(len(data), crc32c(data)) for kind, data in INDEXES.items()}
    for number in range(segments):
        partition = partition_named("bench", number % PARTITIONS)
        start = RECORDS * (number // PARTITIONS)
        metadata = replace(
            segment_metadata(partition, start, start + RECORDS - 1, epochs={3: start}),
            segment_size_in_bytes=SEGMENT_BYTES,
            state=FINISHED,
            txn_index_empty=True,
        )
        log = root / object_name(metadata, SEGMENT)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            file.truncate(SEGMENT_BYTES)
        for kind, data in INDEXES.items():
            (root / object_name(metadata, kind)).write_bytes(data)
        manifest = Manifest(metadata, "bench", {SEGMENT: StoredFile(SEGMENT_BYTES, 0), **stored})
        (root / object_name(metadata, MANIFEST)).write_bytes(manifest.to_bytes())


def attach(broker: BrokerProcess, store: Path) -> str:
    """Attach the topic with the command line tool; returns what it took."""
    words = ["tier", "attach", "-b", f"{broker.host}:{broker.port}", "--override", f"rsm.config.dir={store}"]
    begun = time.perf_counter()
    command = os.posix_spawn(sys.executable, [sys.executable, "-m", "kbroker", *words], dict(os.environ))
    _, status, used = os.wait4(command, 0)
    assert status == 0
    seconds, cpu = time.perf_counter() - begun, used.ru_utime + used.ru_stime
    return f"{seconds:.1f} s ({cpu:.1f} s of CPU), {used.ru_maxrss / 1024:.0f} MiB"


def resident_mib(process_id: int) -> float:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    segments = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory(prefix="kbroker-attach-") as name:
        store = Path(name) / "store"
        make_store(store, segments)
        with BrokerProcess(Path(name) / "data", "--override", f"rsm.config.dir={store}") as broker:
            before = resident_mib(broker.process.pid)
            took = attach(broker, store)
            after = resident_mib(broker.process.pid)
    print(f"{segments} segments attached: {took}; the broker took {after - before:.0f} MiB more")


if __name__ == "__main__":
    main()
