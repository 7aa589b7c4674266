"""The report of `kbroker verify`, and a read-only disk.

A finding is a problem that a start does not repair, or that should not exist after a clean shutdown. A note is a
leftover of an unclean shutdown that the next start removes or repairs.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NoReturn, TypeVar

from kbroker.cli._dump_output import Problems
from kbroker.cli._say import say, say_json
from kbroker.runtime.disk import RealDisk, RealFile

T = TypeVar("T")

MAX_PRINTED: Final = 20
"""Maximum number of findings per file that are printed; all are counted."""


class Report(Problems):
    """Prints each finding on one line and counts them by file.

    Shape  the counts of findings and notes include those that are not printed
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._of_file: Counter[str] = Counter()
        self.notes = 0

    def add(self, path: str, text: str, *, position: int | None = None) -> None:
        """Report a finding."""
        self.count += 1
        self._of_file[path] += 1
        number = self._of_file[path]
        if number == MAX_PRINTED:
            text += " (further findings in this file are only counted)"
        if number <= MAX_PRINTED:
            self._print("finding", path, text, position)

    def hint(self, path: str, text: str) -> None:
        """Report a note."""
        self.notes += 1
        self._print("note", path, text, None)

    def _print(self, kind: str, path: str, text: str, position: int | None) -> None:
        if self._as_json:
            say_json({"kind": kind, "file": path, "position": position, "text": text})
            return
        where = path if position is None else f"{path}: at byte {position}"
        say(f"{where}: {'note: ' if kind == 'note' else ''}{text}")


class ReadOnlyDisk(RealDisk):
    """The real disk, without any way to change it. An attempt to change it is a bug and fails an assertion."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        assert not create, path
        del writable
        return super().open(path, writable=False)

    def _refuse(self, *arguments: object, **_: object) -> NoReturn:
        raise AssertionError(f"{arguments} would be changed")

    make_directory = remove_directory = rename = unlink = sync_directory = lock = _refuse
