"""Shows where the offsets of a partition are, as an animated picture or as lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias

from kbroker.cli._terminal import InPlace, painted

WIDTH: Final = 60
LINE_MS: Final = 1_000

TIER, BOTH, LOCAL, NOWHERE = "tier", "both", "local", "nowhere"
_STYLES: Final = {TIER: "cyan", BOTH: "green", LOCAL: "yellow", NOWHERE: "red"}
_MARKS: Final = {TIER: "▒", BOTH: "█", LOCAL: "▓", NOWHERE: "?"}


@dataclass(frozen=True, slots=True)
class Scene:
    """The state at one moment.

    Units  tiered_to is the highest offset in the tier, inclusive, -1 for none; starts are inclusive, end is exclusive;
           sizes are bytes on disk
    """

    title: str = ""
    elapsed_ms: int = 0
    log_start: int = 0
    local_start: int = 0
    tiered_to: int = -1
    end: int = 0
    local_bytes: int = 0
    tier_bytes: int = 0
    read: int = 0
    goal: int = 1

    def where(self, offset: int) -> str:
        """Which of the tiers has an existing offset."""
        in_tier, is_local = offset <= self.tiered_to, offset >= self.local_start
        return BOTH if in_tier and is_local else TIER if in_tier else LOCAL if is_local else NOWHERE

    def bar(self, width: int) -> list[str]:
        """The place of the first offset in each column; "" if it does not exist yet. The width stands for `goal`."""
        offsets = [at * self.goal // width for at in range(width)]
        return [self.where(offset) if self.log_start <= offset < self.end else "" for offset in offsets]

    def line(self) -> str:
        """The state as one line."""
        tier = f"{self.log_start}-{self.tiered_to}" if self.tiered_to >= 0 else "-"
        local = f"{self.local_start}-{self.end - 1}" if self.end > self.local_start else "-"
        return (
            f"{self.elapsed_ms / 1000:5.1f} s  {self.title:<36} tier {tier:>13} ({_mib(self.tier_bytes)})  "
            f"local {local:>13} ({_mib(self.local_bytes)})  read {self.read}"
        )


class Lines:
    """Prints a line when the title changes, and about every second."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or partial(print, flush=True)  # a pipe shows each line at once
        self._last = Scene()

    def show(self, scene: Scene) -> None:
        """Print the scene if a line is due."""
        if scene.title != self._last.title or scene.elapsed_ms - self._last.elapsed_ms >= LINE_MS:
            self._last = scene
            self._write(scene.line())

    def tell(self, text: str) -> None:
        """Print a sentence."""
        self._write(text)


class Picture:
    """Draws the picture in place."""

    def __init__(self) -> None:
        self._lines = InPlace(sys.stdout)
        self._last: list[str] = []

    def show(self, scene: Scene) -> None:
        """Draw the scene."""
        self._last = _drawn(scene)
        self._lines.draw(self._last)

    def tell(self, text: str) -> None:
        """Print a sentence above the picture."""
        self._lines.erase()
        print(text)
        self._lines.draw(self._last)


Stage: TypeAlias = Lines | Picture


@contextmanager
def stage(*, plain: bool) -> Iterator[Stage]:
    """A picture on a terminal, lines elsewhere."""
    if plain or not sys.stdout.isatty():
        yield Lines()
        return
    yield Picture()


def _drawn(scene: Scene) -> list[str]:
    places = [(_MARKS[place], _STYLES[place]) if place else ("·", "dim") for place in scene.bar(WIDTH)]
    bar = "".join(
        painted("".join(mark for mark, _ in same), style) for style, same in groupby(places, key=lambda place: place[1])
    )
    reading = "─" * (scene.read * WIDTH // scene.goal) + (f"▶ {scene.read}" if scene.read else "")
    numbers = f"log start {scene.log_start}, local log start {scene.local_start}, latest tiered {scene.tiered_to}"
    words = ((TIER, "only in the tier"), (BOTH, "in both"), (LOCAL, "only on the local disk"))
    return [
        painted(f"{scene.elapsed_ms / 1000:5.1f} s  {scene.title}", "bold"),
        "",
        f"offsets  {bar}",
        f"reader   {painted(reading, 'magenta')}",
        "         " + "".join(painted(f"{_MARKS[place]} {text}   ", _STYLES[place]) for place, text in words),
        "",
        f"         local disk {_mib(scene.local_bytes)}, tier {_mib(scene.tier_bytes)}",
        f"         {numbers}, end {scene.end}",
    ]


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
