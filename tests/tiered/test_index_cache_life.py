"""Random lives of the index cache: whatever is damaged, lost or removed, every answer is right."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from kbroker.testing.disk import Fault
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.draws import Draws
from kbroker.tiered.api import RemoteResourceNotFound
from kbroker.tiered.index_files import SUFFIXES
from kbroker.tiered.layout import MANIFEST, object_name
from tests.tiered.cached_indexes import World, id_of, is_right

STEPS = 120
SEGMENTS = 5


class Life:
    """Random steps; only the step `ask` checks the answers."""

    def __init__(self, seed: int) -> None:
        self.draws = Draws("index cache", seed)
        self.world = World(segments=SEGMENTS, batches=14)
        self.world.ask(0)
        self.entry_bytes = self.world.cache.size_bytes
        self.bound = 3 * self.entry_bytes + 60
        self.restart()
        self.deleted: set[int] = set()
        for path in ("/", "/log", "/data"):
            self.world.disk.sync_directory(path)

    def step(self) -> str:
        steps = [self.ask] * 6 + [
            self.damage_cache,
            self.damage_cache,
            self.damage_tier,
            self.lose_manifest,
            self.restart,
            self.lose_power,
            self.fail_disk,
            self.resize,
            self.expire,
            self.remove,
        ]
        chosen = self.draws.choice(steps)
        chosen()
        self.check()
        return chosen.__name__

    def number(self) -> int:
        return self.draws.below(SEGMENTS)

    def ask(self) -> None:
        number = self.number()
        segment = self.world.segments[number]
        ask = self.world.cache.rebuild if self.draws.chance(0.1) else self.world.cache.indexes
        if number not in self.deleted:
            assert is_right(ask(segment.finished), segment)
            return
        with suppress(RemoteResourceNotFound):
            # A power loss may restore files that were removed together with the segment.
            assert is_right(ask(segment.finished), segment)

    def damage_cache(self) -> None:
        names = self.world.files()
        if names:
            self._damage(f"{self.world.cache.directory}/{self.draws.choice(names)}")

    def damage_tier(self) -> None:
        """The data from which a segment's indexes are rebuilt are not damaged."""
        number = self.number()
        if number not in self.deleted:
            kind = self.draws.choice(["index", "timeindex"])
            path = f"/tier/{object_name(self.world.segments[number].metadata, kind)}"
            if self.world.disk.exists(path):
                self._damage(path)

    def lose_manifest(self) -> None:
        """Only for a segment with intact indexes: without a manifest a well-formed wrong index is not detectable."""
        number = self.number()
        path = f"/tier/{object_name(self.world.segments[number].metadata, MANIFEST)}"
        if self.world.disk.exists(path):
            self._damage(path, harmless=True)

    def _damage(self, path: str, *, harmless: bool = False) -> None:
        disk = self.world.disk
        size = disk.size(path)
        kind = "grow" if harmless or not size else self.draws.choice(["cut", "flip", "grow", "remove"])
        if kind == "remove":
            disk.unlink(path)
        elif kind == "cut":
            disk.open(path).truncate(self.draws.below(size))
        elif kind == "grow":
            disk.open(path).pwrite(b"\n", size)
        else:
            at = self.draws.below(size)
            file = disk.open(path)
            file.pwrite(bytes([file.pread(1, at)[0] ^ (1 << self.draws.below(8))]), at)

    def restart(self) -> None:
        self.world.cache.write_down()
        self.world.cache = self.world.start(
            max_bytes=self.bound, resident_bytes=self.draws.choice([0, self.entry_bytes, 1 << 20])
        )

    def lose_power(self) -> None:
        """The tier and the log are durable; the cache never is."""
        disk = self.world.disk
        loss = self.draws.choice(list(Loss))
        for path, data in disk.image().items():
            if not path.startswith("/data"):
                if data is None:
                    disk.sync_directory(path)
                else:
                    disk.open(path).sync()
        self.world.disk = self.world.store._disk = disk.crash(loss, seed=self.draws.below(1 << 30))
        self.restart()

    def fail_disk(self) -> None:
        """Fail a few operations in the cache's directory, or reads there."""
        name = self.draws.choice(["create", "write", "rename", "unlink", "read", "list", "open"])
        error = self.draws.choice([errno.EIO, errno.ENOSPC])
        fault = Fault(error, name=name, path="*remote-log-index-cache*", skip=self.draws.below(4), times=3)
        self.world.disk.inject(fault)
        for _ in range(3):
            self.ask()
        if self.draws.chance(0.5):
            self.restart()
            self.ask()
        self.world.disk.heal()
        self.restart()  # the next broker process finds a file that could not be removed

    def resize(self) -> None:
        self.bound = self.draws.below(5) * self.entry_bytes + 60
        self.world.cache.resize(self.bound)

    def expire(self) -> None:
        self.world.now_ms += self.draws.below(20 * 60_000)
        self.world.cache.expire()

    def remove(self) -> None:
        number = self.number()
        segment = self.world.segments[number]
        self.world.cache.remove(id_of(segment))
        if len(self.deleted) < SEGMENTS - 2 and self.draws.chance(0.3):
            self.world.store.delete_log_segment_data(segment.finished)
            self.deleted.add(number)

    def check(self) -> None:
        """The size limit holds, and the directory has only files of the table."""
        cache = self.world.cache
        assert cache.size_bytes <= self.bound
        if len(cache):
            assert len(self.world.files()) <= len(cache) * len(SUFFIXES)


@pytest.mark.parametrize("seed", range(40))
def test_answers_are_right_after_any_damage_of_the_files(seed: int) -> None:
    """M13, KAFKA-15511, KAFKA-15481."""
    life = Life(seed)
    steps = [life.step() for _ in range(STEPS)]
    assert len(set(steps)) >= 8
    for number in range(SEGMENTS):
        if number not in life.deleted:
            assert is_right(life.world.ask(number), life.world.segments[number])
