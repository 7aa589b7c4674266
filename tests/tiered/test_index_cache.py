"""The cache of remote indexes: `kbroker.tiered.index_cache`."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.storage.index import OFFSET_ENTRY
from kbroker.testing.disk import Fault, Operation, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.remote_segments import write_segment
from kbroker.tiered.api import (
    IndexType,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.index_cache import DEFAULT_TTL_MS
from kbroker.tiered.index_files import SUFFIXES
from kbroker.tiered.layout import MANIFEST, object_name
from tests.tiered.cached_indexes import World, flipped, id_of, is_right, name_of

# --- lookups ----------------------------------------------------------------------------------------------------------


def test_indexes_are_fetched_once_and_stored_under_kafkas_names() -> None:
    world = World(segments=2)
    assert is_right(world.ask(), world.segments[0])
    assert world.files() == world.names(0)
    data = world.disk.open(world.path(".timeindex")).pread(1 << 20, 0)
    assert data == world.segments[0].indexes[IndexType.TIMESTAMP]
    assert world.disk.size(world.path(".txnindex")) == 0
    assert is_right(world.ask(), world.segments[0])
    assert world.store.asked == {IndexType.OFFSET: 1, IndexType.TIMESTAMP: 1}


def test_the_directory_is_created_for_the_first_index() -> None:
    world = World()
    world.cache.remove(id_of(world.segments[0]))
    world.cache.expire()
    assert not world.disk.exists(world.cache.directory)


def test_a_restart_finds_the_cached_indexes() -> None:
    world = World(segments=2)
    world.ask(0), world.ask(1)
    world.cache = world.start()
    world.store.unwell = RetriableRemoteStorageError("the tier is down")
    assert is_right(world.ask(0), world.segments[0])
    assert is_right(world.ask(1), world.segments[1])
    world.cache.expire()
    assert len(world.cache) == 2
    assert world.cache.size_bytes == sum(world.disk.size(f"{world.cache.directory}/{name}") for name in world.files())


def test_the_directory_is_not_listed_if_nothing_is_to_be_written() -> None:
    """A broker that stops soon after its start would otherwise wait for this."""
    world = World()
    world.ask()
    world.cache = world.start()
    world.disk.inject(Fault(errno.EIO, name="list", path="*remote-log-index-cache*"))
    world.cache.write_down()
    assert world.reports == []


def test_a_restart_removes_incomplete_entries_but_no_foreign_files() -> None:
    world = World(segments=3)
    world.ask(0), world.ask(1), world.ask(2)
    stem = name_of(world.segments[0])
    for name in (f"{stem}.index.7.tmp", "5_x.index.deleted", "9_nothing.tmp"):
        world.disk.open(f"{world.cache.directory}/{name}", create=True)
    world.disk.open(f"{world.cache.directory}/notes.txt", create=True)
    world.disk.unlink(world.path(".txnindex", 1))
    world.disk.unlink(world.path(".checksums", 2))
    world.cache = world.start()
    assert is_right(world.ask(1), world.segments[1])
    assert world.files() == sorted([*world.names(0, 1), "notes.txt"])


def test_hot_indexes_are_in_memory() -> None:
    world = World()
    assert world.cache.resident(id_of(world.segments[0])) is None
    found = world.ask()
    world.disk.inject(Fault(errno.EIO, name="read", times=-1))
    assert world.cache.resident(id_of(world.segments[0])) is found


def test_memory_has_its_own_limit() -> None:
    world = World(segments=3)
    world.cache = world.start(resident_bytes=2 * world.ask(0).size_bytes - 1)
    for number in (0, 1, 2):
        world.ask(number)
    held = [number for number in (0, 1, 2) if world.cache.resident(id_of(world.segments[number])) is not None]
    assert held == [2]
    assert is_right(world.ask(0), world.segments[0])
    assert world.store.asked[IndexType.OFFSET] == 3  # the last time from disk


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_files_are_evicted_first() -> None:
    world = World(segments=4)
    world.ask(0)
    size = world.cache.size_bytes
    world.cache.resize(3 * size + 20)
    world.ask(1), world.ask(2), world.ask(0), world.ask(3)
    assert world.files() == world.names(0, 2, 3)
    world.cache.resize(2 * size + 20)
    assert world.files() == world.names(0, 3)
    assert world.cache.size_bytes <= 2 * size + 20
    assert world.cache.counters.evicted == 2
    assert is_right(world.ask(1), world.segments[1])


def test_a_restart_with_a_smaller_limit_evicts_files() -> None:
    world = World(segments=3)
    world.ask(0)
    size = world.cache.size_bytes
    world.ask(1), world.ask(2)
    world.cache = world.start(max_bytes=size + 20)
    world.cache.expire()
    world.ask(2)
    assert len(world.cache) == 1
    assert len(world.files()) == len(SUFFIXES)


def test_an_index_larger_than_the_cache_is_not_kept() -> None:
    world = World()
    world.cache = world.start(max_bytes=50)
    assert is_right(world.ask(), world.segments[0])
    assert world.files() == []


def test_unused_indexes_expire() -> None:
    world = World(segments=2)
    world.ask(0), world.ask(1)
    world.now_ms += DEFAULT_TTL_MS - 1
    world.ask(1)
    world.cache.expire()
    assert world.files() == world.names(0, 1)
    world.now_ms += 1
    world.cache.expire()
    assert world.files() == world.names(1)
    assert world.cache.resident(id_of(world.segments[0])) is None


def test_without_a_time_to_live_nothing_expires() -> None:
    world = World()
    world.cache = world.start(ttl_ms=-1)
    world.ask(0)
    world.now_ms += 10 * DEFAULT_TTL_MS
    world.cache.expire()
    assert world.files() == world.names(0)


# --- removing, and several at once ----------------------------------------------------------------------------------


def test_a_removed_segment_leaves_nothing() -> None:
    world = World(segments=2)
    world.ask(0), world.ask(1)
    world.cache.remove(id_of(world.segments[0]))
    assert world.files() == world.names(1)
    assert world.cache.resident(id_of(world.segments[0])) is None


def test_indexes_in_use_stay_valid_after_their_removal() -> None:
    """KAFKA-17184: a reader that held an entry failed when the entry was deleted."""
    world = World()
    held = world.ask()
    world.cache.remove(id_of(world.segments[0]))
    world.store.delete_log_segment_data(world.segments[0].finished)
    assert is_right(held, world.segments[0])
    assert held.position_for(world.segments[0].metadata.end_offset) > 0


# --- damage ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(suffix=st.sampled_from(SUFFIXES), data=st.data())
def test_a_damaged_file_is_dropped_and_fetched_again(suffix: str, data: st.DataObject) -> None:
    """KAFKA-15511: the damaged file stayed, and so did the error."""
    world = World()
    world.ask()
    size = world.disk.size(world.path(suffix))
    kinds = ["cut", "grown", "flipped"] if size else ["grown"]
    kind = data.draw(st.sampled_from(kinds))
    at = data.draw(st.integers(0, max(0, size - 1)))
    changes = {"cut": lambda old: old[:at], "grown": lambda old: old + b"\x01", "flipped": lambda old: flipped(old, at)}
    world.change(world.path(suffix), changes[kind])
    world.cache = world.start()
    for _ in range(2):
        assert is_right(world.ask(), world.segments[0])
    assert world.store.asked[IndexType.OFFSET] == 2
    assert world.cache.counters.damaged == 1
    assert "is dropped and fetched again" in world.reports[0]
    world.cache = world.start()
    assert is_right(world.ask(), world.segments[0])
    assert world.store.asked[IndexType.OFFSET] == 2


def test_a_file_that_cannot_be_read_is_fetched_again() -> None:
    world = World()
    world.ask()
    world.cache = world.start()
    world.disk.inject(Fault(errno.EIO, name="read", path="*remote-log-index-cache/*.timeindex"))
    assert is_right(world.ask(), world.segments[0])
    assert world.cache.counters.damaged == 1


@pytest.mark.parametrize("name", ["create", "write"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_reads_work_while_no_files_can_be_written(name: str, error: int, skip: int) -> None:
    world = World(segments=2)
    world.disk.inject(Fault(error, name=name, path="*remote-log-index-cache*", skip=skip, times=-1))
    assert is_right(world.ask(0), world.segments[0])
    assert world.files() == []
    assert world.cache.counters.write_error == 1
    world.disk.heal()
    assert is_right(world.ask(1), world.segments[1])
    assert world.files() == world.names(1)


@pytest.mark.parametrize("name", ["make_directory", "list"])
def test_reads_work_while_the_directory_cannot_be_used(name: str) -> None:
    world = World(segments=2)
    if name == "list":
        world.disk.make_directory(world.cache.directory)
    world.disk.inject(Fault(errno.EIO, name=name, path="*remote-log-index-cache*"))
    assert is_right(world.ask(0), world.segments[0])
    assert world.files() == []
    assert is_right(world.ask(1), world.segments[1])
    assert world.files() == world.names(1)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_m13_an_index_damaged_in_the_tier_is_rebuilt(kind: str, has_manifest: bool) -> None:
    world = World()
    world.change_in_tier(kind, lambda old: old[:12][::-1] + old[12:])
    if not has_manifest:
        world.disk.unlink(f"/tier/{object_name(world.segments[0].metadata, MANIFEST)}")
    assert is_right(world.ask(), world.segments[0])
    assert world.cache.counters.rebuilt == 1
    assert "is rebuilt from it" in world.reports[0]
    assert world.files() == world.names(0)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_m13_an_index_missing_in_the_tier_is_rebuilt(kind: str) -> None:
    world = World()
    world.disk.unlink(f"/tier/{object_name(world.segments[0].metadata, kind)}")
    assert is_right(world.ask(), world.segments[0])


def test_m13_damage_of_index_and_segment_is_an_uncached_error() -> None:
    world = World()
    good = world.segments[0].log
    world.change_in_tier("index", flipped)
    world.change_in_tier("log", lambda old: bytes(len(old)))
    for _ in range(2):
        with pytest.raises(RemoteStorageError):
            world.ask()
    world.change_in_tier("log", lambda _: good)
    assert is_right(world.ask(), world.segments[0])


def test_an_index_is_rebuilt_after_an_unexpected_plug_in_exception() -> None:
    world = World()
    world.store.unwell = ZeroDivisionError("not ours")
    assert is_right(world.ask(), world.segments[0])
    assert world.cache.counters.rebuilt == 1


def test_a_deleted_segment_is_not_found() -> None:
    world = World()
    world.store.delete_log_segment_data(world.segments[0].finished)
    with pytest.raises(RemoteResourceNotFound):
        world.ask()


def test_wrong_indexes_are_rebuilt_on_request() -> None:
    """A well-formed index with wrong entries: only a reader of the batch at its position can detect that."""
    world = World()
    world.disk.unlink(f"/tier/{object_name(world.segments[0].metadata, MANIFEST)}")

    def shift(old: bytes) -> bytes:
        return b"".join(OFFSET_ENTRY.pack(offset, position - 1) for offset, position in OFFSET_ENTRY.iter_unpack(old))

    world.change_in_tier("index", shift)
    assert not is_right(world.ask(), world.segments[0])
    assert is_right(world.cache.rebuild(world.segments[0].finished), world.segments[0])
    assert is_right(world.ask(), world.segments[0])
    world.cache.write_down()
    world.cache = world.start()
    assert is_right(world.ask(), world.segments[0])


# --- transactions ---------------------------------------------------------------------------------------------------


def test_an_empty_transaction_index_is_not_requested() -> None:
    """KAFKA-16780, KIP-1058."""
    world = World()
    assert world.ask().transactions == b""
    assert world.store.asked[IndexType.TRANSACTION] == 0


def test_a_missing_transaction_index_is_empty() -> None:
    """KAFKA-14993."""
    world = World()
    metadata = replace(world.segments[0].finished, txn_index_empty=False)
    assert world.cache.indexes(metadata).transactions == b""
    world.cache.write_down()
    assert world.store.asked[IndexType.TRANSACTION] == 1
    assert world.disk.size(world.path(".txnindex")) == 0


def test_a_damaged_transaction_index_is_an_error() -> None:
    world = World()
    entry = (0).to_bytes(2, "big") + b"".join(value.to_bytes(8, "big") for value in (9, 1, 5, 0))
    segment = write_segment("/log", disk=world.disk, batches=40, transaction_index=entry)
    world.store.copy_log_segment_data(segment.metadata, segment.data)
    assert world.cache.indexes(segment.finished).transactions == entry
    damaged = write_segment("/log", disk=world.disk, batches=40, transaction_index=entry[:-1])
    world.store.copy_log_segment_data(damaged.metadata, damaged.data)
    with pytest.raises(RemoteStorageError, match="transaction index"):
        world.cache.indexes(damaged.finished)


# --- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", list(Loss))
def test_answers_are_right_after_a_crash_at_any_operation(loss: Loss) -> None:
    """The cache does not sync its files: after a power loss the checksums have to detect the damage."""
    world = World(segments=3, batches=12)
    for node in (world.disk.image(), "/", "/log", "/data", "/tier"):
        if isinstance(node, str):
            world.disk.sync_directory(node)
    survivors: list[SimulatedDisk] = []

    def crash(operation: Operation) -> None:
        if "/remote-log-index-cache" in operation.path:
            survivors.append(world.disk.crash(loss, seed=operation.number, during=operation))

    world.disk.observer = crash
    world.ask(0)
    world.cache.resize(world.cache.size_bytes + 20)
    world.ask(1), world.ask(2), world.ask(0)
    world.cache.remove(id_of(world.segments[0]))
    assert len(survivors) > 30
    for at, survivor in enumerate(survivors):
        world.disk = survivor
        world.cache = world.start()
        if at % 2:
            world.cache.expire()
        for number in (1, 0, 2):
            assert is_right(world.ask(number), world.segments[number])
        sizes = [survivor.size(f"{world.cache.directory}/{name}") for name in world.files()]
        assert world.cache.size_bytes == sum(sizes)
