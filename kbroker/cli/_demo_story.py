"""The steps of `kbroker demo`, and the conditions that must hold after each."""

from __future__ import annotations

import hashlib
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

from kbroker.cli import CommandFailed
from kbroker.cli import _configs as configs
from kbroker.cli._admin import connected
from kbroker.cli._demo_broker import broker
from kbroker.cli._demo_picture import Scene, Stage, stage
from kbroker.cli._tier_flush import KEY as FLUSH_KEY
from kbroker.cli._topics import create_topic
from kbroker.client.cluster import Cluster
from kbroker.client.consuming import Consumer
from kbroker.client.operations import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, list_offsets
from kbroker.client.producing import NotStored, Producer
from kbroker.runtime.env import RealEnv
from wire.compression import Codec
from wire.record_batch import Record

TOPIC: Final = "demo"
SEGMENT_BYTES: Final = 1 << 20
LOCAL_BYTES: Final = 2 << 20
VALUE_BYTES: Final = 4_096
LOOK_MS: Final = 100
FILL_BYTES_PER_MS: Final = 4 << 10
READ_BYTES_PER_MS: Final = 6 << 10
"""Limits of the write and read rates, so that the picture moves slowly enough."""
EXIT_TERMINATED: Final = 143


class _Terminated(BaseException):
    """SIGTERM or SIGHUP was received: clean up and exit."""


def run(*, mib: int, plain: bool, patience_ms: int) -> int:
    """Run the demo; return the exit code."""
    before = {number: signal.signal(number, _terminate) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="kbroker-demo-") as name,
            stage(plain=plain) as shown,
            broker(Path(name)) as address,
        ):
            shown.tell(f"A temporary broker runs at {address}, and its data and tier are in {name}.")
            records = mib * (1 << 20) // VALUE_BYTES
            with connected({"bootstrap_servers": [address]}) as cluster:
                Story(cluster, Path(name), shown, records=records, patience_ms=patience_ms).tell()
    except _Terminated:
        return EXIT_TERMINATED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


class Story:
    """One run against one broker. Errors: CommandFailed."""

    def __init__(self, cluster: Cluster, directory: Path, shown: Stage, *, records: int, patience_ms: int) -> None:
        self._cluster = cluster
        self._directory = directory
        self._shown = shown
        self._records = records
        self._patience_ms = patience_ms
        self._env = RealEnv()
        self._start_ms = self._env.now_ms()
        self._scene = Scene(goal=records)
        self._shown_ms = 0

    def tell(self) -> None:
        """Run all steps."""
        self._create()
        try:
            self._fill()
        except NotStored as error:
            raise CommandFailed(f"record {error.number} was not stored: {error.reason}") from error
        most = self._scene.local_bytes
        self._move()
        self._shrink(most)
        self._read_back()
        scene = self._scene
        self._shown.tell(
            f"All {self._records} records were read back and compared; {scene.local_start} of them are only in the "
            f"tier. The local disk has {scene.local_bytes >> 10} KiB, the tier {scene.tier_bytes >> 10} KiB."
        )

    def _create(self) -> None:
        settings = {
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT_BYTES),
            "local.retention.bytes": str(LOCAL_BYTES),
            "retention.ms": "-1",
            "file.delete.delay.ms": "0",
        }
        create_topic(
            self._cluster, TOPIC, partitions=1, replication_factor=1, assignment=(), configs=settings,
            if_not_exists=False,
        )  # fmt: skip

    def _fill(self) -> None:
        """Write the records. The tier copies closed segments at the same time."""
        self._title(f"writing {self._records} records")
        start_ms = self._env.now_ms()
        with (
            Cluster(self._cluster.settings) as apart,  # a producer's answers come later
            Producer(apart, TOPIC, {}, acks=-1, codec=Codec.NONE, is_idempotent=True) as producer,
        ):
            for number in range(self._records):
                record = Record(-1, self._env.timestamp_ms(), b"%d" % number, record_value(number))
                producer.send(record, partition=0, number=number)
                self._look()
                self._pace(number * VALUE_BYTES // FILL_BYTES_PER_MS, since_ms=start_ms)
        self._look(now=True)

    def _move(self) -> None:
        """Flush the topic to the tier, and wait until everything is copied."""
        self._title("closed segments move to the tier")
        moment = {FLUSH_KEY: str(self._env.timestamp_ms())}
        configs.alter(self._cluster, configs.Entity("topics", TOPIC), added=moment, deleted=())
        self._until(lambda: self._scene.tiered_to == self._records - 1, "the tier never had all records")

    def _shrink(self, most: int) -> None:
        """Wait until local retention has deleted the copied segments."""
        self._title("the local disk shrinks")
        self._until(
            lambda: self._scene.local_start > 0 and self._scene.local_bytes <= LOCAL_BYTES + SEGMENT_BYTES,
            f"the local disk never shrank from {most} to {LOCAL_BYTES} bytes",
        )
        if self._scene.log_start != 0:
            raise CommandFailed(f"the log begins at offset {self._scene.log_start}, not at 0")

    def _read_back(self) -> None:
        """Read all records from offset 0 and compare them."""
        self._title("a consumer reads everything back")
        consumer = Consumer(self._cluster, {}, is_committed_only=False)
        consumer.assign({(TOPIC, 0): 0})
        start_ms = self._env.now_ms()
        deadline = start_ms + self._patience_ms
        number = 0
        while number < self._records:
            if self._env.now_ms() > deadline:
                raise CommandFailed(
                    f"only {number} of {self._records} records could be read within {self._patience_ms} ms"
                )
            for record in consumer.poll(timeout_ms=LOOK_MS):
                if (record.offset, record.key) != (number, b"%d" % number) or record.value != record_value(number):
                    raise CommandFailed(
                        f"the record at offset {record.offset} is not the one that was written as {number}"
                    )
                number += 1
            self._scene = replace(self._scene, read=number)
            self._look()
            self._pace(number * VALUE_BYTES // READ_BYTES_PER_MS, since_ms=start_ms)
        self._title("everything was read back")

    # --- looking ---

    def _title(self, title: str) -> None:
        self._scene = replace(self._scene, title=title)
        self._look(now=True)

    def _until(self, condition: Callable[[], bool], failure: str) -> None:
        deadline = self._env.now_ms() + self._patience_ms
        self._look(now=True)
        while not condition():
            if self._env.now_ms() > deadline:
                raise CommandFailed(f"{failure} ({self._scene.line().strip()})")
            self._cluster.wait(LOOK_MS)
            self._look(now=True)

    def _pace(self, due_ms: int, *, since_ms: int) -> None:
        """Wait until `due_ms` after `since_ms`."""
        early_ms = due_ms - (self._env.now_ms() - since_ms)
        if early_ms > LOOK_MS:
            self._cluster.wait(early_ms)

    def _look(self, *, now: bool = False) -> None:
        """Read the offsets and sizes, and show them; at most once per LOOK_MS unless `now` is set."""
        elapsed_ms = self._env.now_ms() - self._start_ms
        if not now and elapsed_ms - self._shown_ms < LOOK_MS:
            return
        self._shown_ms = elapsed_ms
        first, local, tiered, end = (
            list_offsets(self._cluster, {(TOPIC, 0): spec})[TOPIC, 0].offset
            for spec in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST)
        )
        self._scene = replace(
            self._scene, elapsed_ms=elapsed_ms, log_start=first, local_start=local, tiered_to=tiered, end=end,
            local_bytes=_size(self._directory / "data" / f"{TOPIC}-0"), tier_bytes=_size(self._directory / "data-tier"),
        )  # fmt: skip
        self._shown.show(self._scene)


def record_value(number: int) -> bytes:
    """The value of a record: different for each record, the same in every run."""
    return hashlib.sha256(b"%d" % number).hexdigest().encode() * (VALUE_BYTES // 64)


def _size(directory: Path) -> int:
    """Bytes of all logs below a directory. The broker may delete files at the same time."""
    size = 0
    for path in directory.rglob("*.log"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size
