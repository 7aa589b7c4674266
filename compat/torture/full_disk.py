"""A real disk without a free byte: topics are deleted, the broker is stopped, killed and restarted, groups continue.

    python -m compat.torture.full_disk                      a tmpfs of 128 MiB; needs the right to mount
    python -m compat.torture.full_disk --file-system ext4   an ext4 image on a loop device

A filler file takes all free space, and takes it again after every few deletions. Exit status 1 with a line for each
failure.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat.brokers import KbrokerProcess, end

TOPICS = 300
DISK_BYTES = 128 << 20
REFILL_EVERY = 25
KEPT = "kept"
RECORDS = 50
BETWEEN_THE_FLOORS = 16 << 20
LOOK_S = 1.5
"""The broker checks the free space once a second."""


@contextmanager
def small_disk(file_system: str) -> Iterator[Path]:
    """Mount a separate file system."""
    with tempfile.TemporaryDirectory(prefix="kbroker-disk-") as directory:
        place, image = Path(directory, "mounted"), Path(directory, "image")
        place.mkdir()
        if file_system == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place)]
        else:
            image.touch()
            os.truncate(image, DISK_BYTES)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
            command = ["mount", "-o", "loop", str(image), str(place)]
        subprocess.run(command, check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> None:
    """Take all free space, down to the last byte."""
    size = 1 << 20
    with (disk / "filler").open("ab", buffering=0) as filler:
        while size:
            try:
                filler.write(bytes(size))
            except OSError:
                size //= 2
    os.sync()


def leave_free(disk: Path, size: int) -> None:
    """Free this many bytes."""
    os.truncate(disk / "filler", max(0, (disk / "filler").stat().st_size - size))


def torture(disk: Path) -> list[str]:
    """Returns the failures."""
    found: list[str] = []
    broker = KbrokerProcess(disk)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        names = [f"t{number}" for number in range(TOPICS)]
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in (KEPT, *names)]).values():
            future.result(30)
        found += produce(broker)
        found += delete_while_full(broker, disk, admin, names)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            fill(disk)
            assert broker.process is not None
            status = end(broker.process, signal_number=number)
            if status != (0 if number == signal.SIGTERM else -number):
                found.append(f"signal {number} on a full disk: exit status {status}")
            fill(disk)
            broker.start()
        left = set(AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics)
        if left != {KEPT}:
            found.append(f"topics after the last start: {sorted(left)[:5]}")
        leave_free(disk, BETWEEN_THE_FLOORS)
        time.sleep(LOOK_S)
        found += consume(broker)
        if not produce(broker):
            found.append("records are accepted below kbroker.min.free.bytes")
        (disk / "filler").unlink()
        time.sleep(LOOK_S)
        found += produce(broker)
    finally:
        if broker.process is not None:
            end(broker.process)
    return found


def delete_while_full(broker: KbrokerProcess, disk: Path, admin: AdminClient, names: list[str]) -> list[str]:
    """Delete the topics one by one."""
    began = time.monotonic()
    for number, name in enumerate(names):
        if number % REFILL_EVERY == 0:
            fill(disk)
        try:
            admin.delete_topics([name])[name].result(10)
        except KafkaException as error:
            return [f"{name} cannot be deleted: {error}; {broker.log_tail()}"]
    print(f"{len(names)} topics deleted on a full disk in {time.monotonic() - began:.1f} s")
    return []


def produce(broker: KbrokerProcess) -> list[str]:
    """Produce some records, all of which must be acknowledged."""
    failed: list[str] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 3_000})
    for number in range(RECORDS):
        producer.produce(
            KEPT, b"%d" % number, on_delivery=lambda error, _: failed.append(str(error)) if error is not None else None
        )
    producer.flush(10)
    return failed[:1]


def consume(broker: KbrokerProcess) -> list[str]:
    """Read the records as a new group, and commit."""
    settings = {"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    consumer.subscribe([KEPT])
    messages = consumer.consume(RECORDS, timeout=20)
    try:
        if len(messages) != RECORDS:
            return [f"a group read {len(messages)} of {RECORDS} records below the floor of producers"]
        with suppress(KafkaException):
            consumer.commit(asynchronous=False)
            return []
        return ["a group cannot commit below the floor of producers"]
    finally:
        consumer.close()


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file-system", choices=["tmpfs", "ext4"], default="tmpfs")
    options = parser.parse_args()
    with small_disk(options.file_system) as disk:
        found = torture(disk)
    for line in found:
        print(line, file=sys.stderr)
    print("nothing found" if not found else f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
