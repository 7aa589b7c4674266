"""Clients that make a broker use as much memory as they can: `python -m compat.torture.attack_memory --seed 1`.

The attacks, each a function below, run concurrently against one real broker for --seconds:

    slow-readers  60 connections request as much as possible from the tier, and read nothing
    half-frames   25 connections announce 100 MiB, and send 40 MB of it
    bombs         16 connections repeatedly send zstd batches of 2 kB that decompress to 60 MiB
    sessions      one connection opens 1,000 fetch sessions of 1,000 partitions
    joins         one connection requests 10,000 member ids with client ids of 30 kB

A bystander in its own process produces batches of 100 B, 16 KiB and 1 MiB and fetches from the local log and from the
tier. The last line reports the largest size of the broker (with its worker processes, and without), and the longest
wait of the bystander. The exit status is 1 if one of the bounds is exceeded.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import zstandard

from compat.bench.frames import batch_of_size, check_produced, fetch_frame, produce_frame, receive
from compat.brokers import address_of
from compat.oracle.batches import ZSTD, Batch, Item
from compat.oracle.schema import encode_request
from compat.tiered.site import EARLIEST_LOCAL, HURRIED, Site

MIB = 1 << 20
READERS, HOGS, BOMBERS = 60, 25, 16
ANNOUNCED_BYTES, SENT_BYTES, UNPACKED_BYTES = 100 * MIB, 40_000_000, 60 * MIB
SESSIONS, SESSION_PARTITIONS = 1_000, 1_000
JOINS, CLIENT_ID_BYTES = 10_000, 30_000
TIERED, BYSTANDERS = "tiered", "bystander"
TIERED_BYTES = 256 * MIB
BATCH = MIB - 4_000
RECORDS = BATCH // 1_016
"""Records in a batch of the tiered topic: see `batch_of_size`."""
PRODUCED_SIZES = (100, 16 << 10, MIB - 200)


class Attack:
    """Shared by all attacks: the broker's address, and when to stop."""

    def __init__(self, bootstrap_servers: str, *, seed: int) -> None:
        self.address = address_of(bootstrap_servers)
        self.random = random.Random(seed)
        self.stop = threading.Event()

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """A connection that ends soon after `stop`."""
        with socket.create_connection(self.address, timeout=1.0) as connection:
            yield connection

    def keep_open(self, send: bytes) -> None:
        """Send as much as the broker accepts and never read; reconnect if the broker closes the connection."""
        while not self.stop.is_set():
            with contextlib.suppress(OSError), self.connected() as connection:
                rest = memoryview(send)
                while not self.stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        if rest:
                            rest = rest[connection.send(rest) :]
                            continue
                        connection.recv(0)
                        if connection.send(b"", socket.MSG_DONTWAIT) == 0 and _is_closed(connection):
                            break
                        self.stop.wait(0.2)
            self.stop.wait(0.05)


def _is_closed(connection: socket.socket) -> bool:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return info[0] != 1  # not ESTABLISHED


def slow_readers(attack: Attack) -> list[Callable[[], None]]:
    """Large replies from the tier that are not read. One connection reads ahead, so that much of the tier is in
    memory.
    """
    frame = fetch_frame(TIERED, 0, 0, 64 * MIB)

    def read_on() -> None:
        with contextlib.suppress(OSError, AssertionError), attack.connected() as connection:
            connection.settimeout(30)
            while not attack.stop.is_set():
                for offset in range(0, 16 * RECORDS, RECORDS):
                    connection.sendall(fetch_frame(TIERED, 0, offset, 2 * MIB))
                    receive(connection)

    def take_nothing() -> None:
        attack.stop.wait(1.0 + attack.random.random())
        attack.keep_open(frame)

    return [read_on, *[take_nothing] * READERS]


def half_frames(attack: Attack) -> list[Callable[[], None]]:
    """Requests that never end."""
    head = produce_frame(BYSTANDERS, batch_of_size(100))[4:]
    frame = struct.pack(">i", ANNOUNCED_BYTES) + head + bytes(SENT_BYTES)
    return [partial(attack.keep_open, frame) for _ in range(HOGS)]


def bombs(attack: Attack) -> list[Callable[[], None]]:
    """Batches that are small on the wire."""
    record = Item(bytes(UNPACKED_BYTES)).encode(0)
    packed = zstandard.ZstdCompressor(level=3).compress(record)
    now_ms = int(time.time() * 1000)
    frame = produce_frame(BYSTANDERS, Batch([Item()], codec=ZSTD, body=packed, base_timestamp=now_ms).encode())

    def throw() -> None:
        while not attack.stop.is_set():
            with contextlib.suppress(OSError, AssertionError), attack.connected() as connection:
                connection.settimeout(30)
                while not attack.stop.is_set():
                    connection.sendall(frame)
                    receive(connection)

    return [throw] * BOMBERS


def sessions(attack: Attack) -> list[Callable[[], None]]:
    """Fetch sessions over partitions that do not exist."""
    wanted = [
        {"Partition": index, "FetchOffset": 0, "PartitionMaxBytes": MIB} for index in range(100_000, 101_000)
    ][:SESSION_PARTITIONS]  # fmt: skip
    message = {"ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "SessionEpoch": 0}
    frame = encode_request("Fetch", 11, {**message, "Topics": [{"Topic": BYSTANDERS, "Partitions": wanted}]})

    def open_them() -> None:
        with contextlib.suppress(OSError, AssertionError), attack.connected() as connection:
            connection.settimeout(30)
            for _ in range(SESSIONS):
                if attack.stop.is_set():
                    return
                connection.sendall(frame)
                receive(connection)
        attack.stop.wait()

    return [open_them]


def joins(attack: Attack) -> list[Callable[[], None]]:
    """Member ids that are never used."""
    protocols = [{"Name": "range", "Metadata": b""}]
    message = {
        "GroupId": "attacked",
        "SessionTimeoutMs": 1_800_000,
        "RebalanceTimeoutMs": 60_000,
        "MemberId": "",
        "ProtocolType": "consumer",
        "Protocols": protocols,
    }
    frame = encode_request("JoinGroup", 5, message, client_id="x" * CLIENT_ID_BYTES)
    find = encode_request("FindCoordinator", 2, {"Key": "attacked", "KeyType": 0})

    def ask() -> None:
        with contextlib.suppress(OSError, AssertionError), attack.connected() as connection:
            connection.settimeout(30)
            connection.sendall(find)
            receive(connection)
            for _ in range(JOINS):
                if attack.stop.is_set():
                    return
                connection.sendall(frame)
                receive(connection)
        attack.stop.wait()

    return [ask]


ATTACKS = {
    "slow-readers": slow_readers,
    "half-frames": half_frames,
    "bombs": bombs,
    "sessions": sessions,
    "joins": joins,
}


def stand_by(bootstrap_servers: str, seconds: float, results: Connection) -> None:
    """Produce and fetch for this time; send the number of requests by kind, and the longest wait in seconds."""
    address = address_of(bootstrap_servers)
    worst: dict[str, tuple[int, float]] = {}
    produced = {size: produce_frame(BYSTANDERS, batch_of_size(size)) for size in PRODUCED_SIZES}
    fetched = {"fetch": fetch_frame(BYSTANDERS, 0, 0, MIB), "tier": fetch_frame(TIERED, 0, 7, 64 << 10)}

    def ask(kind: str, frame: bytes, check: Callable[[bytes], None]) -> None:
        began = time.monotonic()
        connection.sendall(frame)
        check(receive(connection))
        count, longest = worst.get(kind, (0, 0.0))
        worst[kind] = count + 1, max(longest, time.monotonic() - began)

    ends = time.monotonic() + seconds
    with socket.create_connection(address, timeout=60) as connection:
        while time.monotonic() < ends:
            for size, frame in produced.items():
                ask(f"produce-{size}", frame, check_produced)
            for kind, frame in fetched.items():
                ask(kind, frame, lambda _: None)
            time.sleep(0.01)
    results.send(worst)


class Sampler:
    """The resident size of a process, and of it with all its children, sampled until `stop`; in bytes."""

    def __init__(self, pid: int) -> None:
        self.alone = self.together = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            alone = resident(self._pid)
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
            self.alone = max(self.alone, alone)
            self.together = max(self.together, alone + sum(resident(int(child)) for child in children))


def resident(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


def fill(site: Site) -> None:
    """Write the topic whose records are in the tier, and wait until they are only there."""
    settings = {"remote.storage.enable": "true", "segment.bytes": str(16 * MIB), "local.retention.bytes": "1"}
    site.create(TIERED, settings)
    site.create(BYSTANDERS, {"retention.bytes": str(64 * MIB), "segment.bytes": str(16 * MIB)})
    batch = batch_of_size(BATCH)
    site.produce(TIERED, [batch] * (TIERED_BYTES // len(batch)))
    deadline = time.monotonic() + 30
    while len(site.local_segments(TIERED)) > 1:
        assert time.monotonic() < deadline, site.offset(TIERED, EARLIEST_LOCAL)
        time.sleep(0.1)


Seen = dict[str, tuple[int, float]]
"""The bystander's results by kind of request: their number, and the longest wait in seconds."""


def run(site: Site, names: list[str], *, seed: int, seconds: float) -> tuple[Sampler, int, Seen]:
    """Run attacks and the bystander; returns the sizes, the size before, and the bystander's results."""
    attack = Attack(site.address, seed=seed)
    actions = [action for name in names for action in ATTACKS[name](attack)]
    pid = site.broker.pid
    receiving, sending = multiprocessing.Pipe(duplex=False)
    bystander = multiprocessing.get_context("spawn").Process(
        target=stand_by, args=(site.address, seconds + 1.0, sending), daemon=True
    )
    bystander.start()
    before = resident(pid)
    sampler = Sampler(pid)
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    time.sleep(1.0)
    for thread in threads:
        thread.start()
    seen = receiving.recv() if receiving.poll(seconds + 20) else {}
    sampler.stop()
    attack.stop.set()
    bystander.kill()
    for thread in threads:
        thread.join(5)
    return sampler, before, seen


def main() -> int:
    """Attack; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m compat.torture.attack_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(ATTACKS), action="append", help="these attacks instead of all")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--limit-mib", type=int, default=300, help="bound on the size of the broker")
    parser.add_argument("--longest-ms", type=int, default=1_000, help="bound on the wait of the bystander")
    options = parser.parse_args()
    names = options.only or list(ATTACKS)
    with tempfile.TemporaryDirectory(prefix="attack-memory-") as scratch:
        site = Site.in_directory(Path(scratch), is_kafka=False, settings=HURRIED)
        site.broker.start()
        try:
            fill(site)
            sampler, before, seen = run(site, names, seed=options.seed, seconds=options.seconds)
            time.sleep(1)
            after = resident(site.broker.pid)
            is_alive = site.broker.process is not None and site.broker.process.poll() is None
        finally:
            site.broker.kill()
        if not is_alive or not seen:
            print(site.broker.log_tail())
    for kind, (count, longest) in seen.items():
        print(f"{kind}: {count} times, at most {longest * 1000:.0f} ms")
    longest_ms = max((longest * 1000 for _, longest in seen.values()), default=float("inf"))
    passed = is_alive and bool(seen) and sampler.alone <= options.limit_mib * MIB and longest_ms <= options.longest_ms
    print(
        f"{'passed' if passed else 'FAILED'}: {before / MIB:.0f} MiB before, {sampler.alone / MIB:.0f} MiB at most "
        f"({sampler.together / MIB:.0f} with workers), {after / MIB:.0f} MiB after; "
        f"{sum(count for count, _ in seen.values())} requests of a bystander, the longest {longest_ms:.0f} ms"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
