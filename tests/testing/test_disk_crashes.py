"""The losses of the simulated disk in a crash, and the limits of those losses; faults and kills hit their targets."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.testing.disk import Crashed, Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import POWER_LOSSES, SECTOR_BYTES, Loss

SEEDS = range(60)


def settled(contents: bytes = b"") -> SimulatedDisk:
    """A disk with /d/f, all of it durable."""
    disk = SimulatedDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    file = disk.open("/d/f", create=True)
    file.pwrite(contents, 0)
    file.sync()
    disk.sync_directory("/d")
    return disk


def after(disk: SimulatedDisk, loss: Loss, path: str = "/d/f") -> set[bytes | None]:
    """Every content (None: no such file) that the path can have after crashes of this kind."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        survivor = disk.crash(loss, seed=seed)
        found.add(survivor.open(path).pread(1 << 20, 0) if survivor.exists(path) else None)
    return found


def test_process_death_loses_nothing_and_syncs_nothing() -> None:
    disk = settled(b"old")
    disk.open("/d/f").pwrite(b"new!", 0)
    disk.open("/d/g", create=True).pwrite(b"g", 0)
    survivor = disk.crash(Loss.PROCESS_DEATH)
    assert survivor.image() == disk.image()
    assert after(survivor, Loss.ONLY_SYNCED) == {b"old"}
    assert after(survivor, Loss.ONLY_SYNCED, "/d/g") == {None}


@pytest.mark.parametrize("loss", POWER_LOSSES)
def test_synced_data_survives_every_power_loss(loss: Loss) -> None:
    disk = settled(bytes(range(200)) * 10)
    assert after(disk, loss) == {bytes(range(200)) * 10}


def test_a_crash_leaves_the_crashed_disk_unchanged() -> None:
    disk = settled(b"old")
    disk.open("/d/f").pwrite(b"new", 0)
    disk.crash(Loss.ONLY_SYNCED).open("/d/f").pwrite(b"other", 0)
    assert disk.open("/d/f").pread(9, 0) == b"new"
    assert after(disk, Loss.ONLY_SYNCED) == {b"old"}


def test_a_synced_file_in_an_unsynced_directory_may_vanish() -> None:
    disk = settled()
    file = disk.open("/d/g", create=True)
    file.pwrite(b"g", 0)
    file.sync()
    assert after(disk, Loss.ONLY_SYNCED, "/d/g") == {None}
    assert after(disk, Loss.NAMES_LOST, "/d/g") == {None, b"g"}
    disk.sync_directory("/d")
    assert after(disk, Loss.NAMES_LOST, "/d/g") == {b"g"}


def test_a_rename_is_atomic_until_the_directory_is_synced() -> None:
    disk = settled(b"old")
    file = disk.open("/d/f.tmp", create=True)
    file.pwrite(b"new", 0)
    file.sync()
    disk.rename("/d/f.tmp", "/d/f")
    assert after(disk, Loss.ONLY_SYNCED) == {b"old"}
    assert after(disk, Loss.NAMES_LOST) == {b"old", b"new"}
    assert after(disk, Loss.CONTENTS_LOST) == {b"new"}
    disk.sync_directory("/d")
    for loss in POWER_LOSSES:
        assert after(disk, loss) == {b"new"}


def test_a_rename_before_a_sync_can_leave_an_empty_file() -> None:
    disk = settled(b"old")
    disk.open("/d/f.tmp", create=True).pwrite(b"new", 0)
    disk.rename("/d/f.tmp", "/d/f")
    assert after(disk, Loss.CONTENTS_LOST) == {b"", b"\0\0\0"}


def test_a_prefix_of_writes_survives() -> None:
    disk = settled()
    file = disk.open("/d/f")
    for at, byte in enumerate(b"abcd"):
        file.pwrite(bytes([byte]), at)
    assert after(disk, Loss.PREFIX) == {b"", b"a", b"ab", b"abc", b"abcd"}
    assert after(disk, Loss.PREFIXES) == {b"", b"a", b"ab", b"abc", b"abcd"}


def test_prefix_keeps_the_order_between_files_and_prefixes_does_not() -> None:
    disk = settled()
    other = disk.open("/d/g", create=True)
    disk.sync_directory("/d")
    disk.open("/d/f").pwrite(b"first", 0)
    other.pwrite(b"second", 0)

    def second_alone(loss: Loss) -> bool:
        survivors = [disk.crash(loss, seed=seed) for seed in SEEDS]
        return any(survivor.size("/d/g") and not survivor.size("/d/f") for survivor in survivors)

    assert not second_alone(Loss.PREFIX)
    assert second_alone(Loss.PREFIXES)


def test_the_last_write_is_torn_anywhere() -> None:
    disk = settled()
    file = disk.open("/d/f")
    file.pwrite(b"0123", 0)
    file.pwrite(b"4567", 4)
    assert after(disk, Loss.TORN) >= {b"01234567"[:size] for size in (4, 5, 6, 7)}
    assert all(b"01234567".startswith(found or b"") for found in after(disk, Loss.TORN))


def test_sectors_are_lost_independently() -> None:
    disk = settled(b"o" * SECTOR_BYTES * 2)
    disk.open("/d/f").pwrite(b"n" * SECTOR_BYTES * 3, 0)
    kinds = {
        tuple((found or b"")[at : at + 1] for at in range(0, 3 * SECTOR_BYTES, SECTOR_BYTES))
        for found in after(disk, Loss.SECTORS)
    }
    assert (b"o", b"n", b"n") in kinds
    assert (b"n", b"o", b"n") in kinds
    assert (b"o", b"o", b"") in kinds
    assert (b"o", b"o", b"\0") in kinds


def test_writes_within_one_sector_are_never_lost_out_of_order() -> None:
    disk = settled()
    file = disk.open("/d/f")
    for at, byte in enumerate(b"abcdef"):
        file.pwrite(bytes([byte]), at)
    found = {(contents or b"").rstrip(b"\0") for contents in after(disk, Loss.SECTORS)}
    assert found == {b"abcdef"[:size] for size in range(7)}


def test_a_truncation_is_durable_only_with_a_sync() -> None:
    disk = settled(b"abcdef")
    file = disk.open("/d/f")
    file.truncate(2)
    assert after(disk, Loss.ONLY_SYNCED) == {b"abcdef"}
    assert after(disk, Loss.PREFIX) == {b"abcdef", b"ab"}
    file.sync()
    assert after(disk, Loss.PREFIX) == {b"ab"}


def test_syncing_a_directory_keeps_the_dependencies_of_its_names() -> None:
    disk = settled()
    disk.make_directory("/e")
    disk.sync_directory("/")
    disk.open("/e/new", create=True).sync()
    disk.rename("/e/new", "/d/new")
    disk.sync_directory("/d")
    survivor = disk.crash(Loss.ONLY_SYNCED)
    assert survivor.list("/d") == ["f", "new"]
    assert survivor.list("/e") == []


def test_d8_a_failed_sync_loses_readable_bytes_permanently() -> None:
    disk = settled(b"old")
    file = disk.open("/d/f")
    file.pwrite(b"new", 0)
    disk.inject(Fault(errno.EIO, name="sync"))
    with pytest.raises(OSError) as raised:
        file.sync()
    assert raised.value.errno == errno.EIO
    file.sync()
    assert file.pread(3, 0) == b"new"
    assert after(disk, Loss.ONLY_SYNCED) == {b"old"}


def test_d9_a_full_disk_writes_what_fits_and_then_fails() -> None:
    disk = SimulatedDisk(capacity_bytes=5)
    file = disk.open("/f", create=True)
    file.pwrite(b"abc", 0)
    assert disk.free_bytes("/") == 2
    with pytest.raises(OSError) as raised:
        file.pwrite(b"defg", 3)
    assert raised.value.errno == errno.ENOSPC
    assert file.pread(9, 0) == b"abcde"
    disk.heal()
    file.pwrite(b"defg", 3)
    assert file.pread(9, 0) == b"abcdefg"


def test_a_short_write_lands_in_part() -> None:
    disk = settled()
    disk.inject(Fault(errno.EIO, name="write", path="*/f", written=2))
    file = disk.open("/d/f")
    with pytest.raises(OSError):
        file.pwrite(b"abcd", 0)
    assert file.pread(9, 0) == b"ab"


def test_faults_can_skip_repeat_and_affect_reads() -> None:
    disk = settled(b"abc")
    file = disk.open("/d/f")
    disk.inject(Fault(errno.EIO, name="read", skip=1, times=2))
    assert file.pread(1, 0) == b"a"
    for _ in range(2):
        with pytest.raises(OSError):
            file.pread(1, 0)
    assert file.pread(1, 0) == b"a"


def workload(disk: SimulatedDisk) -> None:
    """Eight operations."""
    file = disk.open("/a", create=True)
    file.pwrite(b"0123456789", 0)
    file.truncate(8)
    file.sync()
    disk.rename("/a", "/b")
    disk.sync_directory("/")
    file.pwrite(b"abcdefghij", 8)
    disk.unlink("/b")


def test_the_observer_sees_every_operation_before_it_happens() -> None:
    disk = SimulatedDisk()
    seen: list[tuple[str, str]] = []
    disk.observer = lambda operation: seen.append((operation.name, operation.path))
    workload(disk)
    assert disk.operations == 8
    assert seen == [
        ("create", "/a"), ("write", "/a"), ("truncate", "/a"), ("sync", "/a"),
        ("rename", "/a"), ("sync_directory", "/"), ("write", "/a"), ("unlink", "/b"),
    ]  # fmt: skip


@pytest.mark.parametrize("done", [0.0, 0.5])
def test_a_kill_equals_a_crash_by_an_observer(done: float) -> None:
    images: list[dict[str, bytes | None]] = []
    watched = SimulatedDisk()

    def crash(operation: Operation) -> None:
        images.append(watched.crash(Loss.PROCESS_DEATH, during=operation, done=done).image())

    watched.observer = crash
    workload(watched)
    for number, image in enumerate(images):
        disk = SimulatedDisk()
        disk.kill_at(number, done=done)
        with pytest.raises(Crashed):
            workload(disk)
        assert disk.crash(Loss.PROCESS_DEATH).image() == image, f"operation {number}"
    assert images[6] == ({"/": None, "/b": b"01234567abcde"} if done else {"/": None, "/b": b"01234567"})


def test_no_handler_of_a_dying_process_can_change_the_disk() -> None:
    disk = settled(b"old")
    file = disk.open("/d/f")
    disk.kill_at(disk.operations)

    def handle_errors() -> None:
        try:
            file.pwrite(b"new", 0)
        except Exception:  # noqa: BLE001 - the broadest handler that our code could have
            file.truncate(1)
        finally:
            file.truncate(0)

    with pytest.raises(Crashed):
        handle_errors()
    for attempt in (file.sync, file.size, lambda: disk.open("/d/f"), lambda: disk.exists("/d"), disk.image):
        with pytest.raises(Crashed):
            attempt()
    assert after(disk, Loss.PROCESS_DEATH) == {b"old"}


def test_the_next_process_can_take_the_lock() -> None:
    disk = SimulatedDisk()
    disk.lock("/.lock")
    disk.crash(Loss.PROCESS_DEATH).lock("/.lock")


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["write", "truncate", "sync"]), st.integers(0, 1500), st.integers(0, 1500)),
        max_size=12,
    ),
    loss=st.sampled_from(POWER_LOSSES),
    seed=st.integers(0, 1 << 30),
)
def test_every_surviving_byte_was_written_there(steps: list[tuple[str, int, int]], loss: Loss, seed: int) -> None:
    disk = settled()
    file = disk.open("/d/f")
    versions: list[bytes] = [b""]
    for number, (step, at, size) in enumerate(steps):
        if step == "write":
            file.pwrite(bytes([number + 1]) * size, at)
        elif step == "truncate":
            file.truncate(at)
        else:
            file.sync()
            versions.clear()
        versions.append(file.pread(1 << 20, 0))
    survivor = disk.crash(loss, seed=seed).open("/d/f").pread(1 << 20, 0)
    assert len(survivor) <= max((at + size for _, at, size in steps), default=0)
    for at, byte in enumerate(survivor):
        assert byte == 0 or any(version[at : at + 1] == bytes([byte]) for version in versions), f"byte {at}"
    assert survivor == disk.crash(loss, seed=seed).open("/d/f").pread(1 << 20, 0)
