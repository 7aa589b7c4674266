"""The contents of a simulated disk: files and directories, each as the process sees it and as it is on the platter.

A file has its contents, a durable image, and the ordered writes and truncations that are not in the image yet. A
directory has its entries and the durable ones. The name changes in between are kept in one ordered list for the whole
disk, because a rename touches two directories and stays atomic.

`settle` is the loss of power: a `Draws` stream decides which of the unsynced changes reached the platter. The choices
are wider than those of a journaling file system with ordered data (names and contents are independent, sectors are
independent), and follow findings on real ones: Pillai et al., "All file systems are not created equal" (OSDI'14). Never
lost or torn are bytes for which `sync` returned, names for which `sync_directory` returned, and the atomicity of a
rename.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kbroker.testing.draws import Draws

SECTOR_BYTES = 512


class Loss(StrEnum):
    """The data that a crash loses."""

    PROCESS_DEATH = "process-death"
    """Nothing: every completed write is in the page cache, and stays there unsynced."""
    ONLY_SYNCED = "only-synced"
    """Everything that was not synced."""
    PREFIX = "prefix"
    """All changes after one point in time, both names and contents: an ordered file system."""
    PREFIXES = "prefixes"
    """Like PREFIX, with one point for each file and one for the names."""
    TORN = "torn"
    """Like PREFIX, and the last write that survives is incomplete."""
    SECTORS = "sectors"
    """Each 512-byte sector holds any of its versions since the last sync; names are kept or lost one by one."""
    NAMES_LOST = "names-lost"
    """All contents survive; creations, renames and removals are kept or lost one by one."""
    CONTENTS_LOST = "contents-lost"
    """All names survive, contents only as synced: the empty or zero-filled file after a rename without a sync."""


POWER_LOSSES = tuple(loss for loss in Loss if loss is not Loss.PROCESS_DEATH)


@dataclass(slots=True)
class Write:
    """One unsynced change of a file: bytes at a position, or with data None a truncation (or growth) to that size."""

    sequence: int
    position: int
    data: bytes | None


def apply_write(image: bytearray, position: int, data: bytes | None) -> None:
    """Apply a write or a truncation to an image as POSIX does: unwritten gaps are zeros."""
    if data is None:
        if position < len(image):
            del image[position:]
        else:
            image.extend(bytes(position - len(image)))
        return
    if position > len(image):
        image.extend(bytes(position - len(image)))
    image[position : position + len(data)] = data


@dataclass(slots=True, eq=False)
class FileNode:
    contents: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Write] = field(default_factory=list)
    modified_ms: int = 0

    def __deepcopy__(self, memo: object) -> FileNode:
        # A copy shares the entries of `unsynced`, which are never changed in place.
        return FileNode(bytearray(self.contents), bytearray(self.durable), list(self.unsynced), self.modified_ms)

    def write(self, sequence: int, position: int, data: bytes | None) -> None:
        apply_write(self.contents, position, data)
        self.unsynced.append(Write(sequence, position, data))

    def sync(self) -> None:
        for write in self.unsynced:
            apply_write(self.durable, write.position, write.data)
        self.unsynced.clear()

    def fail_sync(self) -> None:
        """A sync that reports an error: the kernel marks the pages clean, so no later sync will write them either.

        The process still reads the bytes from the cache. Rebello et al., "Can applications recover from fsync
        failures?" (ATC'20).
        """
        self.unsynced.clear()


@dataclass(slots=True, eq=False)
class DirectoryNode:
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    modified_ms: int = 0


Node = FileNode | DirectoryNode
NameChanges = list[tuple[DirectoryNode, str, Node | None]]
"""The directory, the name, and the node that it now refers to; None: no node."""


@dataclass(slots=True, eq=False)
class NameChange:
    """One unsynced, atomic change of names; None removes the name."""

    sequence: int
    changes: NameChanges

    def touches(self, directory: DirectoryNode) -> bool:
        return any(changed is directory for changed, _, _ in self.changes)

    def keys(self) -> set[tuple[int, str]]:
        return {(id(directory), name) for directory, name, _ in self.changes}


@dataclass(slots=True)
class Tree:
    """A disk's contents: the root, and the name changes that no `sync_directory` covered yet, oldest first."""

    root: DirectoryNode = field(default_factory=DirectoryNode)
    unsynced: list[NameChange] = field(default_factory=list)
    sequence: int = 0

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def rename(self, changes: NameChanges) -> None:
        """Change names for the process, and record the change as unsynced."""
        _apply_names(changes, durable=False)
        self.unsynced.append(NameChange(self.next_sequence(), changes))

    def sync_directory(self, directory: DirectoryNode) -> None:
        """Make every change of this directory durable, and the older changes in others that it depends on."""
        kept: list[NameChange] = []
        needed: set[tuple[int, str]] = set()
        for change in reversed(self.unsynced):
            if change.touches(directory) or not needed.isdisjoint(change.keys()):
                needed |= change.keys()
                kept.append(change)
        for change in reversed(kept):
            _apply_names(change.changes, durable=True)
        self.unsynced = [change for change in self.unsynced if change not in kept]

    def nodes(self) -> Iterator[Node]:
        """Every node that the process or the platter can reach."""
        seen: set[int] = set()
        waiting: list[Node] = [self.root]
        waiting += [node for change in self.unsynced for _, _, node in change.changes if node is not None]
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if isinstance(node, DirectoryNode):
                waiting += node.entries.values()
                waiting += node.durable.values()


def _apply_names(changes: NameChanges, *, durable: bool) -> None:
    for directory, name, node in changes:
        names = directory.durable if durable else directory.entries
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def settle(tree: Tree, loss: Loss, draws: Draws) -> None:
    """Cut the power of this disk: afterwards the survivors are its whole contents, and all durable."""
    if loss is Loss.PROCESS_DEATH:
        return
    cut, torn = _point_in_time(tree, loss, draws)
    for change in tree.unsynced:
        if _name_survives(change, loss, cut, draws):
            _apply_names(change.changes, durable=True)
    tree.unsynced.clear()
    for node in list(tree.nodes()):
        if isinstance(node, DirectoryNode):
            node.entries = dict(node.durable)
        else:
            _settle_file(node, loss, cut, torn, draws)


def _point_in_time(tree: Tree, loss: Loss, draws: Draws) -> tuple[int, int]:
    """The first sequence number that is lost, and the one that is torn (-1: none)."""
    if loss is Loss.PREFIX or loss is Loss.PREFIXES:
        return draws.between(_oldest_unsynced(tree), tree.sequence + 1), -1
    if loss is Loss.TORN:
        writes = [
            write.sequence
            for node in tree.nodes()
            if isinstance(node, FileNode)
            for write in node.unsynced
            if write.data is not None
        ]
        if writes:
            # The newest write is the most likely one.
            torn = max(writes) if draws.chance(0.5) else draws.choice(sorted(writes))
            return torn + 1, torn
    return tree.sequence + 1, -1


def _oldest_unsynced(tree: Tree) -> int:
    oldest = [change.sequence for change in tree.unsynced[:1]]
    oldest += [node.unsynced[0].sequence for node in tree.nodes() if isinstance(node, FileNode) and node.unsynced]
    return min(oldest, default=tree.sequence + 1)


def _name_survives(change: NameChange, loss: Loss, cut: int, draws: Draws) -> bool:
    if loss is Loss.ONLY_SYNCED:
        return False
    if loss is Loss.SECTORS or loss is Loss.NAMES_LOST:
        return draws.chance(0.5)
    if loss is Loss.CONTENTS_LOST:
        return True
    return change.sequence < cut


def _settle_file(node: FileNode, loss: Loss, cut: int, torn: int, draws: Draws) -> None:
    size = len(node.contents)
    if loss is Loss.NAMES_LOST:
        node.sync()
    elif loss is Loss.SECTORS:
        _keep_sectors(node, draws)
    elif loss is Loss.PREFIXES:
        for write in node.unsynced[: draws.below(len(node.unsynced) + 1)]:
            apply_write(node.durable, write.position, write.data)
    elif loss is Loss.PREFIX or loss is Loss.TORN:
        _keep_before(node, cut, torn, draws)
    elif loss is Loss.CONTENTS_LOST and size > len(node.durable) and draws.chance(0.5):
        apply_write(node.durable, size, None)
    node.unsynced.clear()
    node.contents = bytearray(node.durable)


def _keep_before(node: FileNode, cut: int, torn: int, draws: Draws) -> None:
    for write in node.unsynced:
        if write.sequence == torn and write.data:
            apply_write(node.durable, write.position, write.data[: draws.below(len(write.data))])
        elif write.sequence < cut:
            apply_write(node.durable, write.position, write.data)


def _keep_sectors(node: FileNode, draws: Draws) -> None:
    """Choose a version for each sector, and for the size.

    Writes to one sector reach the platter as the page cache held them at some moment, so a sector's versions are the
    prefixes of the writes that touch it, not their subsets.
    """
    pieces = [piece for write in node.unsynced for piece in _by_sector(write)]
    touching = Counter(sector for sector, _ in pieces)
    cuts = touching.pop(None, 0)
    kept = {sector: draws.below(count + 1) for sector, count in touching.items()}
    kept[None] = draws.below(cuts + 1)
    for sector, piece in pieces:
        if kept[sector] > 0:
            apply_write(node.durable, piece.position, piece.data)
        kept[sector] -= 1
    size = len(node.contents)
    if size > len(node.durable) and draws.chance(0.3):
        apply_write(node.durable, size, None)


def _by_sector(write: Write) -> Iterator[tuple[int | None, Write]]:
    """The pieces of a write with their sectors; a truncation has none."""
    if write.data is None:
        yield None, write
        return
    end = write.position + len(write.data)
    for sector in range(write.position // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
        first, last = max(sector * SECTOR_BYTES, write.position), min((sector + 1) * SECTOR_BYTES, end)
        yield sector, Write(write.sequence, first, write.data[first - write.position : last - write.position])
