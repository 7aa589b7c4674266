"""What `kbroker verify` finds, and the disk that it looks at: one that cannot be written to.

A finding is something that is wrong and stays wrong, or that a start has to repair though the broker stopped properly.
A note is what is in order after all: what the next start removes or repairs because the last stop was none.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Final, NoReturn

from kbroker.cli._dump_output import Problems
from kbroker.cli._say import say
from kbroker.runtime.disk import RealDisk, RealFile

MAX_TOLD: Final = 20
"""How many findings of one file are printed; all are counted."""


class Report(Problems):
    """Prints each finding as it comes, a line each; counts them by file.

    Shape  findings and notes count lines, those that were left out included
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._of_file: Counter[str] = Counter()
        self.notes = 0

    def add(self, path: str, text: str, *, position: int | None = None) -> None:
        """Tell of a finding."""
        self.count += 1
        self._of_file[path] += 1
        told = self._of_file[path]
        if told == MAX_TOLD:
            text += " (further findings in this file are only counted)"
        if told <= MAX_TOLD:
            self._print("finding", path, text, position)

    def hint(self, path: str, text: str) -> None:
        """Tell of what is no finding."""
        self.notes += 1
        self._print("note", path, text, None)

    def _print(self, kind: str, path: str, text: str, position: int | None) -> None:
        if self._as_json:
            say(json.dumps({"kind": kind, "file": path, "position": position, "text": text}))
            return
        where = path if position is None else f"{path}: at byte {position}"
        say(f"{where}: {'note: ' if kind == 'note' else ''}{text}")


class ReadOnlyDisk(RealDisk):
    """The real disk without any way to change it: whoever tries has a bug, which ends here."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        assert not create, path
        del writable
        return super().open(path, writable=False)

    def _refuse(self, *arguments: object) -> NoReturn:
        raise AssertionError(f"{arguments} would be changed")

    def make_directory(self, path: str) -> None:
        self._refuse(path)

    def remove_directory(self, path: str) -> None:
        self._refuse(path)

    def rename(self, old: str, new: str) -> None:
        self._refuse(old, new)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def sync_directory(self, path: str) -> None:
        self._refuse(path)

    def lock(self, path: str) -> RealFile:
        self._refuse(path)
